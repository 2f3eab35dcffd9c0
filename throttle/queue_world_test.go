package throttle

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// queueWorld runs one history of those who wait in the tree: grants are held against the bounds of
// test/reference, the order against who asked first, and the tree against the queues.
type queueWorld struct {
	rdb      redis.UniversalClient
	prefix   string
	h        *queueHistory
	limiters []*Limiter
	version  int
	now      int64
	began    time.Time

	spent     map[string]*tally
	tasks     []*waiter
	byTicket  map[string]*waiter
	news      DispatchRequest
	order     int64
	seen      treeSeen
	still     bool
	leaves    string          // the scope that this caller leaves to others
	disturbed bool            // limits have changed
	loose     map[string]bool // leaves that stand by one who is first no more, until a dispatch comes to them
	looked    int64
}

func newQueueWorld(rdb redis.UniversalClient, prefix string, h *queueHistory) *queueWorld {
	w := &queueWorld{began: time.Now(), rdb: rdb, prefix: prefix, h: h, now: epoch, spent: map[string]*tally{}, byTicket: map[string]*waiter{}, loose: map[string]bool{}, news: DispatchRequest{Provider: "p"}}
	for _, limits := range h.versions {
		w.know(limits)
	}
	for _, scope := range h.scopes {
		p := w.plan(scope)
		for i, key := range p.keys {
			if w.spent[key] == nil {
				w.spent[key] = &tally{rule: raisedOf(p.bounds[i])}
			}
		}
	}
	w.seen = readTree(rdb, prefix, h.scopes)
	return w
}

// know adds a version of the limits.
func (w *queueWorld) know(limits map[string]policy.ScopeConfig) {
	policy, err := policy.New(policy.UnmatchedDeny, limits)
	must(err)
	l, err := New(w.rdb, policy, Config{Prefix: w.prefix, StartTolerance: -1, Unbatched: true})
	must(err)
	l.clock = func() string { return strconv.FormatInt(w.now, 10) }
	w.limiters = append(w.limiters, l)
}

func (w *queueWorld) limiter() *Limiter { return w.limiters[w.version] }

func (w *queueWorld) plan(scope string) *compiledScope {
	p, err := w.limiter().scopes.of(scope)
	must(err)
	return p
}

func (w *queueWorld) add(t *waiter) {
	w.tasks = append(w.tasks, t)
	w.byTicket[t.ID] = t
}

func (w *queueWorld) pathOf(t *waiter) *compiledScope {
	p := w.plan(t.Scope)
	if costs := t.costsByUnit(); costs != nil {
		p = w.limiter().scopes.counted(p, costs)
	}
	return p
}

func (w *queueWorld) field(t *waiter) string { return scopePath(t.Scope) + "\x00" + t.key() }

// slow is a world whose keys may by now have expired by the server's own clock, which is real: it finds nothing.
type slow struct{}

// looks has the bounds see the rules as they are, as scripts do when they load them.
func (w *queueWorld) looks() {
	if time.Since(w.began) > 35*time.Second {
		panic(slow{})
	}
	for _, scope := range w.h.scopes {
		p := w.plan(scope)
		for i, key := range p.keys {
			w.spent[key].look(raisedOf(p.bounds[i]))
		}
	}
}

// signature is what lua/include/fairshare/tasks.lua says of a task.
func (w *queueWorld) signature(path, ticket string) string {
	scope := scopeOf("p", path)
	place := readPlace(scope, ticket)
	costs, err := policy.ParseCosts(place.costs)
	if place.costs == "" || err != nil {
		return ""
	}
	all, units := true, []string{}
	for _, b := range w.plan(scope).bounds {
		unit := b.Rule.Unit
		if everybodys(b.Rule) {
			unit = ""
		}
		if charged(costs, b.Rule) == 0 {
			all = false
		} else if !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}
	if all {
		return ""
	}
	slices.Sort(units)
	return strings.Join(units, ",") + ","
}

