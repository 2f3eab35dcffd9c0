package throttle

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// TestRunTimes holds what release keeps of run times against the mean and the deviation of all of them, and of the last ones where
// there were more than a hundred.
func TestRunTimes(t *testing.T) {
	t.Parallel()
	one := policy.Rule{Name: "runs:a", Algorithm: policy.Concurrency, Limit: 3, Lease: 60 * sec}
	onBoth(t, Config{}, tenants(t, "p", nil, []policy.Rule{one}), func(b *bench) {
		p := b.plan("p/x")
		keys, _, _ := p.leaseKeys()
		all := slices.Concat(keys, p.runKeys(), []string{text(p.queue[1]), text(p.queue[3])})
		release := func(took float64, held bool) {
			b.t.Helper()
			if held {
				b.rdb.ZAdd(ctx, keys[0], redis.Z{Score: epoch + 9_000_000, Member: "run"})
			}
			noError(b.t, scriptOf(lua.Release, "").Run(ctx, b.rdb, all, b.clock(), "run", int64(took)).Err())
		}
		kept := func() RunTimes {
			b.t.Helper()
			values, err := b.rdb.MGet(ctx, p.runKeys()...).Result()
			noError(b.t, err)
			return readRunTimes(values[0])
		}
		if got := kept(); got != (RunTimes{}) {
			b.t.Errorf("before the first run: %+v", got)
		}
		random := rand.New(rand.NewPCG(1, 2))
		var times []float64
		for i := range 100 {
			took := math.Floor(2e6 + 1e6*random.NormFloat64()*min(1, float64(i%7)))
			took = max(0, took)
			times = append(times, took)
			release(took, true)
			release(1e12, false) // one that holds nothing any more
			mean, deviation := momentsOf(times)
			if got := kept(); got.Runs != int64(len(times)) || off(got.Mean, mean) > 60 || off(got.Deviation, deviation) > 60 {
				b.t.Fatalf("after %d runs: %+v; want %.0f µs, and %.0f from it", len(times), got, mean, deviation)
			}
		}
		for range 500 {
			release(5e6, true)
		}
		if got := kept(); got.Runs != 100 || off(got.Mean, 5e6) > 3e4 || off(got.Deviation, 0) > 4e5 {
			b.t.Errorf("after 500 runs of five seconds: %+v", got)
		}
		if ttl := b.rdb.TTL(ctx, p.runKeys()[0]).Val(); ttl < 23*time.Hour || ttl > 24*time.Hour {
			b.t.Errorf("they live for %s", ttl)
		}
	})
}

func momentsOf(all []float64) (mean, deviation float64) {
	for _, x := range all {
		mean += x / float64(len(all))
	}
	for _, x := range all {
		deviation += (x - mean) * (x - mean) / float64(len(all))
	}
	return mean, math.Sqrt(deviation)
}

// off returns how far a duration is from a number of µs, in µs.
func off(got time.Duration, want float64) float64 {
	return math.Abs(float64(got.Microseconds()) - want)
}

// TestInspectRuns holds the expected starts of those who wait for runs to end, and the rule that they wait for.
func TestInspectRuns(t *testing.T) {
	t.Parallel()
	all := policy.Rule{Name: "all", Algorithm: policy.Concurrency, Limit: 4, Lease: 600 * sec}
	own := policy.Rule{Name: "own", Algorithm: policy.Concurrency, Limit: 2, Lease: 600 * sec}
	rate := policy.Rule{Name: "rate", Algorithm: policy.TokenBucket, Limit: 1, Per: 30 * sec, Burst: 100}
	onBoth(t, Config{}, tenants(t, "p", []policy.Rule{all}, []policy.Rule{own, rate}), func(b *bench) {
		p := b.plan("p/x")
		for n := range 2 {
			b.ask("p/x", strconv.Itoa(n), 1)
		}
		for n := range 5 {
			if b.ask("p/x", "w"+strconv.Itoa(n), 1).Allowed {
				b.t.Fatal("it is not full")
			}
		}
		if got := b.ticket("p/x", "w0", 1); got.Expected.Known() || got.Binding.Rule.Name != "own" {
			b.t.Errorf("before any run has ended: %+v", got)
		}
		for _, key := range p.runKeys() {
			b.rdb.Set(ctx, key, "100 10000000 0", 0)
		}
		for n, in := range []time.Duration{2525, 7525, 12525, 17525, 22525} {
			got := b.ticket("p/x", "w"+strconv.Itoa(n), 1)
			if got.Expected.In != in*ms || got.Binding.Rule.Name != "own" || got.Expected.From > in*ms || got.Expected.To < in*ms || got.Expected.To > in*ms+15*sec {
				b.t.Errorf("%d: %+v by %s", n, got.Expected, got.Binding.Rule.Name)
			}
		}
		if got := b.scope("p"); got.NextStart.In != 2525*ms || got.NextStart.To <= got.NextStart.In || got.Binding.Rule.Name != "own" {
			b.t.Errorf("the scope: %+v", got)
		}
		list, _, err := b.Waitlist().Queued(ctx, "p/x", 3, 2)
		if err != nil || len(list) != 2 || list[1].Expected.In != 22525*ms {
			b.t.Errorf("%+v, %v", list, err)
		}
		// Two more under the provider's rule: the next of another scope waits for it, and takes turns with those.
		for n := range 2 {
			b.ask("p/y", strconv.Itoa(n), 1)
		}
		if b.ask("p/z", "z", 1).Allowed {
			b.t.Fatal("all four are taken")
		}
		if got := b.ticket("p/z", "z", 1); got.Binding.Rule.Name != "all" || !got.Expected.Known() || got.Expected.In > 6*sec {
			b.t.Errorf("another scope: %+v by %s", got.Expected, got.Binding.Rule.Name)
		}
		if got := b.ticket("p/x", "w4", 1); got.Binding.Rule.Name != "own" {
			b.t.Errorf("the last: %+v by %s", got.Expected, got.Binding.Rule.Name)
		}
	})
}

