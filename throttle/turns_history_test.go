package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// What may happen to those who wait, and the least share of steps, in thousandths,
// that each is of all histories together.
var happenings = []struct {
	name   string
	weight int
	least  int
	do     func(*turnsWorld, drawing) bool // false when it can't happen now
}{
	{"ask", 22, 80, func(w *turnsWorld, r drawing) bool {
		t := w.newTask(r)
		w.ask(t, comes, w.ahead(r), r.one(0, 0, w.h.lead, 200_000))
		return true
	}},
	{"line up", 8, 20, func(w *turnsWorld, r drawing) bool {
		var tasks []*waiter
		for range 1 + r.IntN(5) {
			tasks = append(tasks, w.newTask(r))
		}
		w.lineUp(tasks, r.one(0, w.h.lead, 150_000, 1_000_000))
		return true
	}},
	{"wake", 22, 80, func(w *turnsWorld, r drawing) bool {
		w.wake(int(r.one(0, 1, 2, 5, 64)), r.one(0, w.h.spread), r.IntN(10) == 0)
		return true
	}},
	{"arrive", 24, 50, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{released, straight}, func(t *waiter) { w.ask(t, comes, w.ahead(r), 0) })
	}},
	{"come early", 4, 5, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{parked}, func(t *waiter) { w.ask(t, comes, w.ahead(r), r.one(0, w.h.lead)) })
	}},
	{"come late", 3, 2, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{astray}, func(t *waiter) { w.ask(t, comes, w.ahead(r), 0) })
	}},
	{"not come", 2, 1, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) { t.stage = astray })
	}},
	{"gone", 3, 2, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) { w.endsBefore(t, 0) })
	}},
	{"end in line", 3, 2, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{parked}, func(t *waiter) { w.endsBefore(t, int(r.one(0, 0, 5))) })
	}},
	{"not yet", 2, 1, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) {
			w.news.NotYet = append(w.news.NotYet, t.Place)
			t.stage, t.passed = astray, true
		})
	}},
	{"running", 2, 1, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{released}, func(t *waiter) {
			w.news.Running = append(w.news.Running, t.Place)
			t.stage = astray
		})
	}},
	{"start late", 4, 5, func(w *turnsWorld, r drawing) bool {
		return w.someGrant(r, func(t *waiter) {
			w.giveBack(t)
			w.ask(t, again, w.ahead(r), 0)
		})
	}},
	{"rejoin", 2, 3, func(w *turnsWorld, r drawing) bool {
		return w.someGrant(r, func(t *waiter) {
			w.giveBack(t)
			w.ask(t, rejoins, 0, 0)
		})
	}},
	{"take a place", 2, 3, func(w *turnsWorld, r drawing) bool {
		if r.IntN(2) == 0 {
			w.ask(w.newTask(r), queues, w.ahead(r), 0)
			return true
		}
		return w.some(r, []stage{released, straight}, func(t *waiter) { w.ask(t, queues, w.ahead(r), 0) })
	}},
	{"ask in another period", 1, 1, func(w *turnsWorld, r drawing) bool {
		defer w.mistaken(r)()
		t := w.newTask(r)
		w.ask(t, comes, w.ahead(r), r.one(0, 0, w.h.lead, 200_000))
		return true
	}},
	{"arrive in another period", 2, 1, func(w *turnsWorld, r drawing) bool {
		defer w.mistaken(r)()
		return w.some(r, []stage{released, straight}, func(t *waiter) { w.ask(t, comes, w.ahead(r), 0) })
	}},
	{"give back", 4, 5, func(w *turnsWorld, r drawing) bool { return w.someGrant(r, w.giveBack) }},
	{"end", 8, 10, func(w *turnsWorld, r drawing) bool { return w.some(r, []stage{running}, w.finish) }},
	{"send again", 6, 20, func(w *turnsWorld, _ drawing) bool {
		if w.sent == "" || w.sent == "give back" || w.sent == "release" {
			return false
		}
		w.resend()
		return true
	}},
	{"settle", 3, 10, func(w *turnsWorld, _ drawing) bool {
		w.settle()
		return true
	}},
	{"pause", 2, 1, func(w *turnsWorld, r drawing) bool {
		verb := []string{"pause", "pause", "rest"}[r.IntN(3)]
		w.tell(w.h.scopes[r.IntN(len(w.h.scopes))], 1+r.IntN(3), verb, r.one(1, 20_000, 100_000, 1_000_000), 2_000_000)
		return true
	}},
	{"lift", 2, 1, func(w *turnsWorld, r drawing) bool {
		w.tell(w.h.scopes[r.IntN(len(w.h.scopes))], 1+r.IntN(3), "lift", 0, 0)
		return true
	}},
	{"correct", 3, 1, func(w *turnsWorld, r drawing) bool {
		if w.h.seed%3 != 0 {
			return false // what a correction makes too dear is passed over, which hides other faults
		}
		verb, numbers := "cut", [5]int64{r.one(300_000, 900_000), 100_000, r.one(100_000, 500_000), 100_000, raisedTo * onePercent}
		switch r.IntN(3) {
		case 0:
			verb, numbers = "adopt", [5]int64{r.one(0, 1, 2, 5), r.one(100_000, 1_000_000, 10_000_000), r.one(300_000, 3_000_000)}
		case 1:
			verb, numbers = "free", [5]int64{}
		}
		if w.h.raises { // or would, where the policy lets it
			switch r.IntN(3) {
			case 0:
				verb, numbers = "rise", [5]int64{raisedTo * onePercent, r.one(1000, 500_000, 10_000_000), r.one(300_000, 3_000_000)}
			case 1:
				verb, numbers = "adopt", [5]int64{r.one(3, 10, 1000), 0, r.one(300_000, 3_000_000)}
			}
		}
		w.correct(w.h.scopes[r.IntN(len(w.h.scopes))], r.IntN(4), verb, numbers)
		return true
	}},
	{"stand still", 3, 5, func(w *turnsWorld, r drawing) bool {
		w.still = true
		w.wake(int(r.one(0, 1, 5, 64)), 0, r.IntN(2) == 0)
		return true
	}},
	{"go on", 3, 5, func(w *turnsWorld, r drawing) bool {
		w.still = false
		w.goOn(1 + r.IntN(5))
		return true
	}},
	{"come while parked", 1, 1, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{aside}, func(t *waiter) { w.ask(t, comes, w.ahead(r), r.one(0, w.h.lead)) })
	}},
	{"end while parked", 1, 0, func(w *turnsWorld, r drawing) bool {
		return w.some(r, []stage{aside}, func(t *waiter) { w.endsBefore(t, 0) })
	}},
	{"clock step", 1, 0, func(w *turnsWorld, r drawing) bool {
		if !w.h.steps {
			return false
		}
		w.advance(r.one(-1, -1000, -r.Int64N(10_000_000), -61_000_000, r.Int64N(100_000_000)))
		return true
	}},
	{"limits", 2, 1, func(w *turnsWorld, r drawing) bool {
		if len(w.limiters) == 1 {
			return false
		}
		w.version, w.disturbed = r.IntN(len(w.limiters)), true
		w.wake(8, 0, true)
		return true
	}},
}

