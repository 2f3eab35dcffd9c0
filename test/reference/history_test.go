package reference

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// bounded is a rule of the policy, for the limiter and for the model.
type bounded struct {
	policy.Rule
	level int // 0 is the provider
	model Rule
}

// history is a random history of one limiter, and the model beside it.
type history struct {
	ctx     context.Context
	rng     *rand.Rand
	clock   *redistest.Clock
	limiter *throttle.Limiter
	world   *World
	pad     int64
	rules   []bounded
	root    string
	spent   map[string][]Spent // by place
	runs    []run              // grants that may be given back
	keys    *expiring          // of histories in which keys expire by the clock, or nil
	ids     int
	counts  counts

	at         int64 // µs
	objections []objection
	log        []string // the last steps
}

// note keeps the last steps for whoever looks for a fault.
func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%d: ", h.at)+fmt.Sprintf(format, args...))
	h.log = h.log[max(0, len(h.log)-15):]
}

// counts are how many steps showed something.
type counts struct{ granted, ahead, probed, refunded int }

func (c *counts) add(o counts) {
	c.granted += o.granted
	c.ahead += o.ahead
	c.probed += o.probed
	c.refunded += o.refunded
}

// run is a grant whose units have not been given back.
type run struct {
	grant throttle.Grant
	req   throttle.Request
	id    string
	path  []Charge
	start int64
	at    int64 // when it was granted, by the history's clock
	came  time.Time
	over  bool // given back
}

// objection is what a check has against an answer.
type objection struct{ check, text string }

func (h *history) object(check, format string, args ...any) {
	h.objections = append(h.objections, objection{check, fmt.Sprintf(format, args...)})
}

// kind is a kind of history.
type kind struct {
	name    string
	rules   func(*history) []policy.Rule // one rule at the provider; nil for a random path
	ahead   bool
	refunds bool
	expires bool // keys expire by the history's clock, and attempts are asked for again
}

func pick[T any](h *history, list ...T) T { return list[h.rng.IntN(len(list))] }

func newHistory(ctx context.Context, rdb *redis.Client, root string, seed uint64, k kind) (*history, error) {
	h := &history{ctx: ctx, rng: rand.New(rand.NewPCG(seed, 20)), root: root, spent: map[string][]Spent{}}
	h.at = 1_700_000_000_000_000 + h.rng.Int64N(1_000_000_000_000)
	h.clock = redistest.NewClock(time.UnixMicro(h.at))
	rdb.AddHook(h.clock)
	h.pad = pick[int64](h, 0, 1000, 5000, 5000, 50_000)
	pad := time.Duration(h.pad) * time.Microsecond
	if h.pad == 0 {
		pad = -1
	}
	h.world = NewWorld(h.pad)
	if k.expires {
		h.keys = newExpiring(rdb, root, h.at)
	}
	h.draw(k)
	policy, err := h.policy()
	if err != nil {
		return nil, err
	}
	h.limiter, err = throttle.New(rdb, policy, throttle.Config{StartTolerance: pad, Unbatched: h.rng.IntN(2) == 0, Timeout: time.Minute})
	return h, err
}

const µs = time.Microsecond

func (h *history) policy() (*policy.Policy, error) {
	var levels [3][]policy.Rule
	for _, r := range h.rules {
		levels[r.level] = append(levels[r.level], r.Rule)
	}
	return policy.New(policy.UnmatchedAllow, map[string]policy.ScopeConfig{h.root: {
		Rules: levels[0], Scopes: map[string]policy.ScopeConfig{"*": {
			Rules: levels[1], Scopes: map[string]policy.ScopeConfig{"*": {Rules: levels[2]}},
		}},
	}})
}

// request is one that the limiter is asked for, as the limiter and as the model know it.
type request struct {
	throttle.Request
	path []Charge
}

