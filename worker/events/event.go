package events

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Kind is what an event reports.
type Kind string

// The kinds of events.
const (
	Threshold Kind = "threshold" // a rule has used a part of its limit
	Pause     Kind = "pause"     // an API asked to stop calling
	Cut       Kind = "cut"       // an API rejected calls, and a limit was reduced
	Open      Kind = "open"      // calls failed, and a breaker opened
	Closed    Kind = "closed"    // a breaker closed: a call went through, or a person closed it
	Stalled   Kind = "stalled"   // a process does not dispatch waiting tasks
	Resumed   Kind = "resumed"   // it does again
	Mismatch  Kind = "mismatch"  // processes have different limits
	Tier      Kind = "tier"      // a tier could not be asked for, or the limits do not have it
)

// Event is one event. Its JSON is the body of a webhook's request; docs/json.md lists the fields by kind.
type Event struct {
	ID   string    `json:"id"` // random, and the same for all deliveries of an event
	Kind Kind      `json:"kind"`
	At   time.Time `json:"at"` // when this process noticed the event
	// App and Host name the process.
	App  string `json:"app,omitempty"`
	Host string `json:"host,omitempty"`
	// Text is the event in one sentence. It may contain customers' names.
	Text string `json:"text"`

	// Scope is the level at which the rule counts, or that is paused. Pattern is the rule's place in the policy.
	Scope   string `json:"scope,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Pattern string `json:"pattern,omitempty"`

	// Percent is the threshold, and Used how much of Limit was used, in Unit, when it was passed.
	Percent int    `json:"percent,omitempty"`
	Used    int64  `json:"used,omitempty"`
	Limit   int64  `json:"limit,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// ExhaustedAt is when the limit was used up; below 100 percent, when it will be at the present pace. It is zero if that is unknown, or
	// not before ResetsAt. ResetsAt is when the rule is as if unused.
	ExhaustedAt time.Time `json:"exhausted_at,omitzero"`
	ResetsAt    time.Time `json:"resets_at,omitzero"`

	Until time.Time `json:"until,omitzero"` // when a pause or a cut ends by itself, or an open breaker lets a probe go

	// Calls and Failures are how many calls opened a breaker, and how many of them had failed. Shadow says that it only counts.
	Calls    int64 `json:"calls,omitempty"`
	Failures int64 `json:"failures,omitempty"`
	Shadow   bool  `json:"shadow,omitempty"`

	// Providers are those whose waiting tasks are not dispatched, twenty at most, and Since is the last dispatch.
	Providers []string  `json:"providers,omitempty"`
	Since     time.Time `json:"since,omitzero"`

	// Tier is the tier of Scope that counts, if it could not be asked for, or that the limits do not have.
	Tier    string `json:"tier,omitempty"`
	Unknown bool   `json:"unknown,omitempty"` // the limits do not have it

	// Version is the newest version of the limits in force, and Behind the processes that have others, twenty at most.
	Version int64    `json:"version,omitempty"`
	Behind  []string `json:"behind,omitempty"`
}

// named is how many providers or processes an event names.
const named = 20

// sentence returns the Text of an event.
func (e Event) sentence() string {
	switch e.Kind {
	case Threshold:
		text := fmt.Sprintf("rule %s of %s has used %d %% of its %s", e.Rule, e.Scope, e.Percent, policy.Amount(e.Limit, e.Unit))
		if e.Percent == whole {
			text = fmt.Sprintf("rule %s of %s is exhausted: %s of %s are used", e.Rule, e.Scope, policy.Number(e.Used, e.Unit), policy.Amount(e.Limit, e.Unit))
		} else if !e.ExhaustedAt.IsZero() {
			text += ", and is exhausted at " + clock(e.ExhaustedAt) + " at this pace"
		}
		if !e.ResetsAt.IsZero() {
			text += "; it is whole again at " + clock(e.ResetsAt)
		}
		return text
	case Pause:
		return fmt.Sprintf("the API of %s asked to stop calling; it is paused until %s", e.Scope, clock(e.Until))
	case Cut:
		return fmt.Sprintf("the API of %s rejects calls; rule %s is reduced until %s", e.Scope, e.Rule, clock(e.Until))
	case Open:
		switch {
		case e.Shadow:
			return fmt.Sprintf("the API of %s is down: calls fail; its breaker would have opened, and only counts", e.Scope)
		case e.Calls == 0:
			return fmt.Sprintf("the breaker of %s was opened by hand; it lets a probe go at %s", e.Scope, clock(e.Until))
		}
		return fmt.Sprintf("the API of %s is down: %d of %d calls failed; its breaker is open, and lets a probe go at %s", e.Scope, e.Failures, e.Calls, clock(e.Until))
	case Closed:
		return fmt.Sprintf("the breaker of %s has closed; its tasks start again", e.Scope)
	case Stalled:
		return fmt.Sprintf("a process has not dispatched waiting tasks of %s since %s", strings.Join(e.Providers, ", "), clock(e.Since))
	case Resumed:
		return "the process dispatches waiting tasks again"
	case Tier:
		if !e.Unknown {
			return fmt.Sprintf("the tier of %s could not be asked for; the last known one counts: %s", e.Scope, cmp.Or(e.Tier, "none"))
		}
		return fmt.Sprintf(`%s has the tier %s, which the limits do not have; the rules of "*" count`, e.Scope, e.Tier)
	case Mismatch:
		return fmt.Sprintf("processes have other limits than version %d: %s", e.Version, strings.Join(e.Behind, ", "))
	}
	return string(e.Kind)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// level returns how an event is logged.
func (e Event) level() slog.Level {
	switch {
	case e.Kind == Threshold && e.Percent < whole, e.Kind == Resumed, e.Kind == Closed:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