// TestRunsCountPlaces holds that a task takes one place whatever it costs, and that the runs beyond a lowered limit end first: for a
// waiting task, and for the next one of its scope.
func TestRunsCountPlaces(t *testing.T) {
	t.Parallel()
	const ran = 40
	rule := policy.Rule{Name: "parallel", Algorithm: policy.Concurrency, Limit: ran, Lease: 600 * sec}
	onBoth(t, Config{}, tenants(t, "p", nil, []policy.Rule{rule}), func(b *bench) {
		for n := range ran {
			if !b.ask("p/x", strconv.Itoa(n), 1).Allowed {
				b.t.Fatal("it is full")
			}
		}
		b.ask("p/x", "w", 3)
		b.ask("p/x", "w2", 3)
		p := b.plan("p/x")
		b.rdb.Set(ctx, p.runKeys()[0], "100 100000000 0", 0)
		next := func(limit int64, first, third time.Duration) {
			b.t.Helper()
			rule := rule // the other server's test runs beside
			rule.Limit = limit
			b.SetPolicy(tenants(b.t, "p", nil, []policy.Rule{rule}))
			if got := b.ticket("p/x", "w", 3).Expected; got.In.Round(time.Microsecond) != first || got.To < first+100*sec {
				b.t.Errorf("the first at a limit of %d: %+v, want %s", limit, got, first)
			}
			f, err := b.Forecast(ctx, "p/x")
			noError(b.t, err)
			if r := &f.Rules[0]; r.Own != 2 || r.Waiting != 2 || r.AdmitsIn(3).In.Round(time.Microsecond) != third {
				b.t.Errorf("the third at a limit of %d: %+v after %+v, want %s", limit, r.AdmitsIn(3), r, third)
			}
		}
		next(ran, 1262500*time.Microsecond, 6262500*time.Microsecond)
		next(10, 80800*ms, 100800*ms)
	})
}

// TestRunTimesRange holds the promise of Estimate, "in 19 of 20 cases between From and To", against simulated runs of several
// distributions, and that In is near their mean; also where more runs than places are at hand, as after a limit was lowered.
func TestRunTimesRange(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	for _, runs := range []struct {
		name string
		run  func() float64
	}{
		{"all alike", func() float64 { return 1 }},
		{"even", func() float64 { return 0.5 + random.Float64() }},
		{"exponential", random.ExpFloat64},
		{"two kinds", func() float64 { return []float64{0.2, 0.2, 0.2, 3.4}[random.IntN(4)] }},
	} {
		for _, n := range []struct{ places, over int }{{1, 0}, {4, 0}, {32, 0}, {4, 1}, {4, 4}, {1, 31}, {8, 24}, {32, 32}} {
			for _, ahead := range []int{1, 3, 20, 200} {
				cases, inside, sum, guess := 400, 0, 0.0, 0.0
				for range cases {
					learnt, end := simulate(runs.run, n.places, n.over, ahead, random)
					got := learnt.wait(placeQueue{int64(ahead), int64(n.places + n.over)}, int64(n.places))
					if end >= got.From.Seconds() && end <= got.To.Seconds() {
						inside++
					}
					sum, guess = sum+end, guess+got.In.Seconds()
				}
				if part := float64(inside) / float64(cases); part < 0.95 {
					t.Errorf("%s, %+v places, %d ahead: %.3f are within the range", runs.name, n, ahead, part)
				}
				part := 0.15
				if n.over > 0 { // how fast the surplus ends depends on how the times of runs are distributed
					part = 0.5
				}
				if mean, in := sum/float64(cases), guess/float64(cases); math.Abs(in-mean) > part*mean+0.5/float64(n.places) {
					t.Errorf("%s, %+v places, %d ahead: after %.2f s, on average %.2f", runs.name, n, ahead, in, mean)
				}
			}
		}
	}
}

// simulate fills places with runs, learns from a hundred that end, and returns when so many more have ended, in seconds. Each run
// begins when one ends. The places `over` are then taken away: before those ends, as many more end that no run follows.
func simulate(run func() float64, places, over, ends int, random *rand.Rand) (RunTimes, float64) {
	places += over
	left := make([]float64, places)
	for i := range left {
		left[i] = run() * random.Float64()
	}
	var times []float64
	last := 0
	next := func() float64 {
		first := slices.Min(left)
		at := slices.Index(left, first)
		last = at
		for i := range left {
			left[i] -= first
		}
		took := run()
		left[at], times = took, append(times, took*1e6)
		return first
	}
	for range 100 + random.IntN(4*places) {
		next()
	}
	mean, deviation := momentsOf(times[len(times)-100:])
	learnt := RunTimes{100, time.Duration(mean * 1e3), time.Duration(deviation * 1e3)}
	var at float64
	for i := range over + ends {
		if at += next(); i < over {
			left = slices.Delete(left, last, last+1)
		}
	}
	return learnt, at
}