// ask draws a request that its rules can admit.
func (h *history) ask(ahead bool) request {
	scope := pick(h, h.root+"/a/x", h.root+"/a/x", h.root+"/a/y", h.root+"/b/x", h.root+"/b", h.root)
	req := request{Request: throttle.Request{Scope: scope, Costs: policy.Costs{}}}
	costs := map[string]int64{"requests": h.cost(scope, "requests"), "tokens": pick[int64](h, 0, h.cost(scope, "tokens"))}
	if h.rng.IntN(8) == 0 {
		costs["requests"] = 0
	}
	if costs["requests"] == 0 && costs["tokens"] == 0 {
		costs["requests"] = 1
	}
	for unit, n := range costs {
		req.Costs[unit] = n
		if most := h.cap(scope, unit); n >= most { // it may be any more
			req.Costs[unit], costs[unit] = n+pick[int64](h, 0, 1, 1+h.rng.Int64N(100_000)), most
		}
	}
	parts := strings.Split(scope, "/")
	for level := range 3 {
		for _, r := range h.rules {
			if r.level != level || level >= len(parts) {
				continue
			}
			c := Charge{Place: strings.Join(parts[:level+1], "/") + ":" + r.Name, Rule: r.model, Units: 1}
			if r.Algorithm != policy.Concurrency {
				if c.Units = costs[orRequests(r.Unit)]; c.Units == 0 {
					continue
				}
			}
			req.path = append(req.path, c)
		}
	}
	if ahead && h.rng.IntN(2) == 0 {
		req.MaxDelay = time.Duration(pick[int64](h, 1, 1000, 250_000, 1+h.rng.Int64N(2_000_000), 60_000_000)) * µs
	}
	h.ids++
	req.ID = fmt.Sprintf("%s-%d", h.root, h.ids)
	return req
}

func orRequests(unit string) string {
	if unit == "" {
		return "requests"
	}
	return unit
}

// cost draws a cost that every rule of the scope can admit, most of them small.
func (h *history) cost(scope, unit string) int64 {
	most := int64(1000)
	for _, r := range h.rules {
		if r.Algorithm != policy.Concurrency && orRequests(r.Unit) == unit && r.level <= strings.Count(scope, "/") {
			most = min(most, max(1, r.model.Capacity()))
		}
	}
	return min(most, pick[int64](h, 1, 1, 1, 2, 3, 1+h.rng.Int64N(most), most, max(1, most/2)))
}

// cap is the most that a task of the scope is charged of a unit at first: docs/costs.md, "Estimates that are too large".
func (h *history) cap(scope, unit string) int64 {
	most := int64(policy.MaxLimit)
	for _, r := range h.rules {
		if r.Cap > 0 && orRequests(r.Unit) == unit && r.level <= strings.Count(scope, "/") {
			most = min(most, max(1, r.model.Capacity()*r.Cap/100))
		}
	}
	return most
}

// pass lets a random time pass: none, a little, as long as a window, up to an edge of one.
func (h *history) pass() {
	d := pick[int64](h, 0, 0, 1, 1000, 1+h.rng.Int64N(10_000), 1+h.rng.Int64N(1_000_000))
	r := h.rules[h.rng.IntN(len(h.rules))].model
	if r.Per > 0 {
		d = pick(h, d, d, r.Per/max(1, r.Limit), r.Per, 1+h.rng.Int64N(r.Per), r.Per/100, h.edge(r.Per))
	}
	if r.OnUse && len(h.runs) > 0 { // an edge of a window that one of them has opened
		slack := min(h.pad+r.Margin, r.Per/2)
		end := h.runs[h.rng.IntN(len(h.runs))].start + r.Per + slack
		d = pick(h, d, max(0, end-h.at+pick[int64](h, -1, 0, 1, -2*slack, -2*slack-1, 1-2*slack)))
	}
	if r.Begins != nil {
		_, end := r.Begins(h.at)
		d = pick(h, d, d, d, h.rng.Int64N(end-h.at), max(0, end-h.at+pick[int64](h, -1, 0, 1)))
	}
	if r.Lease > 0 {
		d = pick(h, d, h.rng.Int64N(r.Lease))
	}
	if h.rng.IntN(50) == 0 {
		d = max(d, 3*86_400_000_000) // long after
	}
	h.move(h.at + d)
}

