package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// world runs one history on a server and holds every answer, and what is left in
// Redis, against the model. Its clock is the history's own; keys are made to
// expire by it too.
type world struct {
	rdb      redis.UniversalClient
	limiters []*Limiter // one for each version of the policy, over the same state
	version  int
	twinned  bool // keep a twin, in which what is given back was never taken
	behind   bool // starts are asked for with leeway, and far ahead
	punctual bool // no start ahead and no change makes a rule more careful than its definition

	now   int64 // the scripts' clock
	back  int64 // how far it has stepped back in all
	since int64 // and since it was last counted in pass
	pass  int   // how often it stepped back by more than a second

	ledgers   map[string]*ledger
	grants    map[int]*granted
	doomed    int             // grants that are going to be given back, and have not been
	wide      bool            // a start has been two fixed windows ahead
	last      *granted        // the grant charged last
	late      bool            // another has been charged between a grant and its giving back
	crowd     int64           // see crowded; 0 for never
	disturbed map[string]bool // the clock or the limits changed since the key was written

	keys    []string         // of rules, twins included
	expires map[string]int64 // by the history's clock
	synced  map[string]time.Duration
	stored  map[string]string
}

type granted struct {
	d       Decision
	p       *compiledScope
	start   int64 // by the clock
	attempt string
	pass    int
	doomed  bool
	over    bool
}

// fault is what a history found wrong. It travels as a panic.
type fault string

func fail(format string, args ...any) { panic(fault(fmt.Sprintf(format, args...))) }

func must(err error) {
	if err != nil && !errors.Is(err, redis.Nil) {
		fail("%v", err)
	}
}

var ctx = context.Background()

func newWorld(rdb redis.UniversalClient, prefix string, h *randomHistory) *world {
	w := &world{
		rdb: rdb, twinned: h.twinned, behind: h.late, punctual: h.steps && !h.ahead && !h.changes, now: epoch, ledgers: map[string]*ledger{}, grants: map[int]*granted{},
		disturbed: map[string]bool{}, expires: map[string]int64{}, synced: map[string]time.Duration{}, stored: map[string]string{},
	}
	for _, limits := range h.versions {
		policy, err := policy.New(policy.UnmatchedDeny, limits)
		must(err)
		l, err := New(rdb, policy, Config{Prefix: prefix, StartTolerance: -1, Unbatched: true})
		must(err)
		l.clock = func() string { return strconv.FormatInt(w.now, 10) }
		w.limiters = append(w.limiters, l)
	}
	for _, scope := range h.scopes {
		for i, key := range w.plan(scope).keys {
			if w.ledgers[key] == nil {
				w.ledgers[key] = &ledger{rule: w.plan(scope).bounds[i].Rule, last: epoch}
				w.keys = append(w.keys, key)
				if w.twinned {
					w.keys = append(w.keys, twinOf(key))
				}
			}
		}
	}
	for w.version = range w.limiters {
		for _, scope := range h.scopes {
			must(scriptOf(lua.Decide, w.plan(scope).kinds).Load(ctx, rdb).Err())
		}
	}
	w.version = 0
	return w
}

func (w *world) plan(scope string) *compiledScope {
	p, err := w.limiters[w.version].scopes.of(scope)
	must(err)
	return p
}

func (w *world) u() int64 { return w.now + w.back }

// pass lets time go by, or the clock step back.
func (w *world) advance(us int64) {
	w.now += us
	if us >= 0 {
		return
	}
	w.back -= us
	w.since -= us
	if w.since > 1e6 {
		w.pass, w.since = w.pass+1, 0
	}
	for _, l := range w.ledgers {
		l.stepBack(-us, w.now)
	}
	w.disturb()
}

func (w *world) disturb() {
	for _, key := range w.keys {
		w.disturbed[key] = true
	}
}

// stall is how long the test may stall between two commands without a key that is
// about to expire doing so. Redis counts whole milliseconds.
const stall = 200 * time.Millisecond