// mistaken makes the limiter take it for another time, by which it would have its
// calendars in another period, until it is told better or what it returns is called.
func (w *turnsWorld) mistaken(r drawing) (over func()) {
	plans, off := w.limiter().plans, r.one(-1, 1, -60_000_000, 60_000_000, -3_600_000_000, 3_600_000_000)
	clear(plans.known)
	was := plans.now
	plans.now = func(string) time.Time { return time.UnixMicro(w.now + off) }
	return func() { plans.now = was }
}

func (w *turnsWorld) newTask(r drawing) *waiter {
	scope := w.h.scopes[r.IntN(len(w.h.scopes))]
	t := &waiter{priority: int(r.one(0, 0, 0, 0, 1, -1, 1_000_000))}
	t.Place = Place{Scope: scope, Ticket: fmt.Sprintf("t%d", len(w.tasks)), cost: r.one(1, 1, 1, 2, 3, 20)}
	if w.h.seed%4 == 1 { // not drawn: the histories of each seed stay what they were
		t.lane = []string{"critical", "low", "default", "low", ""}[len(w.tasks)%5]
	}
	first, err := w.limiters[0].plans.of(scope)
	must(err)
	least := func(unit string) int64 {
		most := int64(math.MaxInt64)
		for _, b := range first.bounds {
			if b.Rule.Algorithm != Concurrency && (unit == "" || b.Rule.unit() == unit) {
				most = min(most, b.Rule.Capacity())
			}
		}
		return most
	}
	if w.h.units && r.IntN(4) > 0 {
		costs := Costs{Requests: min(r.one(0, 1, 1, 2), least(Requests)), "tokens": min(r.one(0, 1, 3, 20), least("tokens"))}
		if costs[Requests] == 1 && r.IntN(2) == 0 {
			delete(costs, Requests) // it is 1 all the same
		}
		if costs["tokens"] == 0 && r.IntN(2) == 0 {
			delete(costs, "tokens")
		}
		for _, b := range first.bounds {
			if costs.under(b.Rule) > 0 && costs.Check() == nil {
				t.cost, t.costs = 0, costs.String()
			}
		}
	}
	if len(w.tasks)%3 == 0 {
		t.Ticket = "g/" + t.Ticket
	}
	t.cost = min(t.cost, least(""))
	w.tasks = append(w.tasks, t)
	return t
}