// settle reads what Redis holds after a call: what came to be in flight was charged, and what went was claimed
// by those named, or given back.
func (w *queueWorld) settle(claimed ...*waiter) {
	before := w.seen.flight
	w.seen = readTree(w.rdb, w.prefix, w.h.scopes)
	for field, g := range before {
		is, stays := w.seen.flight[field]
		if stays && is.id == g.id || slices.ContainsFunc(claimed, func(t *waiter) bool { return w.field(t) == field }) {
			continue
		}
		for _, l := range w.spent {
			l.drop(g.id, w.now)
		}
	}
	// In the order of their starts, as what one call grants of a rule comes: a pace goes by it.
	fields := slices.SortedFunc(maps.Keys(w.seen.flight), func(a, b string) int {
		one, other := w.seen.flight[a], w.seen.flight[b]
		return cmp.Or(cmp.Compare(one.start, other.start), cmp.Compare(one.id, other.id))
	})
	for _, field := range fields {
		g := w.seen.flight[field]
		if was, had := before[field]; had && was.id == g.id {
			continue
		}
		path, ticket, _ := strings.Cut(field, "\x00")
		_, name, _ := strings.Cut(ticket, ":")
		t := w.byTicket[name]
		if t == nil || scopePath(t.Scope) != path {
			fail("nobody has heard of %q", field)
		}
		w.charge(t, g.id, g.start)
	}
	if faults := w.seen.faults(w.signature, w.loose); len(faults) > 0 && !w.disturbed {
		fail("%s\nnodes %+v\nschedule %v", strings.Join(faults, "\n"), w.seen.nodes, w.seen.schedule)
	}
}

// charge notes a grant.
func (w *queueWorld) charge(t *waiter, id string, start int64) {
	if start < w.now {
		fail("%s is granted a start %d µs ago", t.key(), w.now-start)
	}
	p := w.pathOf(t)
	for i, key := range p.keys {
		units := t.under(p.bounds[i].Rule)
		if p.bounds[i].Rule.Algorithm == policy.Concurrency {
			units = 1
		}
		if broken := w.spent[key].take(id, units, start); broken != "" {
			fail("%s for %s at %d: %s", key, t.key(), start-epoch, broken)
		}
	}
}

func (w *queueWorld) request(t *waiter, ahead, near int64) Request {
	t.asks++
	return Request{
		Scope: t.Scope, Cost: t.cost, Costs: t.costsByUnit(), ID: fmt.Sprintf("%s.%d", t.ID, t.asks), MaxDelay: us(ahead), Turn: Turn{MaxDelayQueued: us(near),
			WaiterID: t.ID, Priority: t.priority, Lane: t.lane, Stride: strides[t.lane], DispatchLead: us(w.h.lead)},
	}
}

// ask has a task ask for its start.
func (w *queueWorld) ask(t *waiter, how standing, ahead, near int64) {
	w.looks()
	req := w.request(t, ahead, near)
	req.standing = how
	before := w.seen
	g, flew := before.flight[w.field(t)]
	queue := before.queues[scopePath(t.Scope)]
	waited := len(queue) > 0 && queue[0].Member != t.key() // who is first may be the next
	d, err := w.limiter().Decide(ctx, req)
	var tooMuch *policy.CostError
	if errors.As(err, &tooMuch) {
		t.stage = astray
		return
	}
	must(err)
	if !d.Allowed {
		w.settle()
		if !d.Position.Waits {
			fail("%s was denied and does not wait", t.key())
		}
		w.stand(t, how, before)
		return
	}
	if len(queue) > 0 && w.h.units {
		w.loose[scopePath(t.Scope)] = true
	}
	start := w.now + d.Wait.Microseconds()
	if d.Grant.start > 0 {
		start = d.Grant.start // a claimed one may be over
	}
	claimed := flew && start == g.start && how == comes && g.start+2000 >= w.now && w.sameRules(t, g)
	switch {
	case how == rejoins || how == queues:
		fail("%s only wanted a place, and was granted", t.key())
	case claimed && d.Wait < -2*us(1000):
		fail("%s has claimed a start %v ago", t.key(), -d.Wait)
	case !claimed && !flew && how == comes && d.Wait > req.Turn.MaxDelayQueued, !claimed && d.Wait > req.MaxDelay:
		fail("%s was granted %v ahead, of %v and %v", t.key(), d.Wait, req.MaxDelay, req.Turn.MaxDelayQueued)
	case !flew && how == comes && waited && !w.disturbed && w.now-w.looked < 1e6:
		fail("%s was granted before %v, who wait", t.key(), before.queues[scopePath(t.Scope)])
	}
	if claimed {
		w.settle(t)
		for _, s := range w.spent {
			s.rename(g.id, d.Grant.id) // from now on it is the attempt's own
		}
	} else {
		w.settle()
		w.charge(t, d.Grant.id, start)
	}
	t.stage, t.d = running, d
}