// sync makes the server's keys expire by the history's clock.
func (w *world) sync() {
	pipe := w.rdb.Pipeline()
	for key, at := range w.expires {
		switch {
		case at <= w.now:
			pipe.Del(ctx, key)
			delete(w.expires, key)
			delete(w.stored, key)
			if l := w.ledgers[key]; l != nil {
				l.expired(w.now, len(w.limiters) > 1)
			}
		case slices.Contains(w.keys, key):
			w.synced[key] = max(time.Duration(at-w.now+999)*time.Microsecond, stall)
			pipe.PExpire(ctx, key, w.synced[key])
		}
	}
	if pipe.Len() > 0 {
		_, err := pipe.Exec(ctx)
		must(err)
	}
}

// snapshot reads what the keys hold and when they expire. Since is when the call
// that may have changed them was sent.
func (w *world) snapshot(since time.Time, more ...string) map[string]string {
	keys := append(slices.Clone(w.keys), more...)
	pipe := w.rdb.Pipeline()
	for _, key := range keys {
		if strings.HasSuffix(key, ":held") {
			pipe.ZRangeWithScores(ctx, key, 0, -1)
		} else {
			pipe.Get(ctx, key)
		}
		pipe.PTTL(ctx, key)
	}
	replies, err := pipe.Exec(ctx)
	must(err)
	stalled := time.Since(since)
	out := map[string]string{}
	for i, key := range keys {
		switch r := replies[2*i].(type) {
		case *redis.StringCmd:
			if r.Err() == nil {
				out[key] = fmt.Sprintf("%x", r.Val())
			}
		case *redis.ZSliceCmd:
			if len(r.Val()) > 0 {
				out[key] = fmt.Sprint(r.Val())
			}
		}
		w.expiry(key, out[key], replies[2*i+1].(*redis.DurationCmd).Val(), stalled)
	}
	return out
}

func (w *world) expiry(key, content string, ttl, stalled time.Duration) {
	_, known := w.expires[key]
	same := ttl <= w.synced[key] && ttl >= w.synced[key]-stalled-2*time.Millisecond
	switch {
	case content == "":
		delete(w.expires, key)
	case ttl < 0:
		fail("%s has no TTL", key)
	case !known || !same:
		// What has passed meanwhile is no part of the history.
		w.expires[key] = w.now + (ttl + stalled).Microseconds()
		w.synced[key] = ttl
	}
}

type ask struct{ cost, at int64 }

// asOf is a plan as it is at another time.
func (w *world) asOf(p *compiledScope, at int64) *compiledScope {
	if !p.stale(time.UnixMicro(at)) {
		return p
	}
	return compileScope(w.limiters[w.version].scopes.keys, p.scope, p.bounds, 0, time.UnixMicro(at))
}

// peek asks what decide would say of a cost at a moment.
func (w *world) peek(p *compiledScope, asks ...ask) []Decision {
	pipe := w.rdb.Pipeline()
	script := scriptOf(lua.Decide, p.kinds)
	for _, a := range asks {
		script.EvalSha(ctx, pipe, append(slices.Clone(p.keys), p.attempt("nobody"), text(p.upstream)), w.asOf(p, a.at).args(a.cost, strconv.FormatInt(a.at, 10), "nobody", "?"+p.path)...)
	}
	replies, err := pipe.Exec(ctx)
	must(err)
	var out []Decision
	for _, r := range replies {
		reply, err := r.(*redis.Cmd).Int64Slice()
		must(err)
		out = append(out, fromReply(p, reply))
	}
	return out
}

func (w *world) do(o op) {
	w.advance(o.Pass)
	w.sync()
	switch g := w.grants[o.Of]; o.Do {
	case doDecide:
		w.decide(o)
	case doChange:
		if o.Version != w.version {
			w.version = o.Version
			w.disturb()
		}
	case doAgain:
		if g != nil && w.expires[g.attempt] > w.now {
			w.again(g)
		}
	case doGiveBack:
		if g != nil && !g.over && g.pass == w.pass {
			w.giveBack(g)
		}
	case doRenew, doRelease:
		if g != nil && !g.over && len(g.p.leases) > 0 {
			w.lease(o.Do, g)
		}
	}
}

