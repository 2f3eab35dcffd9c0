package throttle

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// stepped runs a rule for as long as it is told to, with as many starts as it admits, and the clock
// steps once in the middle. All its times are of a clock that nobody sets.
type stepped struct {
	cost   int64         // of each start
	step   time.Duration // of Redis's clock; below zero it steps back
	at     time.Duration // when
	idle   time.Duration // before which nothing starts for so long
	lasts  time.Duration
	ahead  time.Duration // how far ahead starts are granted
	starts []time.Duration
}

func (s *stepped) run(b *bench) {
	next := 0
	for t := time.Duration(0); t < s.lasts; {
		clock, stepped := t, t >= s.at
		if stepped {
			clock += s.step
		}
		if !stepped && t >= s.at-s.idle {
			t = s.at
			continue
		}
		b.at(clock.Microseconds())
		next++
		d, err := b.Decide(ctx, Request{Scope: "p/x", ID: fmt.Sprint("run", next), Cost: s.cost, MaxDelay: s.ahead})
		must(err)
		if d.Allowed {
			s.starts = append(s.starts, t+d.Wait)
			continue
		}
		wait := max(d.RetryAfter-s.ahead, time.Microsecond)
		if !stepped && t+wait > s.at {
			wait = s.at - t // whoever waits asks again when the clock has stepped: looks do
		}
		t += wait
	}
	slices.Sort(s.starts)
}

// most is the most units that start in any time of a length.
func (s *stepped) most(in time.Duration) (most int64) {
	from := 0
	for i, start := range s.starts {
		for s.starts[from] <= start-in {
			from++
		}
		most = max(most, s.cost*int64(i-from+1))
	}
	return most
}

// stands is for how long nothing starts once the clock has stepped.
func (s *stepped) stands() time.Duration {
	last := s.at
	var most time.Duration
	for _, start := range append(slices.Clone(s.starts), s.lasts) {
		if start >= s.at {
			most, last = max(most, start-last), start
		}
	}
	return most
}

// stepRule is what a rule may do when the clock steps.
type stepRule struct {
	name   string
	rule   policy.Rule
	window time.Duration
	most   int64         // units in a window while the clock goes on
	back   int64         // and so many more when it steps back
	forth  int64         // or forth
	quiet  time.Duration // the longest time without a start after a step, but for a second
}

var stepRules = []stepRule{
	{"sliding", policy.Rule{Algorithm: policy.SlidingWindow, Limit: 5, Per: sec}, sec, 5, 0, 5, sec + 10*ms},
	{"sliding, in cells", policy.Rule{Algorithm: policy.SlidingWindow, Limit: 200, Per: 10 * sec}, 10 * sec, 200, 0, 200, 10*sec + 100*ms},
	{"bucket", policy.Rule{Algorithm: policy.TokenBucket, Limit: 5, Per: sec, Burst: 3}, sec, 5 + 3, 0, 3, 200 * ms},
	{"bucket, slow", policy.Rule{Algorithm: policy.TokenBucket, Limit: 1, Per: 10 * sec, Burst: 2}, 10 * sec, 1 + 2, 0, 2, 10 * sec},
	{"fixed", policy.Rule{Algorithm: policy.FixedWindow, Limit: 5, Per: sec}, sec, 2 * 5, 5, 5, 2 * sec},
	{"fixed, of a minute", policy.Rule{Algorithm: policy.FixedWindow, Limit: 5, Per: time.Minute}, time.Minute, 2 * 5, 5, 5, 2 * time.Minute},
	{"on use", policy.Rule{Algorithm: policy.FixedWindow, Limit: 5, Per: sec, OpensOnUse: true}, sec, 2 * 5, 0, 5, sec},
	{"on use, of a minute", policy.Rule{Algorithm: policy.FixedWindow, Limit: 5, Per: time.Minute, OpensOnUse: true}, time.Minute, 2 * 5, 0, 5, time.Minute},
	{"calendar", policy.Rule{Algorithm: policy.Calendar, Limit: 5, Resets: wallclock.MustParse("* * * * *", "UTC")}, time.Minute, 2 * 5, 5, 5, 3 * time.Minute},
}

// check runs the rule with a step of the clock, and fails if it does what it may not.
func (r stepRule) check(b *bench, step, idle, ahead time.Duration) {
	s := &stepped{cost: max(1, r.rule.Limit/10), step: step, idle: idle, ahead: ahead, at: idle + 2*r.window + r.window*7/10}
	s.lasts = s.at + 4*r.quiet + 2*r.window
	s.run(b)
	most, quiet := r.most+r.forth, r.quiet
	if step < 0 {
		most = r.most + r.back
		quiet = min(quiet+sec, r.window-step)
	}
	got, stands := s.most(r.window), s.stands()
	switch {
	case got > most || got < r.rule.Limit/2:
		fail("%s, %v: %d units start within %v, want %d at most", r.name, step, got, r.window, most)
	case stands > quiet+ahead:
		fail("%s, %v: nothing starts for %v after the step, want %v at most", r.name, step, stands, quiet+ahead)
	}
}

