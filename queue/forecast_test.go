package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Forecasts are compared with a plain simulation of the rules, which starts one task after the other and keeps every start.

// world is rules and the lines before them, in whole microseconds.
type world struct {
	now    int64
	rules  []*plainRule
	paths  [][]int // of each scope, the numbers of its rules
	queues [][]int64
	turn   []int // scopes, the one whose turn is next first
}

// plainRule keeps every unit that it gave.
type plainRule struct {
	algorithm         policy.Algorithm
	limit, burst, per int64
	taken             []taken
	full              int64 // of a bucket: what it lacks at `at`, in parts of which per are a unit
	at                int64
}

type taken struct{ at, units int64 }

func (r *plainRule) since(from, to int64) (units int64) {
	for _, x := range slices.Backward(r.taken) {
		if x.at < from {
			break
		}
		if x.at < to {
			units += x.units
		}
	}
	return units
}

// earliest is the first moment from t on at which there is room for a cost.
func (r *plainRule) earliest(t, cost int64) int64 {
	switch r.algorithm {
	case policy.TokenBucket:
		over := r.full - (t-r.at)*r.limit - (r.burst-cost)*r.per
		if over <= 0 {
			return t
		}
		return t + (over+r.limit-1)/r.limit
	case policy.FixedWindow, policy.Calendar: // one of even periods
		for r.since(t-t%r.per, t-t%r.per+r.per)+cost > r.limit {
			t += r.per - t%r.per
		}
		return t
	default:
		for _, x := range r.taken {
			if r.since(t-r.per+1, t+1)+cost <= r.limit {
				break
			}
			t = max(t, x.at+r.per)
		}
		return t
	}
}

func (r *plainRule) take(t, cost int64) {
	r.taken = append(r.taken, taken{t, cost})
	r.full, r.at = max(0, r.full-(t-r.at)*r.limit)+cost*r.per, t
	if n := len(r.taken); n > 4000 {
		r.taken = slices.Clone(r.taken[n-2000:])
	}
}

// step starts the task that can start first, by turns among equals. It returns the scope and the time, and -1 if none waits.
func (w *world) step() (scope int, at int64) {
	scope = -1
	for _, s := range w.turn {
		if len(w.queues[s]) == 0 {
			continue
		}
		if t := w.earliest(s, w.queues[s][0]); scope < 0 || t < at {
			scope, at = s, t
		}
	}
	if scope < 0 {
		return scope, 0
	}
	w.now = at
	for _, i := range w.paths[scope] {
		w.rules[i].take(at, w.queues[scope][0])
	}
	w.queues[scope] = w.queues[scope][1:]
	i := slices.Index(w.turn, scope)
	w.turn = append(slices.Delete(w.turn, i, i+1), scope)
	return scope, at
}

func (w *world) earliest(scope int, cost int64) int64 {
	t := w.now
	for range 100 {
		before := t
		for _, i := range w.paths[scope] {
			t = w.rules[i].earliest(t, cost)
		}
		if t == before {
			return t
		}
	}
	return t
}

func (*world) Members(context.Context, string) ([]throttle.Member, error) { return nil, nil }

// Forecast is a limiter's of the same state.
func (w *world) Forecast(_ context.Context, scope string) (throttle.Forecast, error) {
	s := numberOf(scope)
	out := throttle.Forecast{At: time.UnixMicro(w.now), Waiting: total(w.queues[s])}
	for _, i := range w.paths[s] {
		r := w.rules[i]
		o := throttle.RuleForecast{RuleState: throttle.RuleState{RuleInfo: new(throttle.RuleInfo)}, Units: r.limit, Per: micros(r.per), Own: out.Waiting}
		o.Rule, o.Algorithm, o.Limit = fmt.Sprint(i), r.algorithm, r.limit
		for other, path := range w.paths {
			if n := total(w.queues[other]); n > 0 && slices.Contains(path, i) {
				o.Waiting, o.Queues = o.Waiting+n, o.Queues+1
			}
		}
		if r.algorithm == policy.TokenBucket {
			o.Limit = r.burst
			o.ResetAfter = micros((max(0, r.full-(w.now-r.at)*r.limit) + r.limit - 1) / r.limit)
		} else if n := len(r.taken); n > 0 {
			o.ResetAfter = micros(max(0, r.taken[n-1].at+r.per-w.now))
		}
		for o.Remaining < o.Limit && r.earliest(w.now, o.Remaining+1) == w.now {
			o.Remaining++
		}
		if r.algorithm == policy.Calendar || r.algorithm == policy.FixedWindow {
			o.Rest = micros(r.per - w.now%r.per)
		}
		o.RetryAfter = micros(r.earliest(w.now, 1) - w.now)
		o.Limited = o.RetryAfter > 0
		out.Rules = append(out.Rules, o)
	}
	return out, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func total(list []int64) (n int64) {
	for _, x := range list {
		n += x
	}
	return n
}

func numberOf(scope string) (n int) {
	_, _ = fmt.Sscan(scope, &n)
	return n
}

// anyKind and buckets are what rules may be.
var (
	anyKind = []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Calendar}
	buckets = anyKind[:1]
)

