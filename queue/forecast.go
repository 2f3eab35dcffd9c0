package queue

import (
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"math"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Forecast tells what EnqueueBatch would make of entries, and when each task would
// start, and enqueues nothing. It calls each (unless nil) with every result, in
// order: a task that would be enqueued is Valid, one whose id and queue an earlier
// one has is a Duplicate. Whether Redis has an id already is not looked up.
//
// Starts are told by the Client's Limiter, and none without one. They begin with
// what the limits hold and who waits now, and add up what the entries ask for: each
// rule at its own pace, scopes that share one in turns, and the latest rule counts.
// A task with a delay has none, nor one that only a raised limit, a run that ends or the
// end of a pause without one lets go, nor one that starts when other rules hold than now.
// A pause that has an end puts everything off by it.
//
// Starts are told as if tasks started in the order in which they are given: priorities and the
// weights of queues change who of a scope is first, and so not DoneAt.
//
// Of one scope alone each start is told to within two windows of its rules, and with
// costs above 1 to a thirtieth. Where scopes share a rule, a start knows nothing of
// the entries after it; DoneAt knows of all, and may be too early by a third where
// they have rules of their own, too. It is never too late by more than that window.
//
// It holds sums by scope and by rule, and some 70 bytes for each task that has an id
// of its own. It costs two round trips for each scope. The error is ctx's, or wraps
// the source's or Redis's, with a Summary of what was done.
func (c *Client) Forecast(ctx context.Context, entries iter.Seq[Entry], each func(Result)) (Summary, error) {
	f := &forecast{ids: idSet{seed: maphash.MakeSeed(), taken: map[uint64]struct{}{}}}
	if c.turns.limiter != nil {
		f.outlook = newOutlook(c.turns.limiter)
	}
	for e := range entries {
		if err := ctx.Err(); err != nil {
			return f.finish(), err
		}
		r, err := f.result(ctx, c, e)
		if err != nil {
			return f.finish(), fmt.Errorf("queue: forecast stopped: %w", err)
		}
		f.sum.count(r)
		if each != nil {
			each(r)
		}
	}
	return f.finish(), ctx.Err()
}

// forecast is one Forecast on its way.
type forecast struct {
	outlook *outlook // nil without a limiter
	ids     idSet
	sum     Summary
}

func (f *forecast) result(ctx context.Context, c *Client, e Entry) (Result, error) {
	r := Result{Line: e.Line, ID: e.Task.ID, Queue: e.Task.Queue}
	now := time.Now()
	if err := c.examine(e, now); err != nil {
		if isSource(err) {
			return r, err
		}
		r.State, r.Err = Invalid, err
		return r, nil
	}
	t := c.with(e.Task)
	r.State, r.ID, r.Queue, r.Random, r.AppScope, r.Timeout = Valid, t.ID, t.Queue, t.ID == "", c.appScope(t), t.Timeout
	if !r.Random && !f.ids.add(t.Queue, t.ID) {
		r.State = Duplicate
		return r, nil
	}
	if f.outlook == nil {
		return r, nil
	}
	if t.Delay > 0 {
		f.sum.untold(now.Add(t.Delay))
		return r, nil
	}
	start, err := f.outlook.add(ctx, t.Scope, spending{t.Cost, t.Costs})
	if err != nil {
		return r, err
	}
	if start.known {
		r.Start, r.Waits = start.at, start.by != Binding{}
	} else {
		f.sum.untold(time.Time{})
	}
	return r, nil
}

// finish returns the summary, by all that was added.
func (f *forecast) finish() Summary {
	if f.outlook == nil {
		return f.sum
	}
	f.sum.Paused = f.outlook.paused
	if end := f.outlook.end(); end.known && !end.at.Before(f.sum.DoneAt) {
		f.sum.DoneAt, f.sum.Binding = end.at, end.by
	}
	return f.sum
}

// idSet knows which ids of which queues there were, by 64 bits of each: of a
// million, two are taken for one about once in 30 million files.
type idSet struct {
	seed  maphash.Seed
	taken map[uint64]struct{}
}

// add answers false when the id was there.
func (s *idSet) add(queue, id string) bool {
	sum := maphash.String(s.seed, queue+"/"+id)
	_, there := s.taken[sum]
	s.taken[sum] = struct{}{}
	return !there
}

// looker says what the next task of a scope meets.
type looker interface {
	Forecast(ctx context.Context, scope string) (throttle.Forecast, error)
}

// outlook adds up what is asked of rules, and says when it is had. It is the
// arithmetic of lua/include/fairshare/expect.lua over a whole batch: an estimate, by
// which nothing is decided.
type outlook struct {
	limiter looker
	rules   map[Binding]*ruleSum
	lines   map[string]*lineSum
	paused  Paused
}

func newOutlook(l looker) *outlook {
	return &outlook{limiter: l, rules: map[Binding]*ruleSum{}, lines: map[string]*lineSum{}}
}

// ruleSum is a rule and what waits for it.
type ruleSum struct {
	throttle.RuleForecast
	name   Binding
	seen   time.Time     // when it was looked at, by our clock
	window time.Duration // how much of a fixed window, or of a period, was left then
	units  int64         // that wait or were added
	lines  int64         // that they stand in
}

// lineSum is a scope and what waits of it.
type lineSum struct {
	seen  time.Time
	until time.Time // when other rules hold, by our clock; zero for never
	rules []*ruleSum
	own   []int64 // units of the line under each rule
	stood bool    // it is counted among its rules' lines
	last  moment
	pause *ruleSum // the one that lasts longest; nil for none
}

// heed notes a pause.
func (l *lineSum) heed(r *ruleSum) {
	if r.Paused && (l.pause == nil || r.RetryAfter > l.pause.RetryAfter) {
		l.pause = r
	}
}

// moment is a start: when it is, and the rule that it waits for, if any.
type moment struct {
	at    time.Time
	by    Binding
	known bool
}

// line returns the sums of a scope, with what is there now.
func (o *outlook) line(ctx context.Context, scope string) (*lineSum, error) {
	if l := o.lines[scope]; l != nil {
		return l, nil
	}
	seen := time.Now()
	now, err := o.limiter.Forecast(ctx, scope)
	if err != nil {
		return nil, err
	}
	l := &lineSum{seen: seen, stood: now.Waiting > 0, own: make([]int64, len(now.Rules))}
	if !now.Until.IsZero() {
		l.until = seen.Add(now.Until.Sub(now.At))
	}
	for i, r := range now.Rules {
		name := Binding{Scope: r.Scope, Rule: r.Rule}
		if o.rules[name] == nil {
			o.rules[name] = newRuleSum(r, name, seen, now.At)
		}
		l.rules, l.own[i] = append(l.rules, o.rules[name]), r.Own
		l.stood = l.stood || r.Own > 0
		l.heed(o.rules[name])
		o.paused.heed(o.rules[name])
	}
	o.lines[scope] = l
	return l, nil
}

func newRuleSum(r throttle.RuleForecast, name Binding, seen, at time.Time) *ruleSum {
	sum := &ruleSum{RuleForecast: r, name: name, seen: seen, units: r.Waiting, lines: r.Lines}
	if r.Algorithm == policy.Calendar {
		sum.window = r.Rest
	}
	if r.Algorithm == policy.FixedWindow && r.Per > 0 {
		sum.window = r.Per - time.Duration(at.UnixNano()%int64(r.Per))
	}
	return sum
}

// add puts a task at the end of its scope's line and returns its start.
func (o *outlook) add(ctx context.Context, scope string, cost spending) (moment, error) {
	l, err := o.line(ctx, scope)
	if err != nil {
		return moment{}, err
	}
	for i, r := range l.rules {
		l.own[i] += r.waste(r.cost(cost))
	}
	start := l.start(cost)
	if !l.until.IsZero() && start.at.After(l.until) {
		return moment{}, nil // other rules tell it, from then on
	}
	if !start.known {
		return start, nil // it takes nothing from others
	}
	for i, r := range l.rules {
		l.own[i] += r.cost(cost)
		r.units += r.cost(cost)
		if !l.stood {
			r.lines++
		}
	}
	l.stood, l.last = true, start
	return start, nil
}

// end returns the latest start of what was added, by all of it.
func (o *outlook) end() (end moment) {
	for _, l := range o.lines {
		if !l.last.known {
			continue
		}
		if last := l.start(spending{}); last.known && (!end.known || last.at.After(end.at)) {
			end = last
		}
	}
	return end
}

// start returns when a task of a cost starts that stands behind all of its line, and
// for no cost when the line's last does.
func (l *lineSum) start(cost spending) moment {
	start, held := l.last, time.Duration(0)
	if l.pause != nil {
		held = l.pause.RetryAfter
	}
	if held == throttle.Never {
		return moment{}
	}
	if !start.known {
		start = moment{at: l.seen.Add(held), known: true}
		if held > 0 {
			start.by = l.pause.name
		}
	}
	timed, full := false, false
	for i, r := range l.rules {
		if r.Paused {
			timed = true
			continue
		}
		if l.own[i]+r.cost(cost) == 0 {
			continue // neither it nor who is before it takes anything
		}
		wait, known := r.after(r.turn(l, i, cost))
		switch {
		case r.Algorithm == policy.Concurrency:
			full = full || !known
			continue
		case !known:
			return moment{}
		}
		timed = true
		if at := r.seen.Add(held + wait); wait > 0 && at.After(start.at) {
			start.at, start.by = at, r.name
		}
	}
	start.known = timed || !full
	return start
}

// turn returns how many units the rule has given when it has given a line all that
// it has, and a cost after it: other lines have a turn for each of its own.
func (r *ruleSum) turn(l *lineSum, i int, cost spending) int64 {
	mine := l.own[i] + r.cost(cost)
	others, lines := r.units-l.own[i], r.lines
	if l.stood {
		lines--
	}
	if lines <= 0 {
		others = 0
	} else if mine < others/lines {
		others = mine * lines
	}
	return mine + others
}

// spending is what a task costs: a number, or by unit. The zero spending is none.
type spending struct {
	each int64
	by   policy.Costs
}

// cost is what a task takes of the rule.
func (r *ruleSum) cost(cost spending) int64 {
	switch {
	case r.Algorithm == policy.Concurrency && cost.by != nil:
		return 1
	case r.Algorithm == policy.Concurrency:
		return min(cost.each, 1)
	case cost.by != nil:
		return cost.by.Of(r.Unit)
	}
	return cost.each
}

// waste lets go what is left of a window when a cost does not fit into it: nobody
// of the line can use it before its first. It returns how many units that were.
func (r *ruleSum) waste(cost int64) int64 {
	if cost == 0 || r.Units == 0 || r.Algorithm == policy.TokenBucket {
		return 0
	}
	laid, free := r.units, int64(0)
	if r.Algorithm == policy.FixedWindow || r.Algorithm == policy.Calendar {
		free = r.free()
	}
	room := r.Limit - (laid-free)%r.Limit
	if laid < free {
		room = free - laid
	}
	if room >= cost || room == r.Limit {
		return 0
	}
	r.units += room
	return room
}

// free is how many units the rule gives at once.
func (r *ruleSum) free() int64 {
	switch {
	case r.Algorithm == policy.Calendar && (!r.Limited || r.Spread && r.RetryAfter < r.Rest):
		return max(0, r.Remaining) // with what was rolled over; at once, or by the end of the period
	case r.Limited:
		return 0
	}
	return max(0, min(r.Remaining, r.Limit))
}

// after returns how long from when it was seen until the rule has given so many
// units, and false where no clock tells.
func (r *ruleSum) after(units int64) (time.Duration, bool) {
	free := r.free()
	if r.Algorithm == policy.Concurrency {
		return 0, units <= free
	}
	if r.Units == 0 {
		return 0, false
	}
	if r.Spread {
		return r.spread(units, free)
	}
	if units <= free {
		return 0, true
	}
	switch r.Algorithm {
	case policy.TokenBucket:
		return r.spans(float64(units-r.Limit)/float64(r.Units), r.ResetAfter)
	case policy.Calendar:
		return r.period((units - free - 1) / r.Limit)
	case policy.FixedWindow:
		next := r.window
		if r.Limited {
			next = r.RetryAfter
		}
		return r.spans(math.Floor(float64(units-free-1)/float64(r.Limit)), next)
	default:
		windows, place := (units-1)/r.Limit, (units-1)%r.Limit
		return r.spans(float64(windows), r.leave(place-free))
	}
}

// spread is after for a calendar that spreads what it has left over what is left of
// the period.
func (r *ruleSum) spread(units, free int64) (time.Duration, bool) {
	if units <= free {
		first := max(0, r.RetryAfter)
		return first + time.Duration(float64(r.window-first)*float64(units-1)/float64(free)), true
	}
	periods, place := (units-free-1)/r.Limit, (units-free-1)%r.Limit
	begins, ends := r.Period(periods+1), r.Period(periods+2)
	if begins > math.MaxInt64/2 || ends > math.MaxInt64/2 {
		return 0, false
	}
	return begins + time.Duration(float64(ends-begins)*float64(place)/float64(r.Limit)), true
}

// period returns how long it is until a calendar gives units again, and so many periods later.
func (r *ruleSum) period(later int64) (time.Duration, bool) {
	first := int64(1)
	switch {
	case r.Limited && r.RetryAfter == throttle.Never:
		return 0, false
	case r.Limited && later == 0:
		return max(0, r.RetryAfter), true
	case r.Limited && r.RetryAfter > r.Period(1): // the next period is used up, too
		first = 2
	}
	d := r.Period(first + later)
	return max(0, d), d <= math.MaxInt64/2
}

// leave returns when the unit at a place among those that a sliding window holds
// leaves it, taken as spread evenly between the first and the last. Those below 0
// are free already.
func (r *ruleSum) leave(place int64) time.Duration {
	if place < 0 {
		return 0
	}
	held := r.Limit - r.free()
	if held == 1 {
		return r.ResetAfter
	}
	return r.RetryAfter + time.Duration(float64(r.ResetAfter-r.RetryAfter)*float64(place)/float64(held-1))
}

// spans returns so many times Per and more; false for what is longer than a clock
// can tell.
func (r *ruleSum) spans(n float64, more time.Duration) (time.Duration, bool) {
	d := n*float64(r.Per) + float64(more)
	if d > math.MaxInt64/2 || more == throttle.Never {
		return 0, false
	}
	return max(0, time.Duration(d)), true
}
