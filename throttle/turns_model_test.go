package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// The model of those who wait: what lines, rounds and turns promise, whatever way
// they are kept. Grants are held against the ledgers of model_test.go.

// Where a waiter is.
type stage int

const (
	fresh    stage = iota
	parked         // it was told that it waits
	straight       // it was told that it goes straight to its queue
	released       // Wake has named it, and it has not come
	running        // granted
	astray         // it may be anywhere, and may come or not
	gone
)

// waiter is one task.
type waiter struct {
	Place
	priority int
	stage    stage
	order    int64 // of first asking, in its scope and priority
	passed   bool  // it was put elsewhere than its order says, by news or a changed limit
	placed   int64 // when it was put at the end of its line
	left     int64 // when it was released last
	asks     int
	d        Decision
	pass     int
}

func (t *waiter) key() string { return t.ticket() }

// turnsWorld runs one history of those who wait.
type turnsWorld struct {
	rdb      redis.UniversalClient
	last     *lastCall
	limiters []*Limiter
	version  int
	h        *turnsHistory

	now, back int64
	pass      int
	awake     int64 // when Wake was called last
	disturbed bool  // the clock has stepped, or limits have changed, for good

	ledgers map[string]*ledger
	tasks   []*waiter
	news    WakeRequest
	order   int64
	seen    standings
	fresh   bool     // seen is what Redis holds
	keys    []string // of those who wait
	sent    string   // the last script call

	most       int  // of the last Wake
	unfinished bool // it wanted to be called again at once
}

func newTurnsWorld(rdb redis.UniversalClient, last *lastCall, prefix string, h *turnsHistory) *turnsWorld {
	w := &turnsWorld{rdb: rdb, last: last, h: h, now: epoch, awake: epoch, ledgers: map[string]*ledger{}, news: WakeRequest{Provider: "p"}}
	for _, limits := range h.versions {
		policy, err := NewPolicy(UnmatchedDeny, limits)
		must(err)
		l, err := New(rdb, policy, Config{Prefix: prefix, Pad: -1, Unbatched: true})
		must(err)
		l.clock = func() string { return strconv.FormatInt(w.now, 10) }
		w.limiters = append(w.limiters, l)
	}
	for _, scope := range h.scopes {
		p := w.plan(scope)
		for i, key := range p.keys {
			if w.ledgers[key] == nil {
				w.ledgers[key] = &ledger{rule: p.bounds[i].Rule, last: epoch}
			}
		}
	}
	for _, key := range w.plan(h.scopes[0]).turns[1:] {
		w.keys = append(w.keys, text(key))
	}
	for _, scope := range h.scopes {
		w.keys = append(w.keys, text(w.plan(scope).turns[0]))
	}
	last.keys, last.asked = w.keys, nil
	w.look()
	return w
}

func (w *turnsWorld) limiter() *Limiter { return w.limiters[w.version] }

func (w *turnsWorld) plan(scope string) *plan {
	p, err := w.limiter().plans.of(scope)
	must(err)
	return p
}

func (w *turnsWorld) u() int64 { return w.now + w.back }

func (w *turnsWorld) advance(us int64) {
	w.now += us
	if us >= 0 {
		return
	}
	w.back -= us
	w.disturbed = true
	if w.back > 60e6 {
		w.pass++
	}
}

// lines is what Redis holds of those who wait.
type standings struct {
	line  map[string][]string // tickets in their order, by scope
	due   map[string]int64    // when to look, by rule
	round []seat
	out   map[string]string // tickets and when they left, by scope, a zero byte and ticket
	at    map[string]string
}

type seat struct {
	rule, rank, scope, member string
}

// linesAsked is all that is kept of those who wait, asked for behind whatever is in the
// pipe: the keys that a provider has one of each, the lines, and now and then TTLs.
type linesAsked struct {
	due   *redis.ZSliceCmd
	round *redis.StringSliceCmd
	out   *redis.MapStringStringCmd
	at    *redis.MapStringStringCmd
	lines []*redis.StringSliceCmd
	ttls  []*redis.DurationCmd
}