func (w *queueWorld) sameRules(t *waiter, g inFlight) bool {
	p := w.pathOf(t)
	if len(p.keys) != len(g.places) {
		return false
	}
	for i := range p.keys {
		if _, is := g.places[p.ruleName(i)]; !is {
			return false
		}
	}
	return true
}

// stand notes that a task stands in its queue: where it stood, or at the end, or before all who had no turn.
func (w *queueWorld) stand(t *waiter, how standing, before treeSeen) {
	path := scopePath(t.Scope)
	stood := slices.ContainsFunc(before.queues[path], func(z redis.Z) bool { return z.Member == t.key() })
	_, parked := before.parked[w.field(t)]
	g, flew := before.flight[w.field(t)]
	switch {
	case stood || parked || flew && g.score > -1<<52:
	case flew || how == again || how == rejoins:
		t.passed = true
	default:
		w.order++
		t.order, t.placed = w.order, w.now
	}
	t.stage = waits
}

// join plans tasks that are about to be enqueued.
func (w *queueWorld) join(tasks []*waiter, near int64) {
	w.looks()
	var asks []Waiter
	for _, t := range tasks {
		asks = append(asks, Waiter{Scope: t.Scope, ID: t.ID, Cost: t.cost, Costs: t.costsByUnit(), Priority: t.priority, Lane: t.lane, Stride: strides[t.lane]})
	}
	before := w.seen
	placed, err := w.limiter().Waitlist().Join(ctx, asks, us(w.h.lead), us(near))
	must(err)
	w.settle()
	w.checkAhead(tasks, placed)
	for i, p := range placed {
		switch t := tasks[i]; {
		case p.Err != nil:
			t.stage = gone
		case p.Waits:
			w.stand(t, comes, before)
		default:
			t.stage, t.left = straight, w.now
			if q := before.queues[scopePath(t.Scope)]; len(q) > 0 && !w.disturbed {
				fail("%s goes straight to asynq before %v, who wait", t.key(), q)
			}
			if _, is := w.seen.flight[w.field(t)]; !is {
				fail("%s goes straight to asynq, and is not in flight", t.key())
			}
		}
	}
}

// checkAhead fails unless Join has said of each task how many were before it in its queue when it joined. Tasks that
// joined after it in the same call were not.
func (w *queueWorld) checkAhead(tasks []*waiter, placed []Joined) {
	for i, t := range tasks {
		place := func(of *waiter) int {
			return slices.IndexFunc(w.seen.queues[scopePath(t.Scope)], func(z redis.Z) bool { return z.Member == of.key() })
		}
		own := place(t)
		ahead := own
		for j := i + 1; j < len(tasks); j++ {
			if later := place(tasks[j]); !placed[j].Again && later >= 0 && later < own {
				ahead--
			}
		}
		if placed[i].Err == nil && int64(ahead) != placed[i].Ahead {
			fail("%s has %d before it, and Join says %d", t.key(), ahead, placed[i].Ahead)
		}
	}
}

