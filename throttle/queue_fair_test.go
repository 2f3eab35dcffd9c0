package throttle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// fairCase is scopes that wait all the time, and what their names may differ by.
type fairCase struct {
	name   string
	limits map[string]policy.ScopeConfig
	scopes []string
	// weights are those of the names that share, each of all scopes below it.
	weights map[string]float64
	most    int64 // the most that a task costs
	starts  int
	slack   int // tasks of a name that may start before what they cost counts
}

func weighed(weights map[string]int64) map[string]policy.ScopeConfig {
	nodes := map[string]policy.ScopeConfig{}
	for name, weight := range weights {
		nodes[name] = policy.ScopeConfig{Weight: weight}
	}
	return nodes
}

var fairCases = []fairCase{
	{
		name: "1:1", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket}},
		scopes: []string{"p/a", "p/b", "p/c"}, weights: map[string]float64{"p/a": 1, "p/b": 1, "p/c": 1}, most: 1, starts: 60,
	},
	{
		name: "1:3", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: weighed(map[string]int64{"b": 3})}},
		scopes: []string{"p/a", "p/b"}, weights: map[string]float64{"p/a": 1, "p/b": 3}, most: 1, starts: 80,
	},
	{
		name: "1000:1", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: weighed(map[string]int64{"*": 1000, "b": 1})}},
		scopes: []string{"p/a", "p/b"}, weights: map[string]float64{"p/a": 1000, "p/b": 1}, most: 1, starts: 60,
	},
	{
		name: "weights and costs", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: weighed(map[string]int64{"b": 3, "c": 7})}},
		scopes: []string{"p/a", "p/b", "p/c"}, weights: map[string]float64{"p/a": 1, "p/b": 3, "p/c": 7}, most: 20, starts: 200,
	},
	{
		name: "a tenant of three endpoints beside a tenant of one", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket}},
		scopes:  []string{"p/a/x", "p/a/y", "p/a/z", "p/b/x"},
		weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 1, starts: 80,
	},
	{
		name: "three endpoints, and costs", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: weighed(map[string]int64{"a": 2})}},
		scopes:  []string{"p/a/x", "p/a/y", "p/a/z", "p/b/x"},
		weights: map[string]float64{"p/a": 2, "p/b": 1}, most: 10, starts: 150, slack: 2,
	},
	{
		name: "classes, each with its part of 60, 20 and what is left", limits: map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Shares: map[string]policy.Share{
			"i": {Guaranteed: 60}, "b": {Guaranteed: 20, Weight: 1}, "x": {Weight: 2},
		}}},
		scopes: []string{"p/i", "p/b", "p/x"}, weights: map[string]float64{"p/i": .65, "p/b": .25, "p/x": .10}, most: 1, starts: 100,
	},
	{
		name: "classes below a tenant whose own rule would let all through", limits: classesOfA,
		scopes: []string{"p/a/i", "p/a/b", "p/c", "p/d"}, weights: map[string]float64{"p/a/i": .75, "p/a/b": .25}, most: 1, starts: 200,
	},
	{
		name: "and beside that tenant others have theirs", limits: classesOfA,
		scopes: []string{"p/a/i", "p/a/b", "p/c", "p/d"}, weights: map[string]float64{"p/a": 1, "p/c": 1, "p/d": 1}, most: 1, starts: 200,
	},
	{
		name: "an own rule that lets through a little less than the account's", limits: map[string]policy.ScopeConfig{"p": {
			Rules:  []policy.Rule{{Name: "all", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 1}},
			Scopes: map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.TokenBucket, Limit: 90, Per: sec, Burst: 1}}}},
		}},
		scopes: []string{"p/a", "p/b"}, weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 1, starts: 80, slack: 1,
	},
}

// classesOfA has classes below a tenant.
var classesOfA = map[string]policy.ScopeConfig{"p": {
	Rules:  bigBucket,
	Scopes: map[string]policy.ScopeConfig{"a": {Rules: plenty, Shares: map[string]policy.Share{"i": {Guaranteed: 50}, "b": {Weight: 1}}}},
}}

// "Of two names that wait all the time neither is ahead of its share by more than a task of its own and one of the other."
func TestSharesOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	for i, c := range fairCases {
		onBothIn(t, c.name, Config{}, policyOf(t, bigBucket[0]), func(b *bench) {
			if i > 1 && strings.HasSuffix(b.t.Name(), "/miniredis") {
				return // it interprets the same scripts, slowly
			}
			if found := c.run(b.rdb, b.cfg.Prefix+"fair"); found != "" {
				b.t.Error(found)
			}
		})
	}
}