func askLines(pipe redis.Pipeliner, keys []string, ttls bool) *linesAsked {
	a := &linesAsked{
		due: pipe.ZRangeWithScores(ctx, keys[0], 0, -1), round: pipe.ZRange(ctx, keys[1], 0, -1),
		out: pipe.HGetAll(ctx, keys[2]), at: pipe.HGetAll(ctx, keys[3]),
	}
	for _, line := range keys[4:] {
		a.lines = append(a.lines, pipe.ZRange(ctx, line, 0, -1))
	}
	for i := 0; ttls && i < len(keys); i++ {
		a.ttls = append(a.ttls, pipe.PTTL(ctx, keys[i]))
	}
	return a
}

// called notes a call that may change who waits.
func (w *turnsWorld) called() {
	w.h.counts.calls++
	w.fresh = false
}

// look reads who waits, unless that is known.
func (w *turnsWorld) look() {
	if !w.fresh {
		w.seen, w.fresh = w.read(), true
	}
}

func (w *turnsWorld) read() standings {
	w.h.counts.reads++
	a := w.last.asked
	if a == nil {
		pipe := w.rdb.Pipeline()
		a = askLines(pipe, w.keys, true)
		_, err := pipe.Exec(ctx)
		must(err)
	}
	must(a.due.Err())
	l := standings{line: map[string][]string{}, due: map[string]int64{}, out: a.out.Val(), at: a.at.Val()}
	for _, z := range a.due.Val() {
		l.due[z.Member.(string)] = int64(z.Score) //nolint:forcetypeassert // members are texts
	}
	for _, member := range a.round.Val() {
		rule, rest, _ := strings.Cut(member, "\x00")
		l.round = append(l.round, seat{rule, rest[:10], rest[10:], member})
	}
	for i, line := range a.lines {
		if len(line.Val()) > 0 {
			l.line[scopePath(w.h.scopes[i])] = line.Val()
		}
	}
	for i, ttl := range a.ttls {
		if ttl.Val() == -1 {
			fail("%s has no TTL", w.keys[i])
		}
	}
	return l
}

// sound: everyone is in one place, every line has one seat, every round a time,
// and the sums are those of the lines.
func (w *turnsWorld) sound() {
	w.look()
	l := w.seen
	seats := map[string]string{}
	for _, s := range l.round {
		if seats[s.scope] != "" {
			fail("%q has two seats: %q and %q", s.scope, seats[s.scope], s.member)
		}
		seats[s.scope] = s.member
		if _, ok := l.due[s.rule]; !ok {
			fail("the round of %s has a seat and no time to look at it", s.rule)
		}
		if l.at["S"+s.scope] != s.member {
			fail("the seat of %q is %q, and noted as %q", s.scope, s.member, l.at["S"+s.scope])
		}
		if len(l.line[s.scope]) == 0 {
			fail("a seat for the empty line of %q", s.scope)
		}
		first := w.find(readPlace("p"+s.scope, l.line[s.scope][0]))
		if band := int(s.rank[0])<<16 + int(s.rank[1])<<8 + int(s.rank[2]); band > 1<<20-first.priority && !first.passed {
			fail("%q sits for priority %d, and its first has %d", s.scope, 1<<20-band, first.priority)
		}
	}
	where := map[string]string{}
	for field := range l.out {
		scope, ticket, _ := strings.Cut(field, "\x00")
		where[scope+" "+ticket] = "out"
	}
	units, of := map[string]int64{}, map[string]int64{}
	for _, scope := range w.h.scopes {
		path := scopePath(scope)
		line := l.line[path]
		if len(line) > 0 && seats[path] == "" {
			fail("nobody sits for the line of %s: %v", scope, line)
		}
		var sum int64
		for _, ticket := range line {
			sum += max(1, readPlace(scope, ticket).cost)
			if was := where[path+" "+ticket]; was != "" {
				fail("%s of %s is in line, and %s", ticket, scope, was)
			}
			where[path+" "+ticket] = "line"
		}
		w.sumIs("L"+path, sum)
		for _, rule := range w.plan(scope).keys {
			name := strings.TrimPrefix(rule, w.plan(scope).provider)
			units[name] += sum
			of[name] += min(1, int64(len(line)))
		}
	}
	for name := range units {
		w.sumIs("U"+name, units[name])
		w.sumIs("N"+name, of[name])
	}
	w.placed(where)
}