// dispatch calls Dispatch with the news.
func (w *queueWorld) dispatch(most int, spread int64, all bool) Dispatched {
	w.looks()
	req := w.news
	req.Lead, req.Spread, req.Max, req.CheckAll = us(w.h.lead), us(spread), most, all
	w.news = DispatchRequest{Provider: "p"}
	if w.still {
		req.StalledGroups = []string{"g/"}
	}
	if w.leaves != "" {
		req.Skip = func(scope string) bool { return scope == w.leaves }
	}
	before := w.seen
	var claimed []*waiter
	for _, p := range req.Claimed {
		claimed = append(claimed, w.byTicket[p.ID])
	}
	d, err := w.limiter().Waitlist().Dispatch(ctx, req)
	must(err)
	w.looked = w.now
	w.settle(claimed...)
	named := map[string]bool{}
	for _, g := range d.Granted {
		t := w.byTicket[g.ID]
		if named[g.ID] || t.stage == running || t.stage == gone {
			fail("%s was granted, twice, or though it does not wait", g.ID)
		}
		if g.Wait > us(w.h.lead+spread) || g.Wait < 0 {
			fail("%s was granted %v ahead", g.ID, g.Wait)
		}
		if g.Scope == w.leaves {
			fail("%s was granted, and its scope is left to others", g.ID)
		}
		if w.still && strings.HasPrefix(g.ID, "g/") {
			fail("%s was granted, and its group stands still", g.ID)
		}
		if _, flies := w.seen.flight[w.field(t)]; !flies {
			fail("%s was granted, and is not in flight", g.ID)
		}
		named[g.ID] = true
		t.stage, t.left = released, w.now
	}
	if len(d.Granted) > most {
		fail("%d were granted, of %d at most", len(d.Granted), most)
	}
	for _, p := range d.Overdue {
		t := w.byTicket[p.ID]
		if t.left+outStays > w.now {
			fail("%s is overdue after %d µs", p.ID, w.now-t.left)
		}
	}
	w.moved(req, named)
	w.inOrder(before, d.Granted, named)
	if len(d.Granted) < most && d.Next > 0 {
		w.nobodyIdle()
	}
	return d
}

// moved notes who went back to its place, or was parked.
func (w *queueWorld) moved(req DispatchRequest, named map[string]bool) {
	for _, t := range w.tasks {
		if named[t.ID] || t.stage == gone || t.stage == running {
			continue
		}
		_, flies := w.seen.flight[w.field(t)]
		_, kept := w.seen.parked[w.field(t)]
		in := slices.ContainsFunc(w.seen.queues[scopePath(t.Scope)], func(z redis.Z) bool { return z.Member == t.key() })
		switch {
		case in:
			t.stage = waits
		case kept:
			t.stage, t.aside = aside, true
		case flies && t.stage != straight:
			t.stage = released
		case !flies && t.stage != fresh:
			t.stage = astray
		}
	}
	for _, p := range req.NotFound {
		w.byTicket[p.ID].passed = true
	}
}

// inOrder: within a scope those go first that have the higher priority, and then those that asked first.
func (w *queueWorld) inOrder(before treeSeen, granted []Granted, named map[string]bool) {
	for i, g := range granted {
		t := w.byTicket[g.ID]
		for _, other := range granted[i+1:] {
			w.goesFirst(t, w.byTicket[other.ID], "granted")
		}
		for _, z := range before.queues[scopePath(t.Scope)] {
			if other := w.byTicket[readPlace("", text(z.Member)).ID]; !named[other.ID] && other.stage == waits {
				w.goesFirst(t, other, "left in its queue")
			}
		}
	}
}