// edge is how far it is to the end of a window since the epoch, give or take a microsecond or a pad.
func (h *history) edge(per int64) int64 {
	return max(0, per-h.at%per+pick[int64](h, -1, 0, 1, -h.pad, -h.pad-1, 1-h.pad))
}

func (h *history) move(to int64) {
	h.at = to
	h.clock.Set(time.UnixMicro(to))
	if h.keys != nil {
		h.keys.expire(h)
	}
}

// step takes one step, and checks what is answered.
func (h *history) step(k kind) {
	h.pass()
	if k.expires && len(h.runs) > 0 && h.rng.IntN(6) == 0 {
		h.again()
		return
	}
	if k.refunds && len(h.runs) > 0 && h.rng.IntN(4) == 0 {
		h.refund()
		return
	}
	req := h.ask(k.ahead)
	d, a, ok := h.decide(req, true)
	if ok && !d.Allowed && a.Start != Never && h.rng.IntN(2) == 0 {
		h.probe(req, d)
	}
}

// decide asks both, takes or looks, and compares.
func (h *history) decide(req request, take bool) (throttle.Decision, Answer, bool) {
	look := h.limiter.Peek
	if take {
		look = h.limiter.Decide
	}
	d, err := look(h.ctx, req.Request)
	if err != nil {
		h.object("error", "%s for %v: %v", req.Scope, req.Costs, err)
		return d, Answer{}, false
	}
	h.note("%s %v ahead %s, taken %v: granted %v, wait %s, retry %s", req.Scope, req.Costs, req.MaxDelay, take, d.Allowed, d.Wait, d.RetryAfter)
	a := h.world.Decide(h.at, req.MaxDelay.Microseconds(), req.ID, req.path, take)
	h.compare(req, d, a)
	if h.keys != nil {
		h.keys.see(h, req, d, a)
	}
	if take && d.Allowed {
		h.grant(req, d)
	}
	return d, a, true
}

// grant notes what was granted, for the judge.
func (h *history) grant(req request, d throttle.Decision) {
	h.counts.granted++
	start := h.at + d.Wait.Microseconds()
	if start > h.at {
		h.counts.ahead++
	}
	for _, c := range req.path {
		h.spent[c.Place] = append(h.spent[c.Place], Spent{start, start + c.Rule.Lease, c.Units})
	}
	h.runs = append(h.runs, run{d.Grant, req.Request, req.ID, req.path, start, h.at, time.Now(), false})
}

// compare holds an answer against the model's: what is granted that the pages do not admit is over,
// what is denied that they admit is needless.
func (h *history) compare(req request, d throttle.Decision, a Answer) {
	switch {
	case d.Allowed && !a.Allowed:
		h.object("over", "%v was granted; the model says in %d µs", req.Costs, a.Start-h.at)
	case !d.Allowed && a.Allowed:
		h.object("needless", "%v was denied for %s; the model grants it in %d µs", req.Costs, d.RetryAfter, a.Start-h.at)
	case d.Allowed && d.Wait.Microseconds() != a.Start-h.at:
		h.object("start", "%v starts in %s; the model says %d µs", req.Costs, d.Wait, a.Start-h.at)
	case !d.Allowed && micros(d.RetryAfter) != until(a.Start, h.at):
		h.object("retry", "%v may come back in %s; the model says %d µs", req.Costs, d.RetryAfter, until(a.Start, h.at))
	}
	if len(d.Rules) != len(req.path) {
		h.object("rules", "%d rules answered, of %d", len(d.Rules), len(req.path))
		return
	}
	for i, r := range d.Rules {
		want := a.Rules[i]
		if r.Limited != want.Limited {
			h.object("limited", "rule %d: limited %v; the model says %v", i, r.Limited, want.Limited)
		}
		if micros(r.RetryAfter) != until(want.Start, h.at) {
			h.object("rule retry", "rule %d: retry %s; the model says %d µs", i, r.RetryAfter, until(want.Start, h.at))
		}
		if r.Remaining != want.Remaining {
			h.object("remaining", "rule %d: %d remain; the model says %d", i, r.Remaining, want.Remaining)
		}
		if micros(r.ResetAfter) != until(want.Reset, h.at) {
			h.object("reset", "rule %d: reset %s; the model says %d µs", i, r.ResetAfter, until(want.Reset, h.at))
		}
	}
}