func (w *world) decide(o op) {
	p := w.plan(o.Scope)
	cost := o.Cost
	for _, b := range p.bounds {
		if b.Rule.Algorithm != policy.Concurrency && b.Rule.Limit > 0 {
			cost = min(cost, b.Rule.Capacity())
		}
	}
	req := Request{Scope: o.Scope, Cost: cost, ID: fmt.Sprintf("op%d", o.N), MaxDelay: time.Duration(o.Ahead) * time.Microsecond}
	if w.behind {
		req.late, _ = o.late()
	}
	attempt := p.attempt(p.attemptID(&req))
	exact, punctual, want, alone := true, w.punctual, w.u(), make([]int64, len(p.keys))
	for i, key := range p.keys {
		l := w.ledgers[key]
		if _, ok := w.expires[key]; !ok {
			l.inexact = false
		}
		l.look(p.bounds[i].Rule, w.u(), w.now)
		exact = exact && w.exact(l)
		punctual = punctual && l.punctual(w.u())
		alone[i] = l.earliest(units(p, i, cost), w.u(), w.now)
		want = max(want, alone[i])
	}
	want = w.afterEnds(p, cost, want)
	sent := time.Now()
	d, err := w.limiters[w.version].Decide(ctx, req)
	must(err)
	after := w.snapshot(sent, attempt)
	if exact && o.Ahead == 0 && d.Allowed != (want == w.u()) {
		fail("allowed is %t; by the definition it may start in %dµs", d.Allowed, want-w.u())
	}
	if d.Allowed {
		w.allowed(o, p, req, d, attempt, after)
	} else {
		if exact && o.Ahead == 0 && d.RetryAfter != waitOf(want-w.u(), want) {
			fail("denied for %v; by the definition it may start in %dµs", d.RetryAfter, want-w.u())
		}
		for i, r := range d.Rules {
			if exact && o.Ahead == 0 && r.RetryAfter != waitOf(alone[i]-w.u(), alone[i]) {
				fail("%s denied for %v; by the definition it may start in %dµs", p.keys[i], r.RetryAfter, alone[i]-w.u())
			}
		}
		if most := waitOf(want-w.u()+w.delay(p), want); punctual && d.RetryAfter > most {
			fail("denied for %v; with the clock's steps back it should be at most %v", d.RetryAfter, most)
		}
		w.denied(p, req, d, attempt, after)
	}
	w.stored = after
	w.ttls(p, d, time.Since(sent))
	w.answers(o, p, cost, d)
}

// delay is the most that steps of the clock back may delay anybody by: no more than the steps,
// nor, but for leases, than docs/algorithms.md#clock-steps says of each rule.
func (w *world) delay(p *compiledScope) int64 {
	if w.back == 0 {
		return 0
	}
	var most, aligned int64
	for _, b := range p.bounds {
		r := b.Rule
		one, per := w.back, (r.Per + r.Margin).Microseconds()
		switch r.Algorithm {
		case policy.TokenBucket: // as long as it takes to drain what is full, and to fill: that long a step is waited for
			fills := r.Burst * per / max(r.Limit, 1)
			one = fills + min(max(fills, 1e6), 10e6)
		case policy.SlidingWindow:
			one = per + per/100 + 1e6
		case policy.FixedWindow:
			if r.OpensOnUse {
				one = per + 1e6
				break
			}
			one = 2 * per
			aligned += per // what is left of one that it had been in
		case policy.Calendar:
			length, _ := spanOf(r, w.now)
			one = 2*MaxDelayLimit.Microseconds() + length
			aligned += 2 * length
		case policy.Concurrency:
		}
		most = max(most, min(w.back, one))
	}
	return most + aligned
}

func units(p *compiledScope, i int, cost int64) int64 {
	if p.bounds[i].Rule.Algorithm == policy.Concurrency {
		return 1
	}
	return cost
}