func (c fairCase) run(rdb redis.UniversalClient, prefix string) string {
	return faultOf(func() {
		f := newFairWorld(rdb, prefix, c.limits, c.scopes)
		r := rand.New(rand.NewPCG(1, 1))
		cost := func() int64 { return 1 + r.Int64N(c.most) }
		for _, scope := range c.scopes {
			f.add(scope, cost(), 0)
			f.add(scope, cost(), 0)
		}
		f.run(c.starts, func(started WaiterRef) { f.add(started.Scope, cost(), 0) })
		f.fair(c)
	})
}

// faultOf returns what a world finds wrong.
func faultOf(play func()) (found string) {
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
	play()
	return ""
}

// fairWorld is a world of which the order of starts counts.
type fairWorld struct {
	*queueWorld
	started []WaiterRef
}

func newFairWorld(rdb redis.UniversalClient, prefix string, limits map[string]policy.ScopeConfig, scopes []string) *fairWorld {
	h := &queueHistory{seed: 1, counts: newQueueCounts(), lead: 5000, scopes: scopes, versions: []map[string]policy.ScopeConfig{limits}}
	w := newQueueWorld(rdb, prefix, h)
	first := &waiter{WaiterRef: WaiterRef{Scope: scopes[0], ID: "first", cost: w.plan(scopes[0]).most}}
	if first.cost > 1<<30 {
		first.cost = 1
	}
	w.add(first)
	w.ask(first, comes, 0, 0) // all of the burst: from now on they wait
	return &fairWorld{queueWorld: w}
}

func (f *fairWorld) add(scope string, cost int64, priority int) *waiter {
	t := &waiter{WaiterRef: WaiterRef{Scope: scope, ID: fmt.Sprintf("t%d", len(f.tasks)), cost: cost}, priority: priority}
	f.queueWorld.add(t)
	f.ask(t, comes, 0, 0)
	return t
}

// run goes on until so many have started.
func (f *fairWorld) run(starts int, then func(WaiterRef)) {
	for looks := 0; len(f.started) < starts; looks++ {
		if looks > 50*starts {
			fail("only %d started", len(f.started))
		}
		d := f.dispatch(4, 0, false)
		for _, g := range d.Granted {
			t := f.byTicket[g.ID]
			f.ask(t, comes, 20_000, 0)
			if t.stage != running {
				fail("%s was granted its start and could not start", t.ID)
			}
			f.started = append(f.started, t.WaiterRef)
			then(t.WaiterRef)
		}
		if len(d.Granted) == 0 {
			f.now += max(1, d.Next.Microseconds())
		}
	}
}

// meta is what is kept of nodes.
func (f *fairWorld) meta() map[string]string {
	return f.rdb.HGetAll(ctx, metaKey(keyspace(f.prefix).provider("p"))).Val()
}

// order is the scopes of those who started.
func (f *fairWorld) order() string {
	var b strings.Builder
	for _, p := range f.started {
		b.WriteString(" " + strings.TrimPrefix(p.Scope, "p/"))
	}
	return b.String()
}

// fair: in no interval are two names further from each other than their tasks allow.
func (f *fairWorld) fair(c fairCase) {
	names := []string{}
	for name := range c.weights {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, a := range names {
		for _, b := range names[i+1:] {
			bound := float64(c.most)*float64(1+c.slack)*(1/c.weights[a]+1/c.weights[b]) + 0.01
			ahead, least, most := 0.0, 0.0, 0.0
			for at, p := range f.started {
				units := float64(max(1, p.cost))
				switch {
				case p.Scope == a || strings.HasPrefix(p.Scope, a+"/"):
					ahead += units / c.weights[a]
				case p.Scope == b || strings.HasPrefix(p.Scope, b+"/"):
					ahead -= units / c.weights[b]
				}
				least, most = math.Min(least, ahead), math.Max(most, ahead)
				if most-least > bound {
					fail("by start %d %s and %s are %.2f apart, of %.2f at most: %s", at, a, b, most-least, bound, f.order())
				}
			}
		}
	}
}

// "Whatever waits of one tenant, another's first task waits for a turn of each name that waits, and no more."
func TestBacklogDelaysNobodysFirst(t *testing.T) {
	t.Parallel()
	const waiting, batch = 100_000, 5000
	policy := policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 1})
	b := newBench(t, redistest.Client(t), Config{}, policy)
	b.decide(Request{Scope: "p/big"})
	for i := 0; i < waiting; i += batch {
		asks := make([]Waiter, batch)
		for k := range asks {
			asks[k] = Waiter{Scope: "p/big", ID: fmt.Sprint(i + k), Cost: 1}
		}
		lineUpAll(b, asks)
	}
	b.decide(Request{Scope: "p/small", Turn: Turn{WaiterID: "only"}})
	for range 3 {
		b.now.Add(10_000)
		woken := b.dispatch(DispatchRequest{Max: 1}).Granted
		if len(woken) != 1 {
			t.Fatalf("%+v", woken)
		}
		if woken[0].Scope == "p/small" {
			return
		}
		b.decide(Request{Scope: "p/big", Turn: Turn{WaiterID: woken[0].ID}, MaxDelay: sec})
	}
	t.Error("three turns went by, and the other tenant's first task has had none")
}