func (w *turnsWorld) sumIs(field string, want int64) {
	if got, _ := strconv.ParseInt(w.seen.at[field], 10, 64); got != want {
		fail("%s is %q, and should be %d", field, w.seen.at[field], want)
	}
}

// placed holds where everybody is against the model.
func (w *turnsWorld) placed(where map[string]string) {
	for _, t := range w.tasks {
		key := scopePath(t.Scope) + " " + t.key()
		is := where[key]
		delete(where, key)
		switch t.stage {
		case parked:
			if is != "line" {
				fail("%s %s was told to wait, and is %q", t.Scope, t.key(), is)
			}
		case released:
			if is != "out" {
				fail("%s %s was released and has not come, and is %q", t.Scope, t.key(), is)
			}
		case running, gone, fresh:
			if is != "" {
				fail("%s %s does not wait, and is in %q", t.Scope, t.key(), is)
			}
		}
	}
	for key := range where {
		fail("nobody has heard of %s", key)
	}
}

// lastCall is a hook that keeps the last call of a script, and reads who waits in the
// round trip of each.
type lastCall struct {
	args  []any
	rdb   redis.UniversalClient
	keys  []string
	asked *linesAsked
	calls int
}

// watched adds the hook to a client.
func watched(rdb redis.UniversalClient) *lastCall {
	last := &lastCall{rdb: rdb}
	rdb.AddHook(last)
	return last
}

func (c *lastCall) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *lastCall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		c.asked = nil
		if args[0] != "evalsha" {
			return next(ctx, cmd)
		}
		c.args = slices.Clone(args)
		pipe := c.rdb.Pipeline()
		must(pipe.Process(ctx, cmd))
		c.calls++
		asked := askLines(pipe, c.keys, c.calls%8 == 0)
		_, _ = pipe.Exec(ctx) // each has its error
		c.asked = asked
		return cmd.Err()
	}
}

