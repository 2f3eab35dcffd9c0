// Package reference is a second opinion on every decision: a model of each algorithm, written from README.md, docs/algorithms.md,
// docs/limits.md and docs/costs.md alone. It is plain and slow: it keeps every charge, works in exact fractions, and searches
// where the limiter calculates. It shares no code with the limiter, and its author had not read it.
//
// Its tests drive the limiter on a real Redis and on miniredis through random histories, and compare each answer to the
// microsecond. Where the pages do not say enough to write the model, the pages are at fault.
package reference

import (
	"fmt"
	"math"
	"slices"
)

// Never is a moment that no clock reaches.
const Never = math.MaxInt64

// Algorithm is the way a rule counts, by its name in limits.yaml.
type Algorithm string

// The algorithms of docs/algorithms.md.
const (
	TokenBucket   Algorithm = "token-bucket"
	SlidingWindow Algorithm = "sliding-window"
	FixedWindow   Algorithm = "fixed-window"
	CalendarQuota Algorithm = "calendar"
	Concurrency   Algorithm = "concurrency"
)

// Rule is a rule of limits.yaml. All times are in microseconds.
type Rule struct {
	Algorithm Algorithm
	Limit     int64
	Per       int64
	Burst     int64
	Margin    int64
	Lease     int64
	Rollover  int64
	Spread    bool
	OnUse     bool // a fixed window that opens on use
	// Begins returns when the period of a calendar that t is in begins, and when it ends. Resets and Timezone say the same for Over.
	Begins           func(t int64) (from, to int64)
	Resets, Timezone string
}

// Capacity is the largest cost that the rule can ever admit.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket {
		return r.Burst
	}
	return r.Limit
}

// Answer is what the model says of a request.
type Answer struct {
	Allowed bool
	Start   int64 // the joint start, Never where no clock tells
	Rules   []State
}

// State is what one rule says.
type State struct {
	Limited   bool
	Start     int64 // the first moment at which this rule alone admits the cost
	Remaining int64 // after the decision
	Reset     int64 // the moment at which the rule is as if nothing had been taken
}

// counter is the state of one rule at one scope.
type counter interface {
	// first returns the first moment from t on at which c units may start, each moment judged by what is known at known of it.
	first(known func(int64) int64, t, c int64) int64
	// charge counts c units that start at s, under an id.
	charge(now, s, c int64, id string)
	// refund takes back what was charged last under the id.
	refund(now int64, id string)
	// remaining is how many units are left at now.
	remaining(now int64) int64
	// reset is the moment at which nothing is left of what was charged.
	reset(now int64) int64
}

func newCounter(r Rule, pad int64) counter {
	switch r.Algorithm {
	case TokenBucket:
		return newBucket(r, pad)
	case SlidingWindow:
		return newSliding(r, pad)
	case FixedWindow:
		return newWindow(r, pad)
	case CalendarQuota:
		return newCalendar(r, pad)
	case Concurrency:
		return &places{rule: r}
	}
	panic(fmt.Sprintf("no algorithm %q", r.Algorithm))
}

// World holds the rules by the names of their places in the policy, and what was charged.
type World struct {
	pad      int64
	counters map[string]counter
}

// NewWorld returns a world in which nothing was charged. Pad is Config.StartTolerance in microseconds.
func NewWorld(pad int64) *World { return &World{pad: pad, counters: map[string]counter{}} }

// Charge is what one rule of a path is asked for. Place is the scope at which it counts and its name.
type Charge struct {
	Place string
	Rule  Rule
	Units int64
}

func (w *World) counter(c Charge) counter {
	if w.counters[c.Place] == nil {
		w.counters[c.Place] = newCounter(c.Rule, w.pad)
	}
	return w.counters[c.Place]
}

// Decide answers a request and, where take says so, charges it: under all rules of the path at the joint start, or under none.
func (w *World) Decide(now, ahead int64, id string, path []Charge, take bool) Answer {
	a := Answer{Start: w.joint(now, path, func(int64) int64 { return now })}
	if a.Allowed = a.Start != Never && a.Start-now <= ahead; !a.Allowed {
		a.Start = w.joint(now, path, func(t int64) int64 { return t })
	}
	for _, c := range path {
		start := w.counter(c).first(func(t int64) int64 { return t }, now, c.Units)
		a.Rules = append(a.Rules, State{Limited: start > now, Start: start})
	}
	for _, c := range path {
		if a.Allowed && take {
			w.counter(c).charge(now, a.Start, c.Units, id)
		}
	}
	for i, c := range path {
		a.Rules[i].Remaining, a.Rules[i].Reset = w.counter(c).remaining(now), w.counter(c).reset(now)
	}
	return a
}

// joint asks each rule for the first moment from now on at which it admits the cost; the latest of
// those is tried on all again until it moves no more. What a start ahead may rest on is what is
// known now, and a wait is until the request would be allowed: known says as of when it counts.
func (w *World) joint(now int64, path []Charge, known func(t int64) int64) int64 {
	for s := now; ; {
		latest := s
		for _, c := range path {
			latest = max(latest, w.counter(c).first(known, s, c.Units))
		}
		if latest == s || latest == Never {
			return latest
		}
		s = latest
	}
}

// Refund takes back what was charged under the id at the places of a path.
func (w *World) Refund(now int64, id string, path []Charge) {
	for _, c := range path {
		w.counter(c).refund(now, id)
	}
}

// Vague says that the pages leave open what giving back comes to, since a calendar on the path may
// have forgotten the period of the start, or nothing was granted in the one at hand: it hangs on
// whether the process that gives back has heard that a period began.
func (w *World) Vague(now int64, path []Charge, start int64) bool {
	return slices.ContainsFunc(path, func(c Charge) bool {
		k, ok := w.counter(c).(*calendar)
		if !ok {
			return false
		}
		here, _ := k.rule.Begins(now)
		return start < k.oldest(now) || k.rule.Rollover > 0 && !slices.Contains(k.seen, here)
	})
}