func someRule(r *rand.Rand, kinds []policy.Algorithm, most int64) *plainRule {
	rule := &plainRule{algorithm: kinds[r.IntN(len(kinds))], limit: most + r.Int64N(60), per: []int64{100_000, 1_000_000, 3_700_000}[r.IntN(3)]}
	rule.burst = most + r.Int64N(20)
	return rule
}

// history is what a forecast is tried on.
type history struct {
	scopes int
	own    int // at most so many rules of each scope, beside the one that all share
	kinds  []policy.Algorithm
	cost   int64
	mixed  bool // costs are from 1 to cost
	idle   bool // nothing was taken before, and no task waits
	alone  bool // no task waits
}

func (h history) aCost(r *rand.Rand) int64 {
	if h.mixed {
		return 1 + r.Int64N(h.cost)
	}
	return h.cost
}

func (h history) world(r *rand.Rand) *world {
	w := &world{now: 1_800_057_600_000_000 + r.Int64N(5_000_000), queues: make([][]int64, h.scopes)}
	w.rules = append(w.rules, someRule(r, h.kinds, h.cost))
	for s := range h.scopes {
		w.turn = append(w.turn, s)
		path := []int{0}
		for range r.IntN(h.own + 1) {
			w.rules = append(w.rules, someRule(r, h.kinds, h.cost))
			path = append(path, len(w.rules)-1)
		}
		w.paths = append(w.paths, path)
	}
	if h.idle {
		return w
	}
	h.fill(r, w, r.IntN(100))
	for s, _ := w.step(); s >= 0; {
		s, _ = w.step()
	}
	w.now += r.Int64N(300_000)
	if !h.alone {
		h.fill(r, w, r.IntN(50))
	}
	return w
}

// fill adds n tasks to the lines and returns their scopes and costs.
func (h history) fill(r *rand.Rand, w *world, n int) (scopes []int, costs []int64) {
	for range n {
		s, cost := r.IntN(h.scopes), h.aCost(r)
		w.queues[s] = append(w.queues[s], cost)
		scopes, costs = append(scopes, s), append(costs, cost)
	}
	return scopes, costs
}

func (w *world) window() (longest int64) {
	for _, r := range w.rules {
		if r.algorithm != policy.TokenBucket {
			longest = max(longest, r.per)
		}
	}
	return longest
}