// stepFault returns what rules do wrong when the clock steps back.
func stepFault(rdb redis.UniversalClient, prefix string) string {
	now := new(atomic.Int64)
	under := func(name string, rules ...policy.Rule) *bench {
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
		must(err)
		l, err := New(rdb, pol, Config{Prefix: prefix + name, StartTolerance: -1, Timeout: bound})
		must(err)
		l.clock = func() string { return strconv.FormatInt(now.Load(), 10) }
		return &bench{Limiter: l, rdb: rdb, now: now}
	}
	return faultOf(func() {
		for i, r := range stepRules {
			for j, step := range []time.Duration{-1500 * ms, -30 * sec, -time.Minute, -time.Hour} {
				r.rule.Name = "r"
				r.check(under(fmt.Sprintf("_%d_%d", i, j), r.rule), step, 0, 0)
			}
		}
		// A window that opens ahead goes with the step, as the one at hand: units of both count where they did.
		opens := policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 3, Per: sec, OpensOnUse: true}
		now.Store(epoch)
		both, own := under("_w", opens, policy.Rule{Name: "slow", Algorithm: policy.TokenBucket, Limit: 1, Per: 5 * sec}), under("_w", opens)
		for _, ahead := range []time.Duration{0, 10 * sec} {
			_, err := both.Decide(ctx, Request{Scope: "p", MaxDelay: ahead})
			must(err)
		}
		now.Add(-time.Hour.Microseconds())
		if d, err := own.Decide(ctx, Request{Scope: "p", Cost: 2}); err != nil || !d.Allowed {
			fail("two of three are left of the window after the step: %+v, %v", d, err)
		}
	})
}

// "A rule may once admit more than its bound, and for a while nothing may start": what docs/algorithms.md#clock-steps says of
// each rule, for steps of a second to an hour, in the middle of a backlog and after a quiet time.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	for _, r := range stepRules {
		for _, step := range []time.Duration{-1500 * ms, -time.Minute, -time.Hour, sec, time.Hour} {
			for name, when := range map[string][2]time.Duration{ // how long nothing starts before, and how far ahead starts are granted
				"a backlog": {}, "a backlog, ahead": {0, 250 * ms}, "a quiet time": {90 * sec, 0},
			} {
				t.Run(fmt.Sprintf("%s, %v after %s", r.name, step, name), func(t *testing.T) {
					t.Parallel()
					rule := r.rule
					rule.Name = "r"
					b := newBench(t, redistest.Client(t), Config{}, policyOf(t, rule))
					if found := faultOf(func() { r.check(b, step, when[0], when[1]) }); found != "" {
						t.Error(found)
					}
				})
			}
		}
	}
}

// A step back by an hour in the middle of what an API has told, of a lease of a run that has died,
// and of a turn that was given: "They last at most for their full time once more".
func TestClockStepsBackAmidWhatHolds(t *testing.T) {
	t.Parallel()
	const hour = -time.Hour
	limited := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 100, Per: sec}
	bucket := policy.Rule{Name: "b", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 1}
	ask := func(b *bench) Decision {
		b.t.Helper()
		return b.decide(Request{Scope: "p/x", ID: NewID()})
	}
	for name, row := range map[string]struct {
		rules []policy.Rule
		run   func(b *bench)
	}{
		"an API's pause, which tasks wait for": {[]policy.Rule{limited}, func(b *bench) {
			b.heed("p/x", refusedFor(10*sec))
			b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "one"}})
			b.pass(4 * sec)
			b.dispatch(DispatchRequest{Provider: "p", Max: 1})
			b.pass(hour)
			for range 10 {
				if woken := b.dispatch(DispatchRequest{Provider: "p", Max: 1}); len(woken.Granted) > 0 {
					b.t.Fatal("it is released while it is paused")
				}
				b.pass(sec)
			}
			if woken := b.dispatch(DispatchRequest{Provider: "p", Max: 1}); len(woken.Granted) != 1 {
				b.t.Errorf("it is not released when the pause is over: %+v", woken)
			}
		}},
		"a limit that refusals have cut": {[]policy.Rule{limited}, func(b *bench) {
			p := b.plan("p/x")
			// Half of it is left, and grows back in ten seconds.
			cut := signal{"cut", ":r", [5]int64{500_000, 0, 50_000, 100_000, 1_000_000}}
			if _, err := b.sendSignals(ctx, p, []signal{cut}); err != nil {
				b.t.Fatal(err)
			}
			if n := b.admitted("p/x", 200); n != 50 {
				b.t.Fatalf("%d of a half are admitted", n)
			}
			b.pass(hour)
			if d := ask(b); d.Allowed || d.RetryAfter > 1010*ms {
				b.t.Fatalf("%+v", d)
			}
			b.pass(11 * sec)
			if n := b.admitted("p/x", 200); n != 100 {
				b.t.Errorf("%d are admitted when it has grown back, want 100", n)
			}
		}},
		"a turn that nobody takes": {[]policy.Rule{bucket}, func(b *bench) {
			ask(b)
			b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "lost"}})
			b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "next"}})
			b.pass(sec)
			if woken := b.dispatch(DispatchRequest{Provider: "p", Max: 1}); len(woken.Granted) != 1 {
				b.t.Fatalf("%+v", woken)
			}
			b.pass(hour)
			released, over := 0, []WaiterRef(nil)
			for range 8 {
				b.pass(sec)
				d := b.dispatch(DispatchRequest{Provider: "p", Max: 1, Unused: over})
				released, over = released+len(d.Granted), d.Overdue
			}
			if released < 2 { // the lost one, put back, and who is behind it
				b.t.Errorf("%d are released in 8 s", released)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, row.rules...), row.run)
		})
	}
}