func waitOf(us, moment int64) time.Duration {
	if moment == never {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

func (w *world) allowed(o op, p *compiledScope, req Request, d Decision, attempt string, after map[string]string) {
	if d.Wait > req.MaxDelay {
		fail("granted %v ahead, of %v", d.Wait, req.MaxDelay)
	}
	if d.Wait < req.late.from {
		fail("granted %v ahead, of %v at least", d.Wait, req.late.from)
	}
	if w.expires[attempt] == 0 || w.expires[attempt] > w.now+60e6 {
		fail("the attempt's record lasts %dµs", w.expires[attempt]-w.now)
	}
	for i, key := range p.keys {
		if after[key] == w.stored[key] {
			fail("%s was not charged", key)
		}
		l := w.ledgers[key]
		c := charge{id: d.Grant.id, units: units(p, i, req.Cost), start: w.u() + d.Wait.Microseconds(), byClock: w.now + d.Wait.Microseconds(), pass: l.pass}
		if _, late := o.late(); req.late.leeway > 0 && (l.rule.Algorithm == policy.SlidingWindow || l.rule.Algorithm == policy.TokenBucket) {
			c.start, c.byClock, l.inexact = c.start+late.Microseconds(), c.byClock+late.Microseconds(), true
		}
		if broken := l.take(c, w.u(), w.now); broken != "" {
			fail("%s: %s", key, broken)
		}
		per := max(l.rule.Per.Microseconds(), 1)
		w.wide = w.wide || l.rule.Algorithm == policy.FixedWindow && !l.rule.OpensOnUse && c.byClock/per > w.now/per+1
		w.left(key, l, d.Rules[i].Remaining)
		// Decisions at one moment are a µs apart, and so may be healed by it.
		w.disturbed[key] = w.back > 0
	}
	w.last = &granted{d: d, p: p, start: w.now + d.Wait.Microseconds(), attempt: attempt, pass: w.pass, doomed: o.Doomed}
	w.grants[o.N] = w.last
	if o.Doomed {
		w.doomed++
	} else if w.twinned {
		w.charge(p, req, w.now+d.Wait.Microseconds())
	}
}

// left holds the units that a rule says are left against the model.
func (w *world) left(key string, l *ledger, got int64) {
	l.forget(w.u())
	most := l.left(w.u(), w.now)
	if got > most || got < most && w.exact(l) {
		fail("%s says %d are left at %d, the model %d (exact: %t) of %+v", key, got, w.u(), most, w.exact(l), l.charges)
	}
}

// exact says whether a rule must answer as the definition does. Where the clock
// has stepped back it may be more careful, by the step.
func (w *world) exact(l *ledger) bool {
	return w.back == 0 && l.exact(w.u()) && (!w.wide || l.rule.Algorithm != policy.FixedWindow || l.rule.OpensOnUse)
}

// afterEnds moves a start on while it is in the last part of a window that opens on use: that admits nothing, although
// it has room now, and another rule may make the start wait until then.
func (w *world) afterEnds(p *compiledScope, cost, start int64) int64 {
	for before := int64(-1); before != start && start < never; {
		before = start
		for i, key := range p.keys {
			if l := w.ledgers[key]; l.rule.OpensOnUse {
				start = max(start, l.earliest(units(p, i, cost), start, w.now))
			}
		}
	}
	return start
}

func (w *world) denied(p *compiledScope, req Request, d Decision, attempt string, after map[string]string) {
	if after[attempt] != "" {
		fail("a denial left a record")
	}
	if d.RetryAfter <= 0 || d.RetryAfter <= req.MaxDelay && d.RetryAfter != Never && !hoping(p) && req.late.from == 0 {
		fail("denied for %v with a start allowed %v ahead", d.RetryAfter, req.MaxDelay)
	}
	mended := false
	for i, key := range p.keys {
		w.ledgers[key].seen(w.u(), w.now)
		w.left(key, w.ledgers[key], d.Rules[i].Remaining)
		if after[key] == w.stored[key] {
			w.ledgers[key].unclip()
			continue
		}
		if !w.disturbed[key] && !w.ledgers[key].lengthened(w.stored[key], after[key]) {
			fail("a denial changed %s from %s to %s", key, w.stored[key], after[key])
		}
		mended = true
		delete(w.disturbed, key)
	}
	// A TTL that is a hair too short may be mended one denial later.
	for tries := 3; mended; tries-- {
		w.sync()
		sent := time.Now()
		_, err := w.limiters[w.version].Decide(ctx, Request{Scope: req.Scope, Cost: req.Cost, ID: req.ID, MaxDelay: req.MaxDelay, late: req.late})
		must(err)
		again := w.snapshot(sent)
		if equalKeys(again, after, p.keys) {
			return
		}
		if tries == 1 {
			fail("denials go on changing what the first had mended:\n%v\n%v", after, again)
		}
		maps.Copy(after, again)
	}
}

func leased(p *compiledScope) bool { return len(p.leases) > 0 }

// hoping says that a wait may be longer than it is told: until a lease is not renewed,
// or until it is known what a period leaves over.
func hoping(p *compiledScope) bool {
	return leased(p) || slices.ContainsFunc(p.bounds, func(b policy.MatchedRule) bool { return b.Rule.Rollover > 0 })
}

func equalKeys(a, b map[string]string, keys []string) bool {
	for _, key := range keys {
		if a[key] != b[key] {
			return false
		}
	}
	return true
}

// ttls: every key outlasts its meaning, and not by much.
func (w *world) ttls(p *compiledScope, d Decision, stalled time.Duration) {
	for i, key := range p.keys {
		r := d.Rules[i]
		at, ok := w.expires[key]
		if !ok || r.ResetAfter == Never {
			continue
		}
		lasts := time.Duration(at-w.now) * time.Microsecond
		if lasts+stall < r.ResetAfter {
			fail("%s lasts %v and means something for %v", key, lasts, r.ResetAfter)
		}
		if rule := p.bounds[i].Rule; rule.Rollover > 0 {
			w.remembers(key, rule, lasts, stalled)
			continue
		}
		if len(w.limiters) == 1 && w.back == 0 && r.Algorithm != policy.Concurrency && lasts > r.ResetAfter+62*time.Second+stalled {
			fail("%s lasts %v and means something for %v only", key, lasts, r.ResetAfter)
		}
		if len(w.limiters) == 1 && w.back == 0 && lasts > r.ResetAfter+time.Minute+w.longest() {
			fail("%s lasts %v", key, lasts)
		}
	}
}

// remembers: where units roll over, a state outlasts the two periods after its own.
func (w *world) remembers(key string, rule policy.Rule, lasts, stalled time.Duration) {
	latest := int64(-1)
	for i := range w.ledgers[key].touched {
		latest = max(latest, i)
	}
	if latest < 0 || len(w.limiters) > 1 || w.back > 0 {
		return
	}
	means := us(beginsAt(rule, latest+3) - w.now)
	if lasts+stall < means || lasts > means+62*time.Second+stalled {
		fail("%s lasts %v and means something for %v", key, lasts, means)
	}
}

// longest is the longest that any rule of the history remembers anything.
func (w *world) longest() time.Duration {
	var longest time.Duration
	for _, l := range w.ledgers {
		if l.rule.Algorithm == policy.Calendar {
			length, _ := spanOf(l.rule, w.now)
			longest = max(longest, us(4*length))
		}
		longest = max(longest, l.rule.Per+l.rule.Margin, l.rule.Lease+time.Minute, l.rule.Per*time.Duration(l.rule.Burst))
	}
	return longest
}

// answers: what a decision says of later moments is true: the scripts are asked
// at those moments, if nobody else comes meanwhile.
func (w *world) answers(o op, p *compiledScope, cost int64, d Decision) {
	i := o.N % len(p.bounds)
	r, rule := d.Rules[i], p.bounds[i].Rule
	asks := []ask{{cost, w.now}, {cost, w.now}, {cost, w.now}, {cost, w.now}, {1, w.now}, {1, w.now}, {cost, w.now}, {cost, w.now}}
	after := func(k int, wait time.Duration, back int64) {
		if wait > 0 && wait != Never {
			asks[k].at += wait.Microseconds() - back
		}
	}
	after(0, d.RetryAfter, 0)
	after(1, d.RetryAfter, 1)
	after(2, r.RetryAfter, 0)
	after(3, r.RetryAfter, 1)
	after(4, r.ResetAfter, 0)
	after(5, r.ResetAfter, 1)
	asks[6].cost, asks[7].cost = max(r.Remaining, 1), r.Remaining+1
	got := w.peek(p, asks...)
	if w.back > 0 && strings.Contains(p.kinds, "K") {
		return // into which period the clock steps back, one that is open may be further off than its next
	}
	apart := w.behind && o.N%4 == 3 // it was asked for a start some way ahead, which may not be there while one at once is
	if !d.Allowed && d.RetryAfter != Never && !w.beyond(p, d.RetryAfter) && (!got[0].Allowed || got[1].Allowed && !apart) {
		fail("denied for %v: allowed then is %t, a microsecond before %t", d.RetryAfter, got[0].Allowed, got[1].Allowed)
	}
	if !d.Allowed && r.Limited != (r.RetryAfter != 0) || !d.Allowed && r.Limited && r.RetryAfter != Never && (got[2].Rules[i].Limited || !got[3].Rules[i].Limited) {
		fail("%s limited %t for %v: limited then is %t, a microsecond before %t", p.keys[i], r.Limited, r.RetryAfter, got[2].Rules[i].Limited, got[3].Rules[i].Limited)
	}
	if rule.Rollover > 0 || rule.Spread {
		return // more may be left than the limit, and not at once
	}
	if r.ResetAfter != Never && rule.Limit > 0 && (got[4].Rules[i].Remaining != rule.Capacity() || r.ResetAfter > 0 && got[5].Rules[i].Remaining == rule.Capacity() && rule.Margin == 0) {
		fail("%s resets in %v: %d left then, %d a microsecond before", p.keys[i], r.ResetAfter, got[4].Rules[i].Remaining, got[5].Rules[i].Remaining)
	}
	aligned := rule.Algorithm == policy.FixedWindow || rule.Algorithm == policy.Calendar
	if rule.Algorithm == policy.Concurrency || aligned && rule.Margin > 0 || w.back > 0 {
		return // costs do not count, the end of a window admits nothing, or a look heals
	}
	if slices.ContainsFunc(w.ledgers[p.keys[i]].charges, func(c charge) bool { return c.window > w.u() }) {
		return // what is left is of a window that was opened ahead, and has to begin
	}
	if r.Remaining > 0 && got[6].Rules[i].Limited || r.Remaining < rule.Capacity() && !got[7].Rules[i].Limited {
		fail("%s has %d left: limited for them is %t, for one more %t", p.keys[i], r.Remaining, got[6].Rules[i].Limited, got[7].Rules[i].Limited)
	}
}

// beyond says that a wait ends later than a calendar on the path is known: it may be longer.
func (w *world) beyond(p *compiledScope, wait time.Duration) bool {
	return slices.ContainsFunc(p.bounds, func(b policy.MatchedRule) bool {
		if b.Rule.Algorithm != policy.Calendar {
			return false
		}
		_, here := spanOf(b.Rule, w.now)
		_, then := spanOf(b.Rule, w.now+wait.Microseconds())
		return then > here+1
	})
}

// again: an attempt that is sent again is not charged again, and is answered with
// its first grant; one that was given back is over.
func (w *world) again(g *granted) {
	before := w.stored
	sent := time.Now()
	l := w.limiters[w.version]
	d, err := l.Decide(ctx, Request{Scope: g.d.Grant.scope, Cost: g.d.Grant.cost.each, ID: g.d.Grant.ID()})
	var tooMuch *policy.CostError
	if errors.As(err, &tooMuch) {
		return
	}
	must(err)
	after := w.snapshot(sent, g.attempt)
	if !equalKeys(before, after, g.p.keys) {
		for _, key := range g.p.keys {
			if before[key] != after[key] && !w.disturbed[key] {
				fail("asked again, %s changed from %s to %s", key, before[key], after[key])
			}
			delete(w.disturbed, key)
		}
	}
	w.stored = after
	for i, key := range g.p.keys {
		if !d.Allowed {
			w.ledgers[key].look(w.plan(g.d.Grant.scope).bounds[i].Rule, w.u(), w.now)
			w.ledgers[key].seen(w.u(), w.now)
		}
	}
	if d.Allowed == g.over {
		fail("asked again, allowed is %t; given back: %t", d.Allowed, g.over)
	}
	if d.Allowed && (d.Wait.Microseconds() != max(0, g.start-w.now) || !slices.Equal(d.Grant.places, g.d.Grant.places)) {
		fail("asked again, it starts in %v at %v; first at %d, %v", d.Wait, d.Grant.places, g.start-w.now, g.d.Grant.places)
	}
}

func (w *world) giveBack(g *granted) {
	l := w.limiters[w.version]
	sent := time.Now()
	must(l.Refund(ctx, g.d.Grant))
	first := w.snapshot(sent, g.attempt)
	must(l.Refund(ctx, g.d.Grant))
	w.stored = w.snapshot(sent, g.attempt)
	if !maps.Equal(first, w.stored) {
		fail("giving back twice changed\n%v\nto\n%v", first, w.stored)
	}
	g.over = true
	now := w.plan(g.d.Grant.scope)
	for i, key := range g.p.keys {
		l, rule := w.ledgers[key], now.bounds[i].Rule
		l.drop(g.d.Grant.id, w.now)
		if rule.Algorithm != l.rule.Algorithm {
			l.inexact = true // under another algorithm its units stand nowhere, though nobody has decided under it
		}
		l.trim(rule, w.u())
	}
	if !g.doomed {
		w.twinned = false // the twin took what is now given back
		return
	}
	w.doomed--
	w.late = w.late || w.last != g || g.d.Wait > 0
	w.crowd = max(w.crowd, w.crowded(g))
	p := w.plan(g.d.Grant.scope)
	d := w.peek(p, ask{1, w.now})[0]
	for i, key := range p.keys {
		if len(w.limiters) == 1 {
			w.left(key, w.ledgers[key], d.Rules[i].Remaining)
		}
	}
	if w.twinned && w.doomed == 0 {
		w.compare(p)
	}
}

// crowded returns the moment that a grant stands at, if it was not the first of its
// microsecond and that is still to come: until its bucket has been empty after that,
// it may be a hair less full than its twin.
func (w *world) crowded(g *granted) (until int64) {
	for i, b := range g.p.bounds {
		if b.Rule.Algorithm == policy.TokenBucket && g.d.Grant.places[i] > w.now {
			until = max(until, g.d.Grant.places[i])
		}
	}
	return until
}

func (*world) due(p *compiledScope) string { return p.queue[1].(string) } //nolint:forcetypeassert // it is one

func (w *world) lease(what int, g *granted) {
	keys, leases, _ := g.p.leaseKeys()
	sent := time.Now()
	if what == doRelease {
		must(scriptOf(lua.Release, "").Run(ctx, w.rdb, slices.Concat(keys, g.p.runKeys(), []string{w.due(g.p), text(g.p.queue[3])}), w.limiters[0].clock(), g.d.Grant.id, 1000).Err())
		for _, key := range keys {
			w.ledgers[key].drop(g.d.Grant.id, w.now)
		}
		w.snapshotRuns(g.p)
	} else {
		args := append([]any{w.limiters[0].clock(), g.d.Grant.id}, leases...)
		reply, err := scriptOf(lua.Renew, "").Run(ctx, w.rdb, keys, args...).Int64Slice()
		must(err)
		w.renewed(keys, g, reply)
	}
	w.stored = w.snapshot(sent)
	for _, key := range keys {
		if w.stored[key] != "" && w.expires[key] < w.now {
			fail("%s has expired with places held", key)
		}
	}
}

// snapshotRuns notes until when run times are kept.
func (w *world) snapshotRuns(p *compiledScope) {
	for _, key := range p.runKeys() {
		ttl, err := w.rdb.PTTL(ctx, key).Result()
		must(err)
		if w.expires[key] = w.now + ttl.Microseconds(); ttl > 24*time.Hour || ttl < 0 && w.rdb.Exists(ctx, key).Val() > 0 {
			fail("%s is kept for %s", key, ttl)
		}
	}
}

func (w *world) renewed(keys []string, g *granted, reply []int64) {
	held := true
	for _, key := range keys {
		l := w.ledgers[key]
		at := slices.IndexFunc(l.charges, func(c charge) bool { return c.id == g.d.Grant.id && c.ends > w.u() })
		held = held && at >= 0
	}
	if held && reply[0] == 0 || !held && reply[0] == 1 && w.back == 0 {
		fail("renewed: %v; by the model it holds its places: %t", reply, held)
	}
	if reply[0] == 0 {
		return
	}
	for i, key := range keys {
		l, lease := w.ledgers[key], g.p.bounds[g.p.leases[i]].Rule.Lease
		l.drop(g.d.Grant.id, w.now)
		l.charges = append(l.charges, charge{id: g.d.Grant.id, units: 1, start: w.u(), ends: w.u() + lease.Microseconds()})
	}
}

// done: nothing is left but what is known, and all of it expires.
func (w *world) done(prefix string) {
	keys, err := w.rdb.Keys(ctx, prefix+"*").Result()
	must(err)
	for _, key := range keys {
		if _, ok := w.expires[key]; !ok {
			fail("a key nobody knows of: %s", key)
		}
	}
	must(w.rdb.Del(ctx, append(keys, "none")...).Err())
}