// compare forecasts a thousand tasks and runs them. It returns, in µs, by how much each start was forecast too late, and when it was. The
// last of both is the end's.
func (h history) compare(t *testing.T, seed uint64) (w *world, late, starts []int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	w = h.world(r)
	o, began := newOutlook(w), w.now
	place := make([]int, h.scopes)
	for s := range place {
		place[s] = len(w.queues[s])
		if _, err := o.line(t.Context(), fmt.Sprint(s)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	for _, rule := range o.rules {
		rule.seen = begin
	}
	for _, l := range o.lines {
		l.seen = begin
	}
	scopes, costs := h.fill(r, w, 1000)
	var expected []time.Time
	for i, s := range scopes {
		m, err := o.add(t.Context(), Task{Scope: fmt.Sprint(s), Cost: costs[i]})
		if err != nil || !m.known {
			t.Fatalf("seed %d: %+v %v", seed, m, err)
		}
		expected = append(expected, m.at)
	}
	brute := make([][]int64, h.scopes)
	for s, at := w.step(); s >= 0; s, at = w.step() {
		brute[s] = append(brute[s], at-began)
	}
	for i, s := range scopes {
		starts = append(starts, brute[s][place[s]])
		late = append(late, expected[i].Sub(begin).Microseconds()-brute[s][place[s]])
		place[s]++
	}
	last := slices.Max(starts)
	return w, append(late, o.end().at.Sub(begin).Microseconds()-last), append(starts, last)
}

// The tolerance that Forecast states holds against the simulation.
func TestForecastAgainstBruteForce(t *testing.T) {
	t.Parallel()
	const exact, third = 0.001, 1. / 3
	for name, tt := range map[string]struct {
		history
		windows int64   // off by so many of the longest window at most,
		early   float64 // and too early by so much of the wait; too late never
		task    bool    // each start too, not the end alone
	}{
		// "For a single scope, each start is accurate to two windows of its rules"
		"from idle":             {history{scopes: 1, kinds: anyKind, cost: 1, idle: true}, 0, exact, true},
		"from idle, cost 7":     {history{scopes: 1, kinds: anyKind, cost: 7, idle: true}, 0, exact, true},
		"from idle, mixed":      {history{scopes: 1, kinds: anyKind, cost: 7, mixed: true, idle: true}, 0, exact, true},
		"from idle, many rules": {history{scopes: 1, own: 2, kinds: anyKind, cost: 1, idle: true}, 2, 0.01, true},
		"one rule":              {history{scopes: 1, kinds: anyKind, cost: 1}, 1, exact, true},
		"many rules":            {history{scopes: 1, own: 2, kinds: anyKind, cost: 1}, 2, exact, true},
		"many buckets":          {history{scopes: 1, own: 2, kinds: buckets, cost: 1}, 0, exact, true},
		// "and with costs above 1 to a thirtieth"
		"cost 7": {history{scopes: 1, kinds: anyKind, cost: 7, alone: true}, 2, 1. / 30, true},
		"mixed":  {history{scopes: 1, own: 2, kinds: anyKind, cost: 7, mixed: true, alone: true}, 2, 1. / 30, true},
		// "If scopes share a rule … DoneAt does"
		"shared":         {history{scopes: 5, kinds: anyKind, cost: 1}, 1, exact, false},
		"shared, cost 3": {history{scopes: 5, kinds: anyKind, cost: 3}, 1, 1. / 30, false},
		// "may be too early by a third if the scopes have rules of their own, too"
		"shared, own buckets": {history{scopes: 5, own: 2, kinds: buckets, cost: 1}, 0, third, false},
		"shared, own rules":   {history{scopes: 5, own: 2, kinds: anyKind, cost: 1}, 1, third, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(50) {
				w, late, starts := tt.compare(t, seed)
				slack := tt.windows*w.window() + 10
				if tt.scopes > 1 {
					slack += 2 * int64(tt.scopes) * tt.cost * w.rules[0].per / w.rules[0].limit // a turn or two of each
				}
				for i := range late {
					if i < len(late)-1 && !tt.task {
						continue
					}
					if late[i] > slack+starts[i]/1000 || -late[i] > slack+int64(tt.early*float64(starts[i])) {
						t.Fatalf("seed %d: start %d of %d was expected at %s, and came at %s; the longest window is %s",
							seed, i, len(late), micros(starts[i]+late[i]), micros(starts[i]), micros(w.window()))
					}
				}
			}
		})
	}
}

// A calendar that spreads what is left goes on at its pace, in later periods too.
func TestForecastSpread(t *testing.T) {
	t.Parallel()
	rule := throttle.RuleForecast{RuleState: throttle.RuleState{RuleInfo: new(throttle.RuleInfo)}, Units: 10, Per: 100 * time.Second, Rest: 40 * time.Second, Spread: true}
	rule.Algorithm, rule.Limit, rule.Remaining = policy.Calendar, 10, 4
	waiting, closed, rolled := rule, rule, rule
	waiting.Limited, waiting.RetryAfter = true, 8*time.Second
	closed.Limited, closed.RetryAfter = true, 40*time.Second
	rolled.Spread, rolled.Remaining = false, 14
	for name, test := range map[string]struct {
		rule throttle.RuleForecast
		want map[int64]time.Duration // by units: from now on
	}{
		"now":         {rule, map[int64]time.Duration{1: 0, 2: 10 * time.Second, 4: 30 * time.Second, 5: 40 * time.Second, 6: 50 * time.Second, 15: 140 * time.Second}},
		"at its pace": {waiting, map[int64]time.Duration{1: 8 * time.Second, 2: 16 * time.Second, 4: 32 * time.Second, 5: 40 * time.Second}},
		"over":        {closed, map[int64]time.Duration{1: 40 * time.Second, 2: 50 * time.Second, 11: 140 * time.Second}},
		"rolled over": {rolled, map[int64]time.Duration{14: 0, 15: 40 * time.Second, 24: 40 * time.Second, 25: 140 * time.Second}},
	} {
		for units, want := range test.want {
			if got := test.rule.AdmitsIn(units); got.In != want {
				t.Errorf("%s: %d units after %v; want %v", name, units, got.In, want)
			}
		}
	}
}

// looks is a looker that always sees the same.
type looks map[string]throttle.Forecast

func (looks) Members(context.Context, string) ([]throttle.Member, error) { return nil, nil }

func (l looks) Forecast(_ context.Context, scope string) (throttle.Forecast, error) {
	return l[scope], nil
}

// "Nor one that starts when other rules hold than now."
func TestForecastEndsWithHours(t *testing.T) {
	t.Parallel()
	bucket := throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "p", Rule: "r", Algorithm: policy.TokenBucket, Limit: 1}, Remaining: 1}
	at := time.Now().Add(-time.Hour) // the server's clock is another one
	o := newOutlook(looks{"p/x": {
		At: at, Until: at.Add(10 * time.Second), Rules: []throttle.RuleForecast{{RuleState: bucket, Units: 1, Per: time.Second}},
	}})
	for i := range 100 {
		start, err := o.add(t.Context(), Task{Scope: "p/x", Cost: 1})
		if err != nil || start.known != (i <= 10) {
			t.Fatalf("task %d: %+v, %v", i, start, err)
		}
	}
	if end := o.end(); !end.known {
		t.Errorf("the last starts at %+v", end)
	}
}