// shareScenes are what weights must not be got around by, and must not get in the way of.
var shareScenes = []struct {
	name   string
	limits map[string]policy.ScopeConfig
	scopes []string
	play   func(f *fairWorld)
}{
	// Costly tasks, one at a time, are paid for as if more were waiting.
	{"a costly line that empties", map[string]policy.ScopeConfig{"p": {Rules: bigBucket}}, []string{"p/a", "p/b"}, func(f *fairWorld) {
		f.add("p/a", 50, 0)
		for range 3 {
			f.add("p/b", 1, 0)
		}
		f.run(160, func(p WaiterRef) { f.add(p.Scope, max(1, p.cost), 0) })
		f.fair(fairCase{weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 50})
	}},
	// Who comes back after others had many turns has no credit for the time.
	{"idle for long", map[string]policy.ScopeConfig{"p": {Rules: bigBucket}}, []string{"p/a", "p/b"}, func(f *fairWorld) {
		f.add("p/a", 1, 0)
		f.add("p/b", 1, 0)
		f.add("p/b", 1, 0)
		f.run(50, func(p WaiterRef) {
			if p.Scope == "p/b" {
				f.add("p/b", 1, 0)
			}
		})
		for range 20 {
			f.add("p/a", 1, 0)
		}
		f.started = nil
		f.run(30, func(p WaiterRef) { f.add(p.Scope, 1, 0) })
		f.fair(fairCase{weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 1})
	}},
	// Endpoints that come together are one tenant's.
	{"many endpoints at once", map[string]policy.ScopeConfig{"p": {Rules: bigBucket}}, classes("a/%d", 5), func(f *fairWorld) {
		for _, scope := range f.h.scopes {
			f.add(scope, 1, 0)
		}
		f.add("p/b", 1, 0)
		f.run(14, func(p WaiterRef) { f.add(p.Scope, 1, 0) })
		f.fair(fairCase{weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 1})
	}},
	// Who needs much of a unit is not starved by those who take of another too.
	{"saved across units", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "calls", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 50},
		{Name: "tokens", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 50, Unit: "tokens"},
	}}}, []string{"p/a", "p/b"}, func(f *fairWorld) {
		dear := &waiter{WaiterRef: WaiterRef{Scope: "p/a", ID: "dear", costs: "requests=40"}}
		f.queueWorld.add(dear)
		f.ask(dear, comes, 0, 0)
		for range 5 {
			f.add("p/b", 1, 0)
		}
		f.run(60, func(p WaiterRef) {
			if p.ID != "dear" {
				f.add("p/b", 1, 0)
			}
		})
		if dear.stage != running {
			fail("those of b had all calls, and the one of a none: %s", f.order())
		}
	}},
	// Priority comes before every share.
	{"priorities", map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: weighed(map[string]int64{"b": 100})}}, []string{"p/a", "p/b"}, func(f *fairWorld) {
		for range 5 {
			f.add("p/b", 1, 0)
		}
		for range 5 {
			f.add("p/a", 1, 1)
		}
		f.run(10, func(WaiterRef) {})
		if got := f.order(); got != " a a a a a b b b b b" {
			fail("with priority 1 those of a go first: %s", got)
		}
	}},
	// Who started while nobody was there to wake has not taken slots for ever.
	{"nobody wakes", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: sec}}}},
		[]string{"p/a", "p/b"}, func(f *fairWorld) {
			f.add("p/b", 1, 0)
			for range 20 {
				t := f.add("p/a", 1, 0)
				f.now += 3_000_000
				f.ask(t, comes, 0, 0)
				if t.stage != running {
					fail("nobody wakes, and it has not started")
				}
			}
			f.add("p/a", 1, 0)
			f.run(30, func(p WaiterRef) { f.add(p.Scope, 1, 0) })
			f.fair(fairCase{weights: map[string]float64{"p/a": 1, "p/b": 1}, most: 1})
		}},
	// Of tenants that never come again nothing stays, while another waits all the time.
	{"times of the past", map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: map[string]policy.ScopeConfig{"*": {Rules: plenty}}}},
		classes("t%d/x", 6), func(f *fairWorld) {
			again := func(p WaiterRef) {
				if p.Scope == "p/b" {
					f.add("p/b", 1, 0)
				}
			}
			f.add("p/b", 1, 0)
			f.add("p/b", 1, 0)
			for _, scope := range f.h.scopes[:6] {
				f.add(scope, 1, 0)
				f.run(len(f.started)+2, again)
			}
			f.run(len(f.started)+100, again)
			for field := range f.meta() {
				if strings.Contains(field, "/t") {
					fail("%q is kept: %v", field, f.meta())
				}
			}
		}},
	// Places go with the weights of their level, and hide nobody when weights come back.
	{"weights that go and come", map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: map[string]policy.ScopeConfig{"a": {
		Rules: plenty, Shares: map[string]policy.Share{"6": {Weight: 1}, "7": {Weight: 3}},
	}}}}, classes("a/%d", 8), func(f *fairWorld) {
		f.know(map[string]policy.ScopeConfig{"p": {Rules: bigBucket, Scopes: map[string]policy.ScopeConfig{"a": {Rules: plenty}}}})
		f.disturbed = true // lines that no look has met keep what they had
		for _, scope := range f.h.scopes[:6] {
			f.add(scope, 1, 0)
		}
		f.add("p/b", 1, 0)
		f.add("p/b", 1, 0)
		f.version = 1
		f.run(30, func(p WaiterRef) {
			if p.Scope == "p/b" {
				f.add(p.Scope, 1, 0)
			}
		})
		f.version, f.started = 0, nil
		for _, scope := range []string{"p/a/6", "p/a/6", "p/a/7", "p/a/7"} {
			f.add(scope, 1, 0)
		}
		f.run(90, func(p WaiterRef) { f.add(p.Scope, 1, 0) })
		f.fair(fairCase{weights: map[string]float64{"p/a/6": 1, "p/a/7": 3}, most: 1})
	}},
}