func (c *lastCall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ask has a task ask for its start.
func (w *turnsWorld) ask(t *waiter, how standing, ahead, near int64) {
	w.look()
	w.called()
	p := w.plan(t.Scope)
	for i, key := range p.keys {
		w.ledgers[key].look(p.bounds[i].Rule, w.u(), w.now, w.pass)
	}
	t.asks++
	req := Request{
		Scope: t.Scope, Cost: t.cost, ID: fmt.Sprintf("%s.%d", t.Ticket, t.asks), Ahead: us(ahead), Near: us(near),
		Ticket: t.Ticket, Priority: t.priority, Lead: us(w.h.lead), standing: how,
	}
	d, err := w.limiter().Decide(ctx, req)
	var tooMuch *CostError
	if errors.As(err, &tooMuch) {
		t.stage = astray // nothing was asked of Redis
		return
	}
	must(err)
	w.sent = "turn"
	if !d.Allowed {
		w.denied(t, how, p, d)
		return
	}
	w.granted(t, how, p, req, d)
}

func (w *turnsWorld) granted(t *waiter, how standing, p *plan, req Request, d Decision) {
	mine := how != comes || w.seen.out[scopePath(t.Scope)+"\x00"+t.key()] != ""
	switch {
	case how == rejoins:
		fail("%s only wanted its place back, and was granted", t.key())
	case mine && d.Wait > req.Ahead, !mine && d.Wait > req.Near:
		fail("%s was granted %v ahead, of %v and %v", t.key(), d.Wait, req.Ahead, req.Near)
	case !mine && len(w.seen.line[scopePath(t.Scope)]) > 0 && w.now-w.awake < 1e6 && !w.disturbed:
		fail("%s was granted before %v, who wait", t.key(), w.seen.line[scopePath(t.Scope)])
	}
	for i, key := range p.keys {
		start := d.Wait.Microseconds()
		c := charge{id: req.ID, units: units(p, i, req.Cost), start: w.u() + start, byClock: w.now + start, pass: w.pass}
		if i := w.ledgers[key].rule.Algorithm; i == Concurrency {
			c.units = 1
		}
		if broken := w.ledgers[key].take(c, w.u(), w.now); broken != "" {
			fail("%s: %s", key, broken)
		}
	}
	t.stage, t.d, t.pass = running, d, w.pass
}

func (w *turnsWorld) denied(t *waiter, how standing, p *plan, d Decision) {
	for _, key := range p.keys {
		w.ledgers[key].seen(w.u(), w.now)
	}
	if !d.Turn.Waits {
		fail("%s was denied and does not wait", t.key())
	}
	if w.seen.out[scopePath(t.Scope)+"\x00"+t.key()] != "" {
		w.h.counts.back++
	}
	w.stand(t, how)
}

// stand notes that a task stands in line: where it stood, or at the end, or, if
// its turn has come, before all others.
func (w *turnsWorld) stand(t *waiter, how standing) {
	path := scopePath(t.Scope)
	stood := slices.ContainsFunc(w.seen.line[path], func(ticket string) bool { return ticket == t.key() })
	switch {
	case stood:
	case (how != comes || w.seen.out[path+"\x00"+t.key()] != "") && w.others(t):
		w.order++
		t.order, t.passed = -w.order, w.away(t)
	default:
		w.order++
		t.order, t.passed, t.placed = w.order, w.justLeft(t), w.now
	}
	t.stage = parked
}

// justLeft says whether one that a task goes behind may come back to a place that
// is no earlier: places go by the clock, in ms, and run ahead of it by one for each
// task that comes in the same.
func (w *turnsWorld) justLeft(t *waiter) bool {
	return slices.ContainsFunc(w.tasks, func(o *waiter) bool {
		return o != t && o.Scope == t.Scope && o.priority == t.priority && o.placed > 0 &&
			(o.stage == released || o.stage == astray) && w.now-o.placed <= 1000*int64(len(w.tasks))
	})
}

// others says whether others of its priority stand in a task's line.
func (w *turnsWorld) others(t *waiter) bool {
	return slices.ContainsFunc(w.seen.line[scopePath(t.Scope)], func(ticket string) bool {
		return w.find(readPlace(t.Scope, ticket)).priority == t.priority
	})
}

// away says whether others of a task's scope are on their way, who may yet come
// back to their places at the front.
func (w *turnsWorld) away(t *waiter) bool {
	for field := range w.seen.out {
		if scope, ticket, _ := strings.Cut(field, "\x00"); scope == scopePath(t.Scope) && ticket != t.key() {
			return true
		}
	}
	return false
}

// giveBack takes a grant back.
func (w *turnsWorld) giveBack(t *waiter) {
	w.called()
	must(w.limiter().GiveBack(ctx, t.d.Grant))
	now := w.plan(t.Scope)
	for i, key := range now.keys {
		w.ledgers[key].drop(t.d.Grant.id, t.d.Grant.cost)
		w.ledgers[key].trim(now.bounds[i].Rule, w.u())
	}
	t.stage, w.sent = gone, "give back"
}

// finish ends a run: its places are freed.
func (w *turnsWorld) finish(t *waiter) {
	p := w.plan(t.Scope)
	t.stage = gone
	if len(p.leases) == 0 {
		return
	}
	w.called()
	keys, _, _ := p.leaseKeys()
	must(scriptOf(lua.Release, "").Run(ctx, w.rdb, append(slices.Clone(keys), text(p.turns[1])), w.limiter().clock(), t.d.Grant.id).Err())
	for _, key := range keys {
		w.ledgers[key].drop(t.d.Grant.id, 1)
	}
	w.sent = "release"
}

func (w *turnsWorld) find(p Place) *waiter {
	for _, t := range w.tasks {
		if t.Ticket == p.Ticket {
			return t
		}
	}
	fail("nobody has heard of %v", p)
	return nil
}

// wake calls Wake, with the news, and returns those released.
func (w *turnsWorld) wake(most int, spread int64, all bool) Woken {
	w.look()
	w.called()
	req := w.news
	req.Lead, req.Spread, req.Most, req.All = us(w.h.lead), us(spread), most, all
	w.news = WakeRequest{Provider: "p"}
	before := w.seen
	w.tooDear()
	woken, err := w.limiter().Wake(ctx, req)
	must(err)
	w.sent, w.awake, w.unfinished = "wake", w.now, woken.Next <= 0
	w.most = most
	if len(woken.Released) > most {
		fail("%d were released, of %d at most", len(woken.Released), most)
	}
	named := map[string]bool{}
	for _, p := range woken.Released {
		t := w.find(p)
		if named[p.Ticket] || t.stage == running || t.stage == gone {
			fail("%s was released, twice, or though it does not wait", p.Ticket)
		}
		named[p.Ticket] = true
		t.passed = t.passed || w.disturbed && t.stage != parked // its place was by another clock
		t.stage, t.left = released, w.now
	}
	w.heeded(req, named)
	w.late(named)
	w.inOrder(before, woken.Released, named)
	return woken
}

// tooDear: a task that a changed limit can't admit is passed over.
func (w *turnsWorld) tooDear() {
	for _, t := range w.tasks {
		t.passed = t.passed || w.neverPasses(t)
	}
}

// neverPasses says whether a task costs more than one of its rules ever admits.
func (w *turnsWorld) neverPasses(t *waiter) bool {
	return slices.ContainsFunc(w.plan(t.Scope).bounds, func(b Bound) bool {
		return b.Rule.Algorithm != Concurrency && b.Rule.Limit > 0 && t.cost > b.Rule.Capacity()
	})
}

// heeded: who came too early stands in line again, and who runs is forgotten in a
// while, whatever an answer that was sent again has said of them meanwhile.
func (w *turnsWorld) heeded(req WakeRequest, named map[string]bool) {
	for _, p := range slices.Concat(req.NotYet, req.Running) {
		if t := w.find(p); !named[t.Ticket] && (t.stage == straight || t.stage == released) {
			t.passed, t.stage = true, astray
		}
	}
}

// late: what was released and has not come in time is in line again, and what was
// known to run is forgotten.
func (w *turnsWorld) late(named map[string]bool) {
	for _, t := range w.tasks {
		if (t.stage == released || t.stage == straight) && !named[t.Ticket] && t.left+outStays <= w.now {
			t.stage = map[stage]stage{released: parked, straight: astray}[t.stage]
		}
		if w.disturbed && (t.stage == released || t.stage == parked) && !named[t.Ticket] {
			t.stage = astray
		}
	}
}

// outStays is how long who was released counts as on its way.
const outStays = 3e6

// inOrder: within a scope those go first that have the higher priority, and then
// those that asked first.
func (w *turnsWorld) inOrder(before standings, woken []Place, named map[string]bool) {
	for i, p := range woken {
		t := w.find(p)
		for _, other := range woken[i+1:] {
			w.goesFirst(t, w.find(other), "released")
		}
		for _, ticket := range before.line[scopePath(t.Scope)] {
			if other := w.find(readPlace(t.Scope, ticket)); !named[other.Ticket] && other.stage == parked {
				w.goesFirst(t, other, "left in line")
			}
		}
	}
}

func (w *turnsWorld) goesFirst(a, b *waiter, how string) {
	if a.Scope != b.Scope || a.passed || b.passed {
		return
	}
	if order := cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.order, b.order)); order > 0 {
		fail("%s (priority %d, asked %d) went before %s (priority %d, asked %d), which was %s",
			a.key(), a.priority, a.order, b.key(), b.priority, b.order, how)
	}
}