// renewed renews a grant's leases, and says whether they are still its own.
func (b *bench) renewed(d Decision) bool {
	b.t.Helper()
	keys, leases, _ := d.Grant.plan.leaseKeys()
	reply, err := scriptOf(lua.Renew, "").Run(ctx, b.rdb, keys, append([]any{b.clock(), d.Grant.id}, leases...)...).Int64Slice()
	noError(b.t, err)
	return reply[0] == 1
}

// A live run that renews its lease in time keeps its place, however often a step back is looked at.
func TestClockStepsLeaveLiveRunsTheirPlaces(t *testing.T) {
	t.Parallel()
	one := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: 60 * sec}
	slow := policy.Rule{Name: "s", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 1}
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"x": {Rules: []policy.Rule{one}}, "y": {Rules: []policy.Rule{slow}}}}})
	onBoth(t, Config{}, policy, func(b *bench) {
		d := b.decide(Request{Scope: "p/x", ID: "lives"})
		b.decide(Request{Scope: "p/y"})
		b.decide(Request{Scope: "p/y", Turn: Turn{WaiterID: "slow"}})
		b.dispatch(DispatchRequest{Max: 1}) // the next look is an hour off
		for range 28 {
			b.pass(20 * sec)
			b.renewed(d)
		}
		b.pass(-865 * sec) // 305 before the last look
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "waits"}})
		for i := range 60 {
			if woken := b.dispatch(DispatchRequest{Max: 1}); len(woken.Granted) > 0 {
				b.t.Fatalf("its place is given away %d s after the step", i)
			}
			if i%20 == 19 && !b.renewed(d) {
				b.t.Fatalf("its lease is lost %d s after the step", i)
			}
			b.pass(sec)
		}
	})
}

// What died between two steps back keeps its place no longer than a lease, too.
func TestClockStepsTwice(t *testing.T) {
	t.Parallel()
	one := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: 30 * sec}
	onBoth(t, Config{}, policyOf(t, one), func(b *bench) {
		b.decide(Request{Scope: "p/x", ID: "first"})
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "second"}})
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "third"}})
		b.dispatch(DispatchRequest{Max: 1})
		for _, ticket := range []string{"second", "third"} { // which die
			b.pass(-time.Hour)
			b.dispatch(DispatchRequest{Max: 1})
			b.pass(31 * sec)
			if woken := b.dispatch(DispatchRequest{Max: 1}); len(woken.Granted) != 1 || woken.Granted[0].ID != ticket {
				b.t.Fatalf("%+v; %s has waited for a lease and a second", woken, ticket)
			}
			if d := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: ticket}}); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
		}
	})
}

// What was granted before a step back gives back nothing after it, since its units have moved: a window never
// has more than its limit. Where the clock has gone on as ever all of it comes back.
func TestGivingBackAfterAStep(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: 10 * sec}
	for _, step := range []time.Duration{0, 2 * sec, 11 * sec, 30 * sec} {
		for _, settles := range []bool{false, true} {
			onBothIn(t, fmt.Sprint(step, settles), Config{}, policyOf(t, rule), func(b *bench) {
				g := b.decide(Request{Scope: "p/x", Cost: 5}).Grant
				b.pass(-step)
				n := b.admitted("p/x", 1)
				for range step / sec {
					b.pass(sec)
					n += b.admitted("p/x", 1)
				}
				n += b.admitted("p/x", 10)
				if step > 0 { // the time went by here, too
					g.came = time.Now().Add(-step)
				}
				if settles {
					if _, err := b.Settle(ctx, g, policy.Costs{policy.Requests: 0}); err != nil {
						b.t.Fatal(err)
					}
				} else {
					b.giveBack(g)
				}
				back := b.admitted("p/x", 20)
				if step == 0 && n+back != 10 || step > 0 && back != 0 {
					b.t.Errorf("%d were admitted, and %d more after it was given back", n, back)
				}
			})
		}
	}
}
