package queue

import (
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Forecast reports what EnqueueBatch would do with entries, and when each task would start. It enqueues nothing. It calls each
// (unless nil) with every result, in order: a task that would be enqueued is Valid, and one that repeats the id and queue of an
// earlier entry is a Duplicate. It does not check whether an id is taken in Redis.
//
// Expected starts need the Client's Limiter. They begin with the current state of the limits and queues,
// and add the costs of the entries in their order: each rule admits at its own rate, scopes that share a
// rule take turns, and the latest rule counts. Priorities and the weights of queues are left out; they do
// not change DoneAt. Under a concurrency rule runs take as long as those that ended lately, and a start
// has a range. Below a pool each task takes the member that admits it first. A pause delays all starts by
// its rest. Result.Reason says why a start is unknown.
//
// For a single scope, each start is accurate to two windows of its rules, and with costs above 1 to a thirtieth. If scopes share
// a rule, a start takes no later entries into account; DoneAt does, and may be too early by a third if the scopes have rules of
// their own, too. It is never too late by more than that window.
//
// It holds sums by scope and by rule, and about 70 bytes for each task that has an id of its own. Costs two round trips for each
// scope, and two for each pool. The error is ctx's, or wraps the source's or Redis's, with a Summary of what was done.
func (c *Client) Forecast(ctx context.Context, entries iter.Seq[Entry], each func(Result)) (Summary, error) {
	f := &forecast{seed: maphash.MakeSeed(), ids: map[uint64]struct{}{}}
	if c.cfg.Limiter != nil {
		f.outlook = newOutlook(c.cfg.Limiter)
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

// forecast is the state of one Forecast.
type forecast struct {
	outlook *outlook // nil without a limiter
	seed    maphash.Seed
	ids     map[uint64]struct{}
	sum     Summary
}

func (f *forecast) result(ctx context.Context, c *Client, e Entry) (Result, error) {
	r := Result{Line: e.Line, ID: e.Task.ID, Queue: e.Task.Queue}
	now := time.Now()
	if err := c.check(e, now); err != nil {
		if isSource(err) {
			return r, err
		}
		r.State, r.Err = Invalid, err
		return r, nil
	}
	t := c.complete(e.Task)
	r.State, r.Random = Valid, t.ID == ""
	c.describe(t, &r)
	if !r.Random && f.repeats(t.Queue, t.ID) {
		r.State = Duplicate
		return r, nil
	}
	if f.outlook == nil {
		return r, nil
	}
	if t.Delay > 0 {
		r.Reason = ReasonDelay
		f.sum.unknownStart(now.Add(t.Delay))
		return r, nil
	}
	start, err := f.outlook.add(ctx, t)
	if err != nil {
		return r, err
	}
	r.Reason, r.Binding = start.why, start.by
	if start.known {
		r.Start, r.Waits = start.at, start.why != ""
		r.StartFrom, r.StartTo = start.bounds()
		if r.Expires = expires(t, start.at, now); r.Expires != "" {
			f.sum.Expiring++
		}
	} else {
		f.sum.unknownStart(time.Time{})
	}
	return r, nil
}

// expires returns what of a task ends before it starts, as Result.Expires does.
func expires(t Task, start, now time.Time) string {
	switch {
	case !t.Deadline.IsZero() && start.After(t.Deadline):
		return "deadline"
	case t.MaxWait > 0 && start.Sub(now) > t.MaxWait:
		return "max_wait"
	}
	return ""
}

// finish returns the summary of everything that was added.
func (f *forecast) finish() Summary {
	if f.outlook == nil {
		return f.sum
	}
	f.sum.Paused = f.outlook.paused
	if end := f.outlook.end(); end.known && !end.at.Before(f.sum.DoneAt) {
		f.sum.DoneAt, f.sum.Binding = end.at, end.by
		f.sum.DoneFrom, f.sum.DoneTo = end.bounds()
	}
	return f.sum
}

// repeats reports whether an id was there before. It compares 64-bit hashes: among a million ids, a
// collision occurs in about one of 30 million files.
func (f *forecast) repeats(queue, id string) bool {
	sum := maphash.String(f.seed, queue+"/"+id)
	_, there := f.ids[sum]
	f.ids[sum] = struct{}{}
	return there
}

// looker forecasts when the next task of a scope starts.
type looker interface {
	Forecast(ctx context.Context, scope string) (throttle.Forecast, error)
	Members(ctx context.Context, scope string) ([]throttle.Member, error)
}

// outlook adds up the costs of tasks under each rule, and estimates when the rules admit them. It is
// the arithmetic of lua/include/fairshare/expect.lua for a whole batch; no decision depends on it.
type outlook struct {
	limiter looker
	rules   map[Binding]*ruleSum
	lines   map[string]*lineSum
	pools   map[string]*poolSum // by level
	paused  Paused
}

func newOutlook(l looker) *outlook {
	return &outlook{limiter: l, rules: map[Binding]*ruleSum{}, lines: map[string]*lineSum{}, pools: map[string]*poolSum{}}
}

// ruleSum is a rule and the units that wait for it.
type ruleSum struct {
	throttle.RuleForecast
	name  Binding
	seen  time.Time // when the snapshot was taken, by the local clock
	units int64     // waiting or added
	lines int64     // the number of queues that hold them
}

// lineSum is a scope and the units of its waiting tasks.
type lineSum struct {
	seen  time.Time
	until time.Time // when other rules apply, by the local clock; zero for never
	rules []*ruleSum
	own   []int64 // units of the queue under each rule
	pool  *poolSum
	tasks int64 // of the queue, as the pool counts them
	stood bool  // it counts among the queues of its rules
	last  moment
	held  moment // when its longest pause ends; without a reason if it has none
}

// hold takes a pause over if it is longer than those before.
func (l *lineSum) hold(left time.Duration, by Binding, why Reason) {
	if l.held.why != "" && !l.held.known {
		return
	}
	if left == throttle.Never {
		l.held = moment{by: by, why: why}
	} else if end := momentAt(l.seen.Add(left), by, why); end.at.After(l.held.at) {
		l.held = end
	}
}

// moment is an expected start with its range, and what determines it, if anything: also where it is not known.
type moment struct {
	at, from, to time.Time
	by           Binding
	why          Reason
	known        bool
}

func momentAt(at time.Time, by Binding, why Reason) moment {
	return moment{at, at, at, by, why, true}
}

// bounds returns the range, zero for a moment that is exact.
func (m *moment) bounds() (from, to time.Time) {
	if m.from.Equal(m.to) {
		return time.Time{}, time.Time{}
	}
	return m.from, m.to
}

// wait has the moment wait for a rule, which admits it in a time from a moment on.
func (m *moment) wait(r *ruleSum, since time.Time, in throttle.Estimate) {
	m.waitUntil(since, in, r.name, r.why())
}

func (m *moment) waitUntil(since time.Time, in throttle.Estimate, by Binding, why Reason) {
	later := func(t *time.Time, in time.Duration) bool {
		at := since.Add(in)
		if in <= 0 || !at.After(*t) {
			return false
		}
		*t = at
		return true
	}
	if later(&m.at, in.In) {
		m.by, m.why = by, why
	}
	later(&m.from, in.From)
	later(&m.to, in.To)
}

// why is the reason that the rule stands for.
func (r *ruleSum) why() Reason {
	switch {
	case r.Algorithm == policy.Concurrency && r.Limit > 0:
		return ReasonRun
	case r.Limit == 0, r.Units == 0:
		return ReasonSuspended
	}
	return ReasonRule
}

// line returns the sums of a scope, beginning with its current state.
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
			o.rules[name] = &ruleSum{RuleForecast: r, name: name, seen: seen, units: r.Waiting, lines: r.Queues}
		}
		l.rules, l.own[i] = append(l.rules, o.rules[name]), r.Own
		l.stood = l.stood || r.Own > 0
		if r.Paused {
			l.hold(r.RetryAfter, name, ReasonPaused)
		}
	}
	if now.PausedFor > 0 {
		l.hold(now.PausedFor, Binding{Scope: scope}, ReasonUpstream)
	}
	if l.held.why != "" {
		o.paused.extend(l.held.by.Scope, l.held.at)
	}
	if l.pool, err = o.pool(ctx, scope, now, seen); err != nil {
		return nil, err
	}
	l.tasks = now.Waiting
	o.lines[scope] = l
	return l, nil
}