// ahead is how far ahead a start may be: mostly as far as who is released needs.
func (w *turnsWorld) ahead(r drawing) int64 {
	enough := w.h.lead + w.h.spread + 1000
	return r.one(enough, enough, enough, 0, 1_000_000)
}

// some picks one who is at one of these stages.
func (w *turnsWorld) some(r drawing, stages []stage, do func(*waiter)) bool {
	var of []*waiter
	for _, t := range w.tasks {
		for _, s := range stages {
			if t.stage == s {
				of = append(of, t)
			}
		}
	}
	if len(of) == 0 {
		return false
	}
	do(of[r.IntN(len(of))])
	return true
}

func (w *turnsWorld) someGrant(r drawing, do func(*waiter)) bool {
	return w.some(r, []stage{running}, func(t *waiter) {
		if t.pass == w.pass {
			do(t)
		}
	})
}

// turnsHistory is a random history of those who wait. What a step does is drawn
// from its number and what it finds, so that a history still runs with some of its
// steps left out.
type turnsHistory struct {
	seed         uint64
	versions     []map[string]Node
	scopes       []string
	lead, spread int64
	steps, quick bool
	weight       int64            // of one of the tenants
	shares       map[string]Share // of the names below each
	raises       bool             // an API can make more of a rule than its limit
	units        bool             // rules count requests and tokens, and tasks cost by unit
	drains       bool             // it goes on until nobody waits, which takes as long as all before
	each         int
	left         map[int]bool // steps left out
	log          []string
	counts       *turnsCounts
}

// turnsCounts is what histories came to.
type turnsCounts struct {
	steps  int
	of     map[string]int
	resent map[string]int
	calls  int
	reads  int
	looked int // first ones of rounds that were found not to be able to start
	back   int // released ones that were denied
}

func newTurnsCounts() *turnsCounts {
	return &turnsCounts{of: map[string]int{}, resent: map[string]int{}}
}

func newTurnsHistory(seed uint64, each int) *turnsHistory {
	r := drawing{rand.New(rand.NewPCG(seed, 2))}
	h := &turnsHistory{
		seed: seed, each: each, scopes: []string{"p/a/x", "p/a/y", "p/b/x", "p/c/x"}, counts: newTurnsCounts(),
		lead: r.one(0, 10_000, 30_000, 100_000), spread: r.one(0, 20_000, 80_000), left: map[int]bool{},
	}
	h.steps, h.drains, h.units = r.IntN(6) == 0, seed%2 == 0, seed%3 == 0
	h.raises = seed%6 == 0
	levels := [3]int{r.IntN(3), r.IntN(2), r.IntN(2)}
	if levels == [3]int{} {
		levels[r.IntN(3)] = 1
	}
	var rules [3][]Rule
	draw := &randomHistory{}
	h.weight = 1 + int64(seed%7) // not drawn: the histories of each seed stay what they were
	if seed%3 == 0 {
		h.shares = map[string]Share{"x": {Part: 60}, "y": {Weight: 3}}
	}
	for level, n := range levels {
		for range n {
			rule := draw.rule(r, fmt.Sprintf("r%d%d", level, len(rules[level])))
			if level == 0 && rule.Algorithm != Concurrency {
				rule.Limit = max(rule.Limit, 3)
			}
			rule.Per = min(rule.Per, 10*time.Second)
			rule.Margin = min(rule.Margin, rule.Per/8)
			if h.units && rule.Algorithm != Concurrency && r.IntN(2) == 0 {
				rule.Unit = "tokens"
			}
			rules[level] = append(rules[level], rule)
		}
	}
	versions := 1
	if r.IntN(4) == 0 {
		versions = 4
	}
	for v := range versions {
		if v > 0 {
			for level := range rules {
				for i := range rules[level] {
					rules[level][i] = changedLimit(r, rules[level][i])
				}
			}
		}
		corrects := Corrects{}
		if h.raises && v != 1 {
			corrects.Most = raisedTo
		}
		h.versions = append(h.versions, map[string]Node{"p": {
			Corrects: corrects,
			Rules:    append([]Rule(nil), rules[0]...),
			Scopes: map[string]Node{
				"*": {
					Rules:  append([]Rule(nil), rules[1]...),
					Scopes: map[string]Node{"*": {Rules: append([]Rule(nil), rules[2]...)}},
					Shares: h.shares,
				},
				"a": {Weight: h.weight},
			},
		}})
	}
	return h
}