var plenty = []policy.Rule{{Name: "own", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000}}

// classes are so many scopes, and the tenant b.
func classes(format string, n int) (scopes []string) {
	for i := range n {
		scopes = append(scopes, "p/"+fmt.Sprintf(format, i))
	}
	return append(scopes, "p/b")
}

func TestShareScenes(t *testing.T) {
	t.Parallel()
	for i, s := range shareScenes {
		onBothIn(t, s.name, Config{}, policyOf(t, bigBucket[0]), func(b *bench) {
			if i > 1 && strings.HasSuffix(b.t.Name(), "/miniredis") {
				return
			}
			found := faultOf(func() { s.play(newFairWorld(b.rdb, b.cfg.Prefix+"scene", s.limits, s.scopes)) })
			if found != "" {
				b.t.Error(found)
			}
		})
	}
}

// A level may begin to have rules, and cease to, while scopes below it wait: those who sat down before have their turns.
func TestLevelGetsRulesWhileScopesWait(t *testing.T) {
	t.Parallel()
	limits := func(own string) *policy.Policy {
		return parsedPolicy(t, `limits: {p: {rules: [{name: rpm, algorithm: token-bucket, limit: 1, per: 1s}],
  scopes: {acme: {rules: [`+own+`], shares: {i: {part: 60%}, b: {weight: 1}}, scopes: {"*": {}}}}}}`)
	}
	const own = "{name: own, algorithm: token-bucket, limit: 1000, per: 1s, burst: 1000}"
	const tokens = "{name: tokens, algorithm: token-bucket, limit: 1000, per: 1s, burst: 1000, unit: tokens}"
	for name, policies := range map[string][2]*policy.Policy{"gets": {limits(""), limits(own)}, "loses": {limits(own + ", " + tokens), limits(own)}} {
		onBothIn(t, name, Config{}, policies[0], func(b *bench) {
			var asks []Waiter
			costs := map[string]policy.Costs{}
			for i := range 10 {
				costs[fmt.Sprint("b", i)] = policy.Costs{policy.Requests: int64(i % 2), "tokens": 5}
				asks = append(asks, Waiter{Scope: "p/acme/i", ID: fmt.Sprint("i", i)},
					Waiter{Scope: "p/acme/b", ID: fmt.Sprint("b", i), Costs: costs[fmt.Sprint("b", i)]})
			}
			_, err := b.Waitlist().Join(ctx, asks, 0, 0)
			noError(b.t, err)
			b.SetPolicy(policies[1])
			came := map[string]int{}
			for range 80 {
				for _, p := range b.dispatch(DispatchRequest{Max: 1, CheckAll: true}).Granted {
					if d := b.decide(Request{Scope: p.Scope, Turn: Turn{WaiterID: p.ID}, Costs: costs[p.ID]}); d.Allowed {
						came[p.ID]++
					}
				}
				b.pass(sec)
			}
			for ticket, n := range came {
				if n > 1 {
					b.t.Errorf("%s came %d times", ticket, n)
				}
			}
			waiting := b.rdb.Exists(ctx, scheduleKey(b.provider("p"))).Val() > 0
			if waiting || len(came) < len(asks)-6 { // but the first, and those that no rule counted
				b.t.Errorf("%d of %d came, and some wait: %t", len(came), len(asks), waiting)
			}
		})
	}
}
