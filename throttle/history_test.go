package throttle

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// What an op does.
const (
	doDecide = iota
	doGiveBack
	doAgain
	doRenew
	doRelease
	doChange
	ops
)

// op is one step of a history. Ops name each other by N, so that a history still
// runs with some of them taken out.
type op struct {
	N, Do   int
	Pass    int64 // µs that pass before it; below zero the clock steps back
	Scope   string
	Cost    int64
	Ahead   int64 // µs
	Doomed  bool  // a grant that will be given back
	Of      int   // the op whose grant is meant
	Version int   // of the limits
}

// late is what is asked for since a start before was too late, and by how much this one is: that
// follows from the op's number, so that histories of other flavours stay as they are drawn.
func (o op) late() (ask lateness, by time.Duration) {
	most := []time.Duration{time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond, time.Second}[o.N/4%4]
	switch o.N % 4 {
	case 1, 2:
		return lateness{leeway: most}, time.Duration(o.N%3) * most / 2
	case 3:
		return lateness{from: min(most, us(o.Ahead))}, 0
	}
	return lateness{}, 0
}

func (o op) String() string {
	pass := fmt.Sprintf("%2d after %9dµs: ", o.N, o.Pass)
	switch o.Do {
	case doDecide:
		return pass + fmt.Sprintf("decide %s cost %d ahead %dµs doomed %t", o.Scope, o.Cost, o.Ahead, o.Doomed)
	case doChange:
		return pass + fmt.Sprintf("limits %d", o.Version)
	}
	return pass + fmt.Sprintf("%s %d", [...]string{"", "give back", "again", "renew", "release"}[o.Do], o.Of)
}

// flavour is what may happen in a history.
type flavour struct {
	name                           string
	ahead, steps, changes, twinned bool
	bucket                         bool             // one token bucket, from which much is given back
	quick                          bool             // it is empty again within two seconds, so that its TTL is seldom set
	only                           policy.Algorithm // rules of one algorithm alone
	onUse                          bool             // all fixed windows open on use
	late                           bool             // starts are asked for with leeway, and used late
}

// In a plain history every answer must be the definition's own. What the others
// add makes some rules more careful than that.
var flavours = []flavour{
	{name: "plain"},
	{name: "plain, twinned", twinned: true},
	{name: "ahead", ahead: true},
	{name: "ahead, twinned", ahead: true, twinned: true},
	{name: "clock steps", ahead: true, steps: true},
	{name: "clock steps, none ahead", steps: true},
	{name: "limit changes", changes: true},
	{name: "one bucket", twinned: true, bucket: true},
	{name: "one bucket, ahead", ahead: true, twinned: true, bucket: true},
	{name: "all", ahead: true, steps: true, changes: true},
	{name: "one quick bucket", twinned: true, bucket: true, quick: true},
	{name: "late", ahead: true, late: true},
	{name: "on use", ahead: true, onUse: true},
	{name: "on use, clock steps", ahead: true, steps: true, onUse: true},
}

type randomHistory struct {
	flavour
	seed     uint64
	versions []map[string]policy.ScopeConfig
	scopes   []string
	ops      []op
}

func (h *randomHistory) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d\n", h.name, h.seed)
	for i, limits := range h.versions {
		policy, err := policy.New(policy.UnmatchedDeny, limits)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "limits %d:\n%s", i, limitsyaml.Format(policy))
	}
	for _, o := range h.ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

type drawing struct{ *rand.Rand }

func (r drawing) one(of ...int64) int64 { return of[r.IntN(len(of))] }

func newHistory(seed uint64, steps int) *randomHistory {
	return flavours[seed%uint64(len(flavours))].history(seed, steps)
}

func (f flavour) history(seed uint64, steps int) *randomHistory {
	r := drawing{rand.New(rand.NewPCG(seed, 1))}
	h := &randomHistory{flavour: f, seed: seed, scopes: []string{"p/a", "p/b"}}
	shared := r.IntN(3)
	var rules []policy.Rule
	for i := range max(1, shared+r.IntN(3)) {
		rules = append(rules, h.rule(r, fmt.Sprintf("r%d", i)))
	}
	if h.bucket {
		per := us(r.one(1_000_000, 10_000_000, 60_000_000))
		rules = []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: r.one(3, 7, 20), Per: per, Burst: r.one(2, 5, 20)}}
	}
	if h.quick {
		rules[0].Per, rules[0].Burst = time.Second, r.one(2, 5)
	}
	shared = min(shared, len(rules))
	versions := 1
	if h.changes {
		versions = 4
	}
	for v := range versions {
		if v > 0 {
			for i := range rules {
				rules[i] = h.changed(r, rules[i])
			}
		}
		h.versions = append(h.versions, map[string]policy.ScopeConfig{"p": {
			Rules:  append([]policy.Rule(nil), rules[:shared]...),
			Scopes: map[string]policy.ScopeConfig{"*": {Rules: append([]policy.Rule(nil), rules[shared:]...)}},
		}})
	}
	if shared == len(rules) {
		for i := range h.versions {
			h.versions[i]["p"] = policy.ScopeConfig{Rules: h.versions[i]["p"].Rules}
		}
	}
	h.draw(r, rules, steps)
	return h
}