// lineUp gives places to tasks that are about to be enqueued.
func (w *turnsWorld) lineUp(tasks []*waiter, near int64) {
	w.look()
	w.called()
	var asks []Ask
	for _, t := range tasks {
		asks = append(asks, Ask{Scope: t.Scope, Ticket: t.Ticket, Cost: t.cost, Priority: t.priority})
	}
	placed, err := w.limiter().LineUp(ctx, asks, us(w.h.lead), us(near))
	must(err)
	w.sent = "line up"
	joined := false
	for i, p := range placed {
		t := tasks[i]
		switch {
		case p.Err != nil:
			t.stage = gone
		case p.Waits:
			w.stand(t, comes)
			joined = true
		default:
			t.stage, t.left = straight, w.now
			if joined && len(w.seen.line[scopePath(t.Scope)]) > 0 {
				fail("%s goes straight to its queue, and others wait", t.key())
			}
		}
	}
}

// resend sends the last call once more: it changes nothing.
func (w *turnsWorld) resend() {
	w.look()
	before := w.seen
	reply, err := w.rdb.Do(ctx, w.last.args...).Result()
	must(err)
	w.fresh = false
	w.look()
	after := w.seen
	if w.sent == "wake" && w.again(reply) {
		return
	}
	for _, scope := range w.h.scopes {
		if was, is := slices.Sorted(slices.Values(before.line[scopePath(scope)])), slices.Sorted(slices.Values(after.line[scopePath(scope)])); !slices.Equal(was, is) {
			fail("%s was sent again: the line of %s was %v and is %v", w.sent, scope, was, is)
		}
	}
	if was, is := slices.Sorted(maps.Keys(before.out)), slices.Sorted(maps.Keys(after.out)); !slices.Equal(was, is) {
		fail("%s was sent again: %q were out, and now %q (%v)", w.sent, was, is, reply)
	}
	w.h.counts.resent[w.sent]++
}