// add adds a task at the end of its scope's queue and returns its expected start.
func (o *outlook) add(ctx context.Context, t Task) (moment, error) {
	l, err := o.line(ctx, t.Scope)
	if err != nil {
		return moment{}, err
	}
	for i, r := range l.rules {
		l.own[i] += r.waste(r.cost(t))
	}
	if l.pool != nil {
		l.pool.add(t)
	}
	start := l.start(t)
	if !l.until.IsZero() && start.at.After(l.until) {
		return moment{why: ReasonHours}, nil // from then on, other rules determine it
	}
	if !start.known {
		return start, nil // it takes nothing from others
	}
	for i, r := range l.rules {
		l.own[i] += r.cost(t)
		r.units += r.cost(t)
		if !l.stood {
			r.lines++
		}
	}
	if l.pool != nil {
		l.tasks++
		if !l.stood {
			l.pool.lines++
		}
	}
	l.stood, l.last = true, start
	return start, nil
}

// end returns the latest expected start, with all tasks taken into account.
func (o *outlook) end() (end moment) {
	for _, l := range o.lines {
		if !l.last.known {
			continue
		}
		if last := l.start(Task{}); last.known && (!end.known || last.at.After(end.at)) {
			end = last
		}
	}
	return end
}

// start returns the expected start of a task at the end of the scope's queue; for the zero Task, that of
// the last task in the queue.
func (l *lineSum) start(t Task) moment {
	start, from := l.last, l.seen
	if l.held.why != "" {
		if from = l.held.at; !l.held.known {
			return l.held
		}
	}
	if !start.known {
		start = momentAt(from, l.held.by, l.held.why)
	}
	timed := l.held.known
	var full *ruleSum // by runs of which nothing is known
	for i, r := range l.rules {
		if r.Paused || l.own[i]+r.cost(t) == 0 {
			continue // neither this task nor any before it takes units of the rule
		}
		wait := r.AdmitsIn(r.turn(l, i, t))
		switch {
		case !wait.Known() && r.why() == ReasonRun:
			full = r
			continue
		case !wait.Known():
			return moment{by: r.name, why: r.why()}
		}
		timed = timed || r.Algorithm != policy.Concurrency
		start.wait(r, from.Add(r.seen.Sub(l.seen)), wait)
	}
	if l.pool != nil {
		in := l.pool.admitsIn(l, t)
		if !in.Known() {
			return moment{by: l.pool.name, why: ReasonMember}
		}
		timed = true
		start.waitUntil(from.Add(l.pool.seen.Sub(l.seen)), in, l.pool.name, ReasonMember)
	}
	if start.known = timed || full == nil; !start.known {
		return moment{by: full.name, why: ReasonRun}
	}
	return start
}

// turn returns how many units the rule has given once it has given all those of a scope's queue and of a
// task after them. The other scopes take one turn for each turn of this one.
func (r *ruleSum) turn(l *lineSum, i int, t Task) int64 {
	mine := l.own[i] + r.cost(t)
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

// cost returns how many units of the rule a task takes; none for the zero Task.
func (r *ruleSum) cost(t Task) int64 {
	switch {
	case r.Algorithm == policy.Concurrency && t.Costs != nil:
		return 1
	case r.Algorithm == policy.Concurrency:
		return min(t.Cost, 1)
	case t.Costs != nil:
		return t.Costs.Of(r.Unit)
	}
	return t.Cost
}

// waste discards the rest of a window if a cost does not fit into it: no later task of the queue can
// use it before the first one. It returns the number of units discarded.
func (r *ruleSum) waste(cost int64) int64 {
	if cost == 0 || r.Units == 0 || r.Algorithm == policy.TokenBucket {
		return 0
	}
	laid, free := r.units, int64(0)
	if r.Algorithm == policy.FixedWindow || r.Algorithm == policy.Calendar {
		free = r.Free()
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