// nobodyIdle: no unit stays idle while a task that could use it is at hand, but for units that are saved for
// somebody whose turn it is and who needs more.
func (w *queueWorld) nobodyIdle() {
	type head struct {
		t    *waiter
		cost int64
	}
	var heads []head
	for _, q := range w.seen.queues {
		t := w.byTicket[readPlace("", text(q[0].Member)).ID]
		most := t.cost
		for _, n := range t.costsByUnit() {
			most = max(most, n)
		}
		heads = append(heads, head{t, max(1, most)})
	}
	for _, h := range heads {
		if w.still && strings.HasPrefix(h.t.ID, "g/") || h.t.Scope == w.leaves || slices.ContainsFunc(heads, func(o head) bool { return o.cost > h.cost || o.t.costs != h.t.costs }) {
			continue
		}
		d, err := w.limiter().Peek(ctx, Request{Scope: h.t.Scope, Cost: h.t.cost, Costs: h.t.costsByUnit()})
		if err == nil && d.Allowed {
			fail("%s could start, and was not granted; %+v", h.t.key(), w.seen.schedule)
		}
	}
}

func (w *queueWorld) giveBack(t *waiter) {
	w.looks()
	must(w.limiter().Refund(ctx, t.d.Grant))
	for _, key := range w.plan(t.Scope).keys {
		w.spent[key].drop(t.d.Grant.id, w.now)
	}
	t.stage = gone
	w.settle()
}

var queueHappenings = []struct {
	name   string
	weight int
	do     func(*queueWorld, drawing) bool
}{
	{"ask", 22, func(w *queueWorld, r drawing) bool {
		w.ask(w.newTask(r), comes, w.ahead(r), r.one(0, 0, w.h.lead))
		return true
	}},
	{"join", 8, func(w *queueWorld, r drawing) bool {
		var tasks []*waiter
		for range 1 + r.IntN(5) {
			tasks = append(tasks, w.newTask(r))
		}
		w.join(tasks, r.one(0, w.h.lead, 150_000))
		return true
	}},
	{"dispatch", 22, func(w *queueWorld, r drawing) bool {
		w.dispatch(int(r.one(0, 1, 2, 5, 64)), r.one(0, w.h.spread), r.IntN(10) == 0)
		return true
	}},
	{"arrive", 16, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{released, straight}, func(t *waiter) { w.ask(t, comes, w.ahead(r), 0) })
	}},
	{"claim", 16, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) {
			g := w.seen.flight[w.field(t)]
			w.news.Claimed = append(w.news.Claimed, t.WaiterRef)
			t.d = Decision{Allowed: true, Grant: w.grantOf(t, g)}
			t.stage = running
		})
	}},
	{"unused", 4, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{released, straight}, func(t *waiter) {
			w.news.Unused = append(w.news.Unused, t.WaiterRef)
			w.dispatch(int(r.one(0, 3)), 0, false)
		})
	}},
	{"not yet", 2, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) {
			w.news.NotFound = append(w.news.NotFound, t.WaiterRef)
			t.passed = true
			w.dispatch(int(r.one(0, 3)), 0, false)
		})
	}},
	{"come early", 4, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{waits}, func(t *waiter) { w.ask(t, comes, w.ahead(r), r.one(0, w.h.lead)) })
	}},
	{"come late", 3, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{astray}, func(t *waiter) { w.ask(t, comes, w.ahead(r), 0) })
	}},
	{"gone", 3, func(w *queueWorld, r drawing) bool {
		return w.some(r, []stage{released, waits, aside}, func(t *waiter) {
			w.news.Deleted = append(w.news.Deleted, t.WaiterRef)
			w.dispatch(int(r.one(0, 0, 5)), 0, false)
			t.stage = gone
		})
	}},
	{"start late", 4, func(w *queueWorld, r drawing) bool {
		return w.someRun(r, func(t *waiter) {
			w.giveBack(t)
			w.ask(t, again, w.ahead(r), 0)
		})
	}},
	{"rejoin", 2, func(w *queueWorld, r drawing) bool {
		return w.someRun(r, func(t *waiter) {
			w.giveBack(t)
			w.ask(t, rejoins, 0, 0)
		})
	}},
	{"take a place", 2, func(w *queueWorld, r drawing) bool {
		if r.IntN(2) == 0 {
			w.ask(w.newTask(r), queues, w.ahead(r), 0)
			return true
		}
		return w.some(r, []stage{released, straight}, func(t *waiter) { w.ask(t, queues, w.ahead(r), 0) })
	}},
	{"finish", 8, func(w *queueWorld, r drawing) bool {
		return w.someRun(r, func(t *waiter) { w.finish(t) })
	}},
	{"give back", 4, func(w *queueWorld, r drawing) bool {
		return w.someRun(r, func(t *waiter) { w.giveBack(t) })
	}},
	{"stand still", 3, func(w *queueWorld, r drawing) bool {
		w.still = true
		w.dispatch(int(r.one(0, 1, 5, 64)), 0, r.IntN(2) == 0)
		return true
	}},
	{"go on", 3, func(w *queueWorld, r drawing) bool {
		w.still = false
		w.goOn(1 + r.IntN(5))
		return true
	}},
	{"limits", 2, func(w *queueWorld, r drawing) bool {
		if len(w.limiters) == 1 {
			return false
		}
		w.version, w.disturbed = r.IntN(len(w.limiters)), true
		w.dispatch(8, 0, true)
		return true
	}},
}