func micros(d time.Duration) int64 {
	if d == throttle.Never {
		return Never
	}
	return d.Microseconds()
}

func until(t, now int64) int64 {
	if t == Never {
		return Never
	}
	return t - now
}

// probe holds a wait to its word: a microsecond before it the same request is denied, and at it it is granted. It needs no model.
func (h *history) probe(req request, d throttle.Decision) {
	h.counts.probed++
	denied := h.at
	wait := micros(d.RetryAfter)
	req.MaxDelay = 0
	req.ID += "'"
	for _, p := range []struct {
		at      int64
		take    bool
		granted bool
	}{{denied + wait - 1, false, false}, {denied + wait, true, true}} {
		if p.at < h.at || wait == Never {
			h.object("exact", "a wait of %s", d.RetryAfter)
			return
		}
		h.move(p.at)
		got, _, ok := h.decide(req, p.take)
		if ok && got.Allowed != p.granted {
			h.object("exact", "told to come back in %d µs, and at %+d of that granted is %v (wait %s)", wait, p.at-denied-wait, got.Allowed, got.RetryAfter)
		}
	}
}

// refund gives one of the last runs back.
func (h *history) refund() {
	i := len(h.runs) - 1 - h.rng.IntN(min(len(h.runs), 5))
	r := h.runs[i]
	if r.over {
		return
	}
	h.runs = append(h.runs[:i:i], h.runs[i+1:]...)
	if h.world.Vague(h.at, r.path, r.start) {
		return
	}
	if time.Since(r.came) > time.Duration(h.at-r.at)*µs+time.Second/4 {
		return // this machine was slow: a process that knows of more time than Redis shows takes that for a step back
	}
	h.counts.refunded++
	for range 2 { // the second does nothing
		if err := h.limiter.Refund(h.ctx, r.grant); err != nil {
			h.object("error", "giving back: %v", err)
		}
	}
	if h.keys != nil {
		h.keys.learn(h)
		r.over = true
		h.runs = append(h.runs, r)
	}
	h.note("given back what started at %d", r.start)
	h.world.Refund(h.at, r.id, r.path)
	for _, c := range r.path {
		list := h.spent[c.Place]
		for j := range list {
			if list[j].Start == r.start && list[j].Units == c.Units && list[j].End == r.start+c.Rule.Lease {
				if c.Rule.Algorithm == Concurrency {
					list[j].End = min(list[j].End, max(r.start, h.at)) // a lease may have ended before
				} else {
					list[j].Units = 0
				}
				break
			}
		}
	}
}

// judge holds all that was granted against the rules' bounds alone.
func (h *history) judge() {
	for place, list := range h.spent {
		for _, r := range h.rules {
			if !strings.HasSuffix(place, ":"+r.Name) {
				continue
			}
			if fault := Over(r.model, list); fault != "" {
				h.object("bound", "%s: %s", place, fault)
			}
		}
	}
}

// describe says what a history was, for whoever looks for the fault.
func (h *history) describe() string {
	var s strings.Builder
	fmt.Fprintf(&s, "pad %d µs, rules", h.pad)
	for _, r := range h.rules {
		fmt.Fprintf(&s, "\n  level %d: %s", r.level, limitsyaml.FormatRule(r.Rule))
	}
	for _, line := range h.log {
		s.WriteString("\n  " + line)
	}
	return s.String()
}