// rule draws a rule. Windows are short beside the histories and limits small
// beside the costs, so that most of them bind.
func (h *randomHistory) rule(r drawing, name string) policy.Rule {
	rule := policy.Rule{Name: name, Per: us(r.one(250_000, 1_000_000, 2_000_000, 10_000_000, 60_000_000)), Limit: r.one(1, 2, 3, 7, 20)}
	rule.Algorithm = []policy.Algorithm{policy.TokenBucket, policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency, policy.Calendar}[r.IntN(6)]
	if h.only != "" {
		rule.Algorithm = h.only
	}
	switch rule.Algorithm {
	case policy.TokenBucket:
		rule.Burst = r.one(1, 2, 5, 20)
	case policy.SlidingWindow:
		if r.IntN(3) == 0 {
			rule.Limit = r.one(129, 300)
		}
	case policy.Concurrency:
		return policy.Rule{Name: name, Algorithm: policy.Concurrency, Limit: r.one(1, 2, 5), Lease: us(r.one(1_000_000, 5_000_000, 30_000_000))}
	case policy.Calendar:
		return h.calendar(r, rule)
	}
	if r.IntN(6) == 0 {
		rule.Margin = rule.Per / 8
	}
	// By the seed: so histories stay as they are drawn.
	rule.OpensOnUse = rule.Algorithm == policy.FixedWindow && (h.onUse || h.seed/uint64(len(flavours))%3 == 0 && h.only == "")
	return rule
}

// calendar draws when a rule resets, and what becomes of what is left.
func (h *randomHistory) calendar(r drawing, rule policy.Rule) policy.Rule {
	of := modelCalendars[r.IntN(len(modelCalendars))]
	rule.Resets, rule.Per = wallclock.MustParse(of.resets, of.timezone), 0
	rule.Rollover, rule.Spread = r.one(0, 0, 1, 5, 30), r.IntN(3) == 0
	if rule.Margin = 0; r.IntN(6) == 0 {
		rule.Margin = 7500 * time.Millisecond
	}
	return rule
}

// changed is the rule after somebody has changed it.
func (h *randomHistory) changed(r drawing, rule policy.Rule) policy.Rule {
	was := rule
	if rule.Algorithm == policy.Concurrency {
		rule.Limit, rule.Lease = r.one(1, 2, 5), us(r.one(1_000_000, 5_000_000, 30_000_000))
		return rule
	}
	switch r.IntN(6) {
	case 0:
		rule.Limit = r.one(1, 2, 3, 7, 20)
	case 1:
		if rule.Algorithm == policy.Calendar {
			return h.calendar(r, rule)
		}
		rule.Per = us(r.one(250_000, 1_000_000, 2_000_000, 10_000_000, 60_000_000))
		rule.Margin = 0
	case 2:
		rule.Limit = 0
	case 3:
		if rule.Algorithm == policy.TokenBucket {
			rule.Burst = r.one(1, 2, 5, 20)
		}
	default:
		for rule = h.rule(r, rule.Name); rule.Algorithm == policy.Concurrency; {
			rule = h.rule(r, rule.Name) // only flips between what counts units
		}
	}
	if rule.Limit == 0 && was.Algorithm != rule.Algorithm {
		rule.Limit = 1
	}
	return rule
}

