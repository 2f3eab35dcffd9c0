package throttle

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Where a waiter is.
type stage int

const (
	fresh    stage = iota
	waits          // it stands in its queue
	straight       // it was told that it goes straight to asynq
	released       // it was granted a start, and has not come
	aside          // its place is kept while its group stands still
	running        // it has come
	astray         // it may be anywhere, and may come or not
	gone
)

// waiter is one task.
type waiter struct {
	WaiterRef
	priority int
	lane     string
	stage    stage
	order    int64 // of first asking, in its scope and priority
	passed   bool  // it was put elsewhere than its order says, by news or a changed limit
	placed   int64 // when it was put at the end of its queue
	aside    bool  // it has been parked
	left     int64 // when it was granted last
	asks     int
	d        Decision
}

func (t *waiter) key() string { return t.ticket() }

// strides are those of the lanes of histories and scenes.
var strides = map[string]int{"critical": 1, "default": 2, "low": 6}

// costsByUnit is what it costs by unit, nil where that is a number.
func (t *waiter) costsByUnit() policy.Costs {
	if t.costs == "" {
		return nil
	}
	costs, err := policy.ParseCosts(t.costs)
	must(err)
	return costs
}

// queueHistory is a random history of those who wait. What a step does is drawn from its number and what it finds, so that a
// history still runs with some of its steps left out.
type queueHistory struct {
	seed         uint64
	versions     []map[string]policy.ScopeConfig
	scopes       []string
	lead, spread int64
	steps        bool
	weight       int64                   // of one of the tenants
	shares       map[string]policy.Share // of the names below each
	raises       bool                    // an API can make more of a rule than its limit
	units        bool                    // rules count requests and tokens, and tasks cost by unit
	each         int
	left         map[int]bool // steps left out
	log          []string
	counts       *queueCounts
}

// queueCounts is what histories came to.
type queueCounts struct {
	steps int
	of    map[string]int
}

func newQueueCounts() *queueCounts { return &queueCounts{of: map[string]int{}} }