// someRun picks a run whose claim was told.
func (w *queueWorld) someRun(r drawing, do func(*waiter)) bool {
	return w.some(r, []stage{running}, func(t *waiter) {
		if _, flies := w.seen.flight[w.field(t)]; flies {
			w.dispatch(0, 0, false)
		}
		do(t)
	})
}

func (w *queueWorld) grantOf(t *waiter, f inFlight) Grant {
	p := w.pathOf(t)
	g := Grant{scope: t.Scope, id: f.id, plan: p, cost: p.price(&Request{Cost: max(1, t.cost), Costs: t.costsByUnit()}), start: f.start}
	g.places, g.told = newPlaces(len(p.bounds))
	for i := range p.keys {
		g.places[i] = f.places[p.ruleName(i)]
	}
	return g
}

func (w *queueWorld) goOn(n int) bool {
	list, err := w.limiter().Waitlist().Parked(ctx, "p", 0, n)
	must(err)
	w.news.Unpark = list
	w.dispatch(8, 0, false)
	return len(list) == n
}

// finish ends a run: its places are freed.
func (w *queueWorld) finish(t *waiter) {
	t.stage = gone
	p := w.plan(t.Scope)
	if len(p.leases) == 0 {
		return
	}
	w.giveBackPlaces(p, t)
}

func (w *queueWorld) giveBackPlaces(p *compiledScope, t *waiter) {
	keys, _, _ := p.leaseKeys()
	for _, key := range keys {
		must(w.rdb.ZRem(ctx, key, t.d.Grant.id).Err())
		w.spent[key].drop(t.d.Grant.id, w.now)
	}
	must(w.rdb.ZAddArgs(ctx, keyspace(w.prefix).provider("p")+"!schedule", redis.ZAddArgs{XX: true, LT: true, Members: w.due()}).Err())
	w.seen = readTree(w.rdb, w.prefix, w.h.scopes)
}

// due are the blocked nodes, as if all were to be looked at.
func (w *queueWorld) due() (out []redis.Z) {
	for member := range w.seen.schedule {
		out = append(out, redis.Z{Score: float64(w.now), Member: member})
	}
	return append(out, redis.Z{Score: 1, Member: "none"})
}

func (h *queueHistory) run(rdb redis.UniversalClient, prefix string) (found string) {
	h.log = nil
	defer func() {
		switch f := recover().(type) {
		case nil:
		case slow:
		case fault:
			found = string(f)
		default:
			panic(f)
		}
	}()
	w := newQueueWorld(rdb, prefix, h)
	for n := range h.each {
		if !h.left[n] {
			w.step(n)
		}
	}
	h.log = append(h.log, "drain")
	w.drain()
	keys, err := rdb.Keys(ctx, prefix+"*").Result()
	must(err)
	for _, key := range keys {
		if rdb.PTTL(ctx, key).Val() == -1 {
			found = key + " has no TTL"
		}
		if strings.HasSuffix(key, "!meta") || strings.HasSuffix(key, "!heap") || strings.HasSuffix(key, "!schedule") {
			found = key + " is left, and nobody waits"
		}
	}
	must(rdb.Del(ctx, append(keys, "none")...).Err())
	return found
}