// again notes who was released by a Wake that was sent again, and says whether it
// may have been others than before: it wanted to be called again.
func (w *turnsWorld) again(reply any) bool {
	woken, err := readWake("p", reply.([]any)) //nolint:forcetypeassert // a list
	must(err)
	if len(woken.released) > w.most {
		fail("wake was sent again: %d were released, of %d at most", len(woken.released), w.most)
	}
	if w.unfinished {
		for _, p := range woken.released {
			t := w.find(p)
			t.stage, t.left, t.passed = released, w.awake, true
		}
	}
	return w.unfinished
}

// deliver has everybody come who was released.
func (w *turnsWorld) deliver() {
	for _, t := range w.tasks {
		if t.stage == released || t.stage == straight {
			w.ask(t, comes, w.h.lead+w.h.spread+100_000, 0)
		}
		if t.stage == running && w.h.quick {
			w.finish(t)
		}
	}
}

// settle wakes until nobody is released, and everybody who was has come. Then no
// first of a round could start.
func (w *turnsWorld) settle() {
	for range 100 {
		woken := w.wake(64, w.h.spread, false)
		if len(woken.Released) == 0 && woken.Next <= 0 && woken.Waiting {
			woken = w.wake(64, w.h.spread, false)
			if len(woken.Released) == 0 && woken.Next <= 0 {
				fail("nobody can be released, and Wake wants to be called at once")
			}
		}
		if len(woken.Released) == 0 {
			w.conserved()
			return
		}
		w.deliver()
	}
	fail("Wake goes on releasing those who can't start")
}