func (h *randomHistory) draw(r drawing, rules []policy.Rule, steps int) {
	rule := rules[r.IntN(len(rules))]
	scale := max(rule.Per, rule.Lease).Microseconds()
	if rule.Algorithm == policy.Calendar {
		scale, _ = spanOf(rule, 0)
	}
	costs := []int64{1, 1, 1, 2, 3, rule.Limit, max(rule.Limit/3, 1), rule.Burst + 1}
	var doomed []int
	for n := range steps {
		o := op{N: n, Scope: h.scopes[r.IntN(len(h.scopes))], Cost: max(1, r.one(costs...)), Of: r.IntN(n + 1)}
		switch r.IntN(8) {
		case 0, 1, 2:
		case 3:
			o.Pass = 1
		case 4, 5:
			o.Pass = r.Int64N(scale/10 + 1)
		case 6:
			o.Pass = r.Int64N(scale)
		case 7:
			if r.IntN(4) == 0 {
				o.Pass = r.Int64N(3 * scale)
			}
		}
		if h.steps && r.IntN(12) == 0 {
			o.Pass = r.one(-1, -1000, -r.Int64N(scale+1), -59_000_000, -61_000_000, -r.Int64N(100_000_000), -3_600_000_000, r.Int64N(100_000_000))
		}
		if h.ahead && r.IntN(2) == 0 {
			o.Ahead = r.one(r.Int64N(min(scale, MaxDelayLimit.Microseconds())+1), r.Int64N(5_000_000), r.Int64N(MaxDelayLimit.Microseconds()+1))
		}
		switch {
		case r.IntN(10) < 6:
			o.Doomed = r.IntN(4) == 0 || h.bucket && r.IntN(2) == 0
			if o.Doomed {
				doomed = append(doomed, n)
			}
		case len(doomed) > 0 && r.IntN(2) == 0:
			i := r.IntN(len(doomed))
			o.Do, o.Of = doGiveBack, doomed[i]
			doomed = append(doomed[:i], doomed[i+1:]...)
		default:
			o.Do = 1 + r.IntN(ops-1)
			if o.Do == doGiveBack && h.twinned {
				o.Do = doAgain
			}
			o.Of = max(0, n-1-r.IntN(8))
			o.Version = r.IntN(len(h.versions))
		}
		h.ops = append(h.ops, o)
	}
}

// run runs a history and returns what it found wrong, with the step. Keys expire by
// the wall's clock too: where one step took so long that they may have, what it
// found says nothing, and the rest of the history is left out.
func (h *randomHistory) run(rdb redis.UniversalClient, prefix string) (found string) {
	n, began := -1, time.Now()
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			if time.Since(began) < stall {
				found = fmt.Sprintf("step %d: %s", n, f)
			}
		default:
			panic(f)
		}
	}()
	w := newWorld(rdb, prefix, h)
	for _, o := range h.ops {
		n, began = o.N, time.Now()
		w.do(o)
		if time.Since(began) > stall {
			return ""
		}
	}
	w.done(prefix)
	return ""
}

// shrink takes out what a failing history fails without: halves, quarters, … ,
// single steps.
func (h *randomHistory) shrink(rdb redis.UniversalClient, prefix string) (*randomHistory, string) {
	least, found := *h, h.run(rdb, prefix+"s")
	tries := 0
	for size := len(least.ops) / 2; size >= 1; size /= 2 {
		for at := 0; at+size <= len(least.ops) && tries < 600; {
			less := least
			less.ops = append(append([]op(nil), least.ops[:at]...), least.ops[at+size:]...)
			tries++
			if f := less.run(rdb, prefix+"s"+strconv.Itoa(tries)); f != "" {
				least, found = less, f
			} else {
				at += size
			}
		}
	}
	return &least, found
}

// histories runs random histories, steps of them in all, and reports the first
// that goes wrong, as short as it can be made.
func histories(t *testing.T, rdb redis.UniversalClient, seed uint64, steps, each int) {
	t.Helper()
	t.Logf("seed %d; repeat with HISTORY_SEED=%d", seed, seed)
	for done := 0; done < steps; done += each {
		h := newHistory(seed, each)
		prefix := "h" + t.Name()[len(t.Name())-1:] + strconv.FormatUint(seed, 36) // one seed may be run twice at once
		if found := h.run(rdb, prefix); found != "" {
			least, fault := h.shrink(rdb, prefix)
			t.Fatalf("%s\nof %d steps; shortest:\n%s%s", found, each, least, fault)
		}
		seed++
	}
}

func historySeed(t *testing.T) uint64 {
	t.Helper()
	if s := os.Getenv("HISTORY_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return seed
	}
	return rand.Uint64N(1 << 40)
}

// Random histories of everything that can happen to rules (decisions under
// several at once, starts ahead, costs, giving back, sending again, renewing,
// releasing, clock steps, changed limits, keys that expire) against the model.
// HISTORY_STEPS makes them longer.
func TestHistories(t *testing.T) {
	t.Parallel()
	steps := 10_000
	if raced {
		steps = 2500
	}
	if s := os.Getenv("HISTORY_STEPS"); s != "" {
		var err error
		if steps, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		t.Run(fmt.Sprintf("redis %d", i), func(t *testing.T) {
			t.Parallel()
			histories(t, redistest.Client(t), historySeed(t), steps, 100)
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		_, rdb := redistest.Miniredis(t)
		histories(t, rdb, historySeed(t), 600, 60)
	})
}