func (w *queueWorld) step(n int) {
	r := drawing{rand.New(rand.NewPCG(w.h.seed, uint64(1000+n)))}
	total := 0
	for _, one := range queueHappenings {
		total += one.weight
	}
	pick, i := r.IntN(total), 0
	for ; pick >= queueHappenings[i].weight; i++ {
		pick -= queueHappenings[i].weight
	}
	passes := w.passes(r)
	w.now += passes
	if w.leaves = ""; w.h.seed%5 == 2 && n%3 == 0 { // not drawn: the histories of each seed stay what they were
		w.leaves = "p/c/x"
	}
	one := queueHappenings[i]
	w.h.log = append(w.h.log, fmt.Sprintf("%3d at %9d: %s", n, w.now-epoch, one.name))
	if one.do(w, r) {
		w.h.counts.of[one.name]++
		w.h.counts.steps++
		w.h.log[len(w.h.log)-1] += w.shows()
		w.statesLast()
	} else {
		w.h.log = w.h.log[:len(w.h.log)-1]
		w.now -= passes
	}
}

// statesLast: no state is gone before it means nothing any more. Its key goes by the server's own clock, which is slower
// than the history's.
func (w *queueWorld) statesLast() {
	states, lasts := map[string]*redis.StringCmd{}, map[string]*redis.DurationCmd{}
	_, err := w.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for key, l := range w.spent {
			if l.rule.Algorithm != policy.Concurrency {
				states[key], lasts[key] = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
			}
		}
		return nil
	})
	if !errors.Is(err, redis.Nil) {
		must(err)
	}
	ran := time.Since(w.began)
	for key, state := range states {
		if v := state.Val(); v != "" && us(number(v[1:])-w.now) > lasts[key].Val()+ran {
			fail("%s is gone in %s, and means something for %s", key, lasts[key].Val(), us(number(v[1:])-w.now))
		}
	}
}

func (w *queueWorld) shows() string {
	var b strings.Builder
	for path, q := range w.seen.queues {
		fmt.Fprintf(&b, " | %s:", path)
		for _, z := range q {
			b.WriteString(" " + text(z.Member))
		}
	}
	for field, g := range w.seen.flight {
		fmt.Fprintf(&b, " > %s at %d", strings.ReplaceAll(field, "\x00", " "), g.start-epoch)
	}
	for id, n := range w.seen.schedule {
		fmt.Fprintf(&b, " ~ %q at %.0f", id, n-epoch)
	}
	return b.String()
}

// drain goes on until nobody waits: everybody has a turn.
func (w *queueWorld) drain() {
	w.still, w.leaves = false, ""
	if w.version != 0 {
		w.version = 0
		w.dispatch(0, 0, true)
	}
	for n := 0; len(w.seen.queues)+len(w.seen.flight)+len(w.seen.parked) > 0; n++ {
		if n > 3000 {
			fail("after %d dispatches there wait %v, in flight %v, parked %v; schedule %v", n, w.seen.queues, w.seen.flight, w.seen.parked, w.seen.schedule)
		}
		if len(w.seen.parked) > 0 && n%10 == 0 {
			w.goOn(50)
		}
		d := w.dispatch(64, w.h.spread, false)
		w.h.log = append(w.h.log, fmt.Sprintf("   at %9d: dispatch", w.now-epoch)+w.shows())
		for _, t := range w.tasks {
			if _, flies := w.seen.flight[w.field(t)]; t.stage == released || t.stage == straight || flies {
				w.ask(t, comes, w.h.lead+w.h.spread+100_000, 0)
				w.h.log = append(w.h.log, fmt.Sprintf("   %s came", t.key())+w.shows())
			}
			if t.stage == running {
				w.finish(t)
			}
		}
		w.now += max(1, min(d.Next.Microseconds(), 30_000_000))
		if n > 500 {
			w.now += 1_000_000
		}
	}
}