// "A pause delays all starts by its rest"; one without an end leaves them unknown.
func TestForecastPaused(t *testing.T) {
	t.Parallel()
	rate := throttle.RuleForecast{RuleState: throttle.RuleState{RuleInfo: new(throttle.RuleInfo)}, Units: 1, Per: time.Second, Rest: time.Second}
	rate.Scope, rate.Rule, rate.Algorithm, rate.Limit, rate.Remaining = "p", "rate", policy.FixedWindow, 1, 1
	pause := func(level string, left time.Duration) throttle.RuleForecast {
		r := throttle.RuleForecast{RuleState: throttle.RuleState{RuleInfo: new(throttle.RuleInfo)}}
		r.Scope, r.Rule, r.Algorithm, r.Paused, r.Limited, r.RetryAfter = level, policy.PausedRule, policy.SlidingWindow, true, true, left
		return r
	}
	o := newOutlook(looks{
		"p/free": {Rules: []throttle.RuleForecast{rate}},
		"p/a":    {Rules: []throttle.RuleForecast{rate, pause("p/a", time.Hour)}},
		"p/a/b":  {Rules: []throttle.RuleForecast{rate, pause("p/a", time.Hour), pause("p/a/b", 2*time.Hour)}},
		"q":      {Rules: []throttle.RuleForecast{pause("q", throttle.Never)}},
	})
	began := time.Now()
	for _, step := range []struct {
		scope string
		least time.Duration
		by    Binding
		known bool
		then  string // what is paused longest by then
	}{
		{"p/free", 0, Binding{}, true, ""},
		{"p/a", time.Hour, Binding{"p", "rate"}, true, "p/a"},
		{"p/a/b", 2 * time.Hour, Binding{"p", "rate"}, true, "p/a/b"},
		{"q", 0, Binding{}, false, "q"},
		{"p/a", time.Hour, Binding{"p", "rate"}, true, "q"},
	} {
		got, err := o.add(t.Context(), Task{Scope: step.scope, Cost: 1})
		if err != nil || got.known != step.known || got.known && (got.by != step.by || got.at.Sub(began) < step.least || got.at.Sub(began) > step.least+time.Minute) {
			t.Errorf("%s: %+v, %v; want %+v", step.scope, got, err, step)
		}
		if o.paused.Scope != step.then || o.paused.Until.IsZero() != (step.then == "q" || step.then == "") {
			t.Errorf("%s: %+v; want %s", step.scope, o.paused, step.then)
		}
	}
}