// conserved: no unit stays idle while one that could use it is first in a round
// of its rules, and no other that is to have it first.
func (w *turnsWorld) conserved() {
	w.look()
	if len(w.seen.out) > 0 || len(w.seen.round) == 0 {
		return
	}
	first, orders := map[string]seat{}, map[string]string{}
	for _, s := range w.seen.round {
		if w.neverPasses(w.find(readPlace("p"+s.scope, w.seen.line[s.scope][0]))) {
			continue // nor does any other of its line: they hold up nobody
		}
		order := s.rank + s.scope
		if best, ok := orders[s.rule]; !ok || order < best {
			first[s.rule], orders[s.rule] = s, order
		}
	}
	for rule, s := range first {
		w.cannotStart(rule, s, orders)
	}
}

func (w *turnsWorld) cannotStart(rule string, s seat, orders map[string]string) {
	scope := "p" + s.scope
	p := w.plan(scope)
	t := w.find(readPlace(scope, w.seen.line[s.scope][0]))
	for _, key := range p.keys {
		name := strings.TrimPrefix(key, p.provider)
		if first, ok := orders[name]; ok && name != rule && first < s.rank+s.scope {
			return // it is behind another there
		}
	}
	w.sent = "" // no call that is worth sending again
	d, err := w.limiter().Peek(ctx, Request{Scope: scope, Cost: t.cost})
	var tooMuch *CostError
	if errors.As(err, &tooMuch) {
		return
	}
	must(err)
	w.h.counts.looked++
	bound, _ := d.BindingRule()
	if look := w.seen.due[rule]; w.back > 0 && look > w.now {
		return // it was set by a clock that has stepped back, which delays it by its step
	}
	if d.Allowed || d.RetryAfter <= us(w.h.lead) && bound.Algorithm != Concurrency && !leased(p) {
		fail("%s is first for %s and could start in %v, and nobody is released for it; the look is at %d, it is %d",
			t.key(), rule, d.RetryAfter, w.seen.due[rule], w.now)
	}
}

// drain has everybody start who waits: nobody else comes, and runs end at once.
// It takes as long as the limits make it, and no longer.
func (w *turnsWorld) drain() {
	w.version, w.h.quick = 0, true
	began, most := w.now, w.longestDrain()
	all := true
	for rounds := 0; ; rounds++ {
		w.deliver()
		for _, t := range w.tasks {
			if t.stage == running {
				w.finish(t)
			}
		}
		woken := w.wake(64, w.h.spread, all)
		w.sound()
		all = false
		if !woken.Waiting && len(woken.Released) == 0 {
			break
		}
		if rounds > 10_000 {
			fail("nobody comes to the end of the lines: %v", w.seen.line)
		}
		if len(woken.Released) == 0 {
			w.now += max(1, woken.Next.Microseconds())
		}
		if w.now-began > most {
			fail("after %v there still wait %v; it should have taken %v at most", us(w.now-began), w.seen.line, us(most))
		}
	}
	for scope, line := range w.seen.line {
		fail("nobody is left to wake, and %v of %s wait", line, scope)
	}
}

// longestDrain is a bound of how long it takes until all have started.
func (w *turnsWorld) longestDrain() int64 {
	most := int64(10_000_000) + w.back
	for key, l := range w.ledgers {
		var units int64
		for _, scope := range w.h.scopes {
			if p := w.plan(scope); slices.Contains(p.keys, key) {
				l.rule = p.bounds[slices.Index(p.keys, key)].Rule
				for _, t := range w.tasks {
					if t.Scope == scope && t.stage != gone {
						units += max(1, t.cost)
					}
				}
			}
		}
		r := l.rule
		per := r.Per.Microseconds() + r.Margin.Microseconds()
		if r.Limit > 0 && r.Algorithm != Concurrency {
			// A window may end with less than the next one's cost left in it.
			most += int64(math.Ceil(float64(2*units+4*r.Capacity())/float64(r.Limit)))*per + 4*per
		}
		most += 2 * r.Lease.Microseconds()
	}
	return most + 120e6
}

// nothingLeft: when nobody waits and nobody is on the way, nothing of it is left.
func (w *turnsWorld) nothingLeft() {
	if len(w.seen.round) > 0 || len(w.seen.due) > 0 {
		fail("nobody waits, and %v of %v are left", w.seen.due, w.seen.round)
	}
}