func newQueueHistory(seed uint64, each int) *queueHistory {
	r := drawing{rand.New(rand.NewPCG(seed, 2))}
	h := &queueHistory{
		seed: seed, each: each, scopes: []string{"p/a/x", "p/a/y", "p/b/x", "p/c/x"}, counts: newQueueCounts(),
		lead: r.one(0, 10_000, 30_000, 100_000), spread: r.one(0, 20_000, 80_000), left: map[int]bool{},
	}
	h.steps, h.units = r.IntN(6) == 0, seed%3 == 0
	h.raises = seed%6 == 0
	levels := [3]int{r.IntN(3), r.IntN(2), r.IntN(2)}
	if levels == [3]int{} {
		levels[r.IntN(3)] = 1
	}
	var rules [3][]policy.Rule
	h.weight = 1 + int64(seed%7) // not drawn: the histories of each seed stay what they were
	if seed%3 == 0 {
		h.shares = map[string]policy.Share{"x": {Guaranteed: 60}, "y": {Weight: 3}}
	}
	for level, n := range levels {
		for range n {
			rule := r.rule(fmt.Sprintf("r%d%d", level, len(rules[level])))
			if level == 0 && rule.Algorithm != policy.Concurrency {
				rule.Limit = max(rule.Limit, 3)
			}
			rule.Per = min(rule.Per, 10*time.Second)
			rule.Margin = min(rule.Margin, rule.Per/8)
			rule = paid(rule)
			if h.units && rule.Algorithm != policy.Concurrency && r.IntN(2) == 0 {
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
		corrects := policy.Corrects{}
		if h.raises && v != 1 {
			corrects.Most = raisedTo
		}
		h.versions = append(h.versions, map[string]policy.ScopeConfig{"p": {
			Corrects: corrects,
			Rules:    append([]policy.Rule(nil), rules[0]...),
			Scopes: map[string]policy.ScopeConfig{
				"*": {
					Rules:  append([]policy.Rule(nil), rules[1]...),
					Scopes: map[string]policy.ScopeConfig{"*": {Rules: append([]policy.Rule(nil), rules[2]...)}},
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
func changedLimit(r drawing, rule policy.Rule) policy.Rule {
	switch {
	case rule.Algorithm == policy.Concurrency:
		rule.Limit = r.one(0, 1, 2, 5)
	case r.IntN(4) == 0:
		rule.Limit = 0
	default:
		rule.Limit = r.one(1, 2, 3, 7, 20)
	}
	if rule.Algorithm == policy.TokenBucket && r.IntN(2) == 0 {
		rule.Burst = r.one(1, 2, 5, 20)
	}
	return rule
}

func (h *queueHistory) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, lead %dµs, spread %dµs\n", h.seed, h.lead, h.spread)
	for i, limits := range h.versions {
		policy, err := policy.New(policy.UnmatchedDeny, limits)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "limits %d:\n%s", i, limitsyaml.Format(policy))
	}
	b.WriteString(strings.Join(h.log, "\n"))
	return b.String()
}

func (w *queueWorld) newTask(r drawing) *waiter {
	scope := w.h.scopes[r.IntN(len(w.h.scopes))]
	t := &waiter{priority: int(r.one(0, 0, 0, 0, 1, -1, 1_000_000))}
	t.WaiterRef = WaiterRef{Scope: scope, ID: fmt.Sprintf("t%d", len(w.tasks)), cost: r.one(1, 1, 1, 2, 3, 20)}
	if w.h.seed%4 == 1 { // not drawn: the histories of each seed stay what they were
		t.lane = []string{"critical", "low", "default", "low", ""}[len(w.tasks)%5]
	}
	first, err := w.limiters[0].scopes.of(scope)
	must(err)
	least := func(unit string) int64 {
		most := int64(math.MaxInt64)
		for _, b := range first.bounds {
			if b.Rule.Algorithm != policy.Concurrency && (unit == "" || b.Rule.Unit == unit) {
				most = min(most, b.Rule.Capacity())
			}
		}
		return most
	}
	if w.h.units && r.IntN(4) > 0 {
		costs := policy.Costs{policy.Requests: min(r.one(0, 1, 1, 2), least(policy.Requests)), "tokens": min(r.one(0, 1, 3, 20), least("tokens"))}
		if costs[policy.Requests] == 1 && r.IntN(2) == 0 {
			delete(costs, policy.Requests) // it is 1 all the same
		}
		if costs["tokens"] == 0 && r.IntN(2) == 0 {
			delete(costs, "tokens")
		}
		for _, b := range first.bounds {
			if charged(costs, b.Rule) > 0 && costs.Check() == nil {
				t.cost, t.costs = 0, costs.String()
			}
		}
	}
	if len(w.tasks)%3 == 0 {
		t.ID = "g/" + t.ID
	}
	t.cost = min(t.cost, least(""))
	w.add(t)
	return t
}

// ahead is how far ahead a start may be: mostly as far as who is released needs.
func (w *queueWorld) ahead(r drawing) int64 {
	enough := w.h.lead + w.h.spread + 1000
	return r.one(enough, enough, enough, 0, 1_000_000)
}

// some picks one who is at one of these stages.
func (w *queueWorld) some(r drawing, stages []stage, do func(*waiter)) bool {
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

// passes is how long it is until the next step.
func (*queueWorld) passes(r drawing) int64 {
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

func (*queueWorld) goesFirst(a, b *waiter, how string) {
	if a.Scope != b.Scope || a.passed || b.passed {
		return
	}
	// Places of many who come at once run ahead of the clock, and who comes then to a line that one of
	// them has left for a while, of another group, may be before it.
	if (a.aside || b.aside) && strings.HasPrefix(a.ID, "g/") != strings.HasPrefix(b.ID, "g/") && max(a.placed, b.placed)-min(a.placed, b.placed) < 100_000 {
		return
	}
	// Places go by the clock, in ms, and those of many who come at once run ahead of it: who comes to a queue
	// that is empty, since its tasks were granted, may have the place that one of them comes back to.
	if (a.left > 0 || b.left > 0) && max(a.placed, b.placed)-min(a.placed, b.placed) < 10_000 {
		return
	}
	// Lanes share their turns. Who came back to the front, and who has no lane, keep their order
	// towards all.
	if shares := a.lane != "" && b.lane != "" && a.order > 0 && b.order > 0; shares && a.lane != b.lane && a.priority == b.priority {
		return
	}
	if order := cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.order, b.order)); order > 0 {
		fail("%s (priority %d, asked %d) went before %s (priority %d, asked %d), which was %s",
			a.key(), a.priority, a.order, b.key(), b.priority, b.order, how)
	}
}

// shrink leaves out what a failing history fails without.
func (h *queueHistory) shrink(rdb redis.UniversalClient, prefix string) string {
	tries := 0
	found := h.run(rdb, prefix+"s")
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
		if f := h.run(rdb, fmt.Sprintf("%ss%d", prefix, tries)); f != "" {
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
	h.run(rdb, prefix+"l")
	return found
}

// eachHistory is how many steps one history has at most: enough for queues to grow,
// and few enough for them to be emptied often.
const eachHistory = 80

// queueSeed is HISTORY_SEED, or always the same: of histories drawn at random one in
// some thousands still differs from the model.
func queueSeed(t *testing.T) uint64 {
	t.Helper()
	if os.Getenv("HISTORY_SEED") != "" {
		return historySeed(t)
	}
	return 1
}

// raised is the rule at the most that an API can make of it.
func raisedOf(b policy.MatchedRule) policy.Rule {
	r := b.Rule
	if most := mostMillionths(b); most > 0 {
		r.Limit = mostOf(r.Limit, most)
	}
	return r
}

// outStays is how long a task that was granted is on its way, in µs.
const outStays = 3_000_000

// bigBucket binds nobody for long: those who wait for it have their turns in order.
var bigBucket = []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 50}}

// paid gives a bucket a burst that pays for its margin: the model's bucket refills limit in per. Package
// test/reference models the others.
func paid(rule policy.Rule) policy.Rule {
	if rule.Algorithm == policy.TokenBucket && rule.Margin > 0 {
		rule.Burst = max(rule.Burst, 1+(rule.Limit*int64(rule.Margin)+int64(rule.Per)-1)/int64(rule.Per))
	}
	return rule
}