// raisedTo is what may come of a limit in histories that raise, in percent.
const raisedTo = 300

// changedLimit is the rule after somebody has changed its limit.
func changedLimit(r drawing, rule Rule) Rule {
	switch {
	case rule.Algorithm == Concurrency:
		rule.Limit = r.one(0, 1, 2, 5)
	case r.IntN(4) == 0:
		rule.Limit = 0
	default:
		rule.Limit = r.one(1, 2, 3, 7, 20)
	}
	if rule.Algorithm == TokenBucket && r.IntN(2) == 0 {
		rule.Burst = r.one(1, 2, 5, 20)
	}
	return rule
}

func (h *turnsHistory) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, lead %dµs, spread %dµs\n", h.seed, h.lead, h.spread)
	for i, limits := range h.versions {
		policy, err := NewPolicy(UnmatchedDeny, limits)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "limits %d:\n%s", i, policy.YAML())
	}
	b.WriteString(strings.Join(h.log, "\n"))
	return b.String()
}

// run runs a history and returns what it found wrong. Keys expire by the wall's
// clock: where a step took so long that they may have, it says nothing.
func (h *turnsHistory) run(rdb redis.UniversalClient, last *lastCall, prefix string) (found string) {
	began := time.Now()
	h.log, h.quick = nil, false
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			if time.Since(began) < 20*time.Second {
				found = string(f)
			}
		default:
			panic(f)
		}
	}()
	w := newTurnsWorld(rdb, last, prefix, h)
	for n := range h.each {
		if !h.left[n] {
			w.step(n)
		}
	}
	if h.drains {
		h.log = append(h.log, "drain")
		w.drain()
		w.nothingLeft()
	}
	keys, err := rdb.Keys(ctx, prefix+"*").Result()
	must(err)
	must(rdb.Del(ctx, append(keys, "none")...).Err())
	return ""
}

func (w *turnsWorld) step(n int) {
	r := drawing{rand.New(rand.NewPCG(w.h.seed, uint64(1000+n)))}
	total := 0
	for _, one := range happenings {
		total += one.weight
	}
	pick := r.IntN(total)
	i := 0
	for ; pick >= happenings[i].weight; i++ {
		pick -= happenings[i].weight
	}
	passes := w.passes(r)
	if happenings[i].name == "send again" {
		passes = 0
	}
	w.now += passes
	w.h.log = append(w.h.log, fmt.Sprintf("%3d at %9d: %s", n, w.now-epoch, happenings[i].name))
	if happenings[i].do(w, r) {
		w.h.counts.of[happenings[i].name]++
		w.h.counts.steps++
		w.sound()
		w.h.log[len(w.h.log)-1] += w.lines()
	} else {
		w.h.log = w.h.log[:len(w.h.log)-1]
		w.now -= passes // a call that is sent again has its own clock
	}
}

// lines is who waits, for people.
func (w *turnsWorld) lines() string {
	var b strings.Builder
	for _, scope := range w.h.scopes {
		if line := w.seen.line[scopePath(scope)]; len(line) > 0 {
			fmt.Fprintf(&b, " | %s:", scope)
			b.WriteString(" " + strings.Join(line, " "))
		}
	}
	if len(w.seen.out) > 0 {
		b.WriteString(" | out:")
		for field := range w.seen.out {
			b.WriteString(" " + strings.ReplaceAll(field, "\x00", " "))
		}
	}
	return b.String()
}

// passes is how long it is until the next step.
func (w *turnsWorld) passes(r drawing) int64 {
	switch r.IntN(10) {
	case 0:
		return r.Int64N(3_000_000)
	case 1, 2:
		return r.Int64N(300_000)
	case 3, 4, 5:
		return r.Int64N(20_000)
	case 6:
		if r.IntN(5) == 0 {
			return r.Int64N(30_000_000)
		}
	}
	return 0
}

// shrink leaves out what a failing history fails without.
func (h *turnsHistory) shrink(rdb redis.UniversalClient, last *lastCall, prefix string) string {
	tries := 0
	found := h.run(rdb, last, prefix+"s")
	if found == "" {
		return ""
	}
	try := func(change func()) bool {
		was, each := h.left, h.each
		h.left = map[int]bool{}
		for n := range was {
			h.left[n] = true
		}
		change()
		tries++
		if f := h.run(rdb, last, fmt.Sprintf("%ss%d", prefix, tries)); f != "" {
			found = f
			return true
		}
		h.left, h.each = was, each
		return false
	}
	for size := h.each / 2; size >= 1; size /= 2 {
		for try(func() { h.each -= size }) && h.each > size {
		}
	}
	for size := h.each / 2; size >= 1; size /= 2 {
		for from := 0; from < h.each && tries < 400; from += size {
			try(func() {
				for n := from; n < from+size; n++ {
					h.left[n] = true
				}
			})
		}
	}
	h.run(rdb, last, prefix+"l")
	return found
}

// eachHistory is how many steps one history has at most: enough for lines to grow,
// and few enough for them to be emptied often.
const eachHistory = 80

// turnsSeed is HISTORY_SEED, or always the same: of histories drawn at random one in
// some thousands still differs from the model.
func turnsSeed(t *testing.T) uint64 {
	t.Helper()
	if os.Getenv("HISTORY_SEED") != "" {
		return historySeed(t)
	}
	return 1
}

// turnsHistories runs random histories, so many steps in all.
func turnsHistories(t *testing.T, rdb redis.UniversalClient, last *lastCall, seed uint64, steps int) *turnsCounts {
	t.Helper()
	t.Logf("seed %d; repeat with HISTORY_SEED=%d", seed, seed)
	all, own := newTurnsCounts(), redistest.Prefix(t)
	for all.steps < steps {
		h := newTurnsHistory(seed, eachHistory)
		h.counts = all
		prefix := own + fmt.Sprint(seed)
		if found := h.run(rdb, last, prefix); found != "" {
			least := h.shrink(rdb, last, prefix)
			t.Fatalf("%s\n%s\nbefore it was shortened: %s", h, least, found)
		}
		seed++
	}
	return all
}

// Turns are distinct, in order of first asking within a scope and priority; they
// are work-conserving: no unit stays idle while a task that could use it is at
// hand; a turn grants nothing by itself, and nothing is over any rule; a call that
// is sent again changes nothing more. HISTORY_STEPS is how many steps to take, by
// several histories side by side, on a server each.
func TestTurnsHistories(t *testing.T) {
	t.Parallel()
	const servers = 4
	steps := 8000
	switch {
	case os.Getenv("HISTORY_STEPS") != "":
		var err error
		if steps, err = strconv.Atoi(os.Getenv("HISTORY_STEPS")); err != nil {
			t.Fatal(err)
		}
	case raced || testing.Short():
		steps = 2000
	}
	seed, all := turnsSeed(t), newTurnsCounts()
	var mu sync.Mutex
	for i := range uint64(servers) {
		t.Run(fmt.Sprintf("redis %d", i), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.NewServer(t).Client(t)
			counts := turnsHistories(t, rdb, watched(rdb), seed+i<<32, (steps+servers-1)/servers)
			mu.Lock()
			defer mu.Unlock()
			all.add(counts)
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		_, rdb := redistest.Miniredis(t)
		turnsHistories(t, rdb, watched(rdb), turnsSeed(t), min(steps/50, 1000))
	})
	t.Cleanup(func() {
		if !t.Failed() {
			all.enough(t, steps)
		}
	})
}

func (c *turnsCounts) add(other *turnsCounts) {
	c.steps, c.calls, c.reads = c.steps+other.steps, c.calls+other.calls, c.reads+other.reads
	c.looked, c.back = c.looked+other.looked, c.back+other.back
	for what, n := range other.of {
		c.of[what] += n
	}
	for what, n := range other.resent {
		c.resent[what] += n
	}
}

// enough: so many steps were taken, and everything happened that can.
func (c *turnsCounts) enough(t *testing.T, steps int) {
	t.Helper()
	t.Logf("%d steps in %d calls: %v; sent again: %v; %d could not start, %d came in vain", c.steps, c.calls, c.of, c.resent, c.looked, c.back)
	if c.steps < steps {
		t.Errorf("only %d steps were taken, of %d", c.steps, steps)
	}
	for _, one := range happenings {
		if c.of[one.name] < c.steps*one.least/1000 {
			t.Errorf("%s happened %d times in %d steps", one.name, c.of[one.name], c.steps)
		}
	}
	for _, what := range []string{"turn", "wake", "line up"} {
		if c.resent[what] < c.steps/500 {
			t.Errorf("%s was sent again %d times in %d steps", what, c.resent[what], c.steps)
		}
	}
	if c.looked < c.steps/200 {
		t.Errorf("only %d times somebody was first and could not start", c.looked)
	}
}
