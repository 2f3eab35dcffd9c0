package throttle

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// "It returns the rules that it was done for, each with what had been spent": by every algorithm what still counts.
func TestResetSaysWhatWasSpent(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{
		bucket(10, 20),
		{Name: "w", Algorithm: policy.SlidingWindow, Limit: 20, Per: sec},
		{Name: "f", Algorithm: policy.FixedWindow, Limit: 20, Per: sec},
		{Name: "d", Algorithm: policy.Calendar, Limit: 100, Resets: wallclock.MustParse("@daily", "UTC"), Unit: "tokens"},
		{Name: "c", Algorithm: policy.Concurrency, Limit: 9},
		{Name: "s", Algorithm: policy.SlidingWindow, Limit: 3, Per: sec, Shadow: true},
	}
	onBoth(t, Config{}, policyOf(t, rules...), func(b *bench) {
		// used resets one rule, or all, and wants to be told that so much was spent by each.
		used := func(rule string, want ...int64) {
			b.t.Helper()
			done, err := b.Reset(b.t.Context(), "p", rule)
			noError(b.t, err)
			var all []int64
			for _, one := range done {
				if one.Unit != map[bool]string{true: "tokens", false: policy.Requests}[one.Rule == "d"] || rule != "" && one.Rule != rule {
					b.t.Errorf("%+v", one)
				}
				all = append(all, one.Used)
			}
			if !slices.Equal(all, want) {
				b.t.Errorf("%v, want %v", all, want)
			}
		}
		spend := func() {
			b.t.Helper()
			b.grants(Request{Scope: "p", Costs: policy.Costs{policy.Requests: 7, "tokens": 30}}, 0)
		}
		spend()
		b.pass(150 * ms)
		used("w", 7)
		used("", 6, 0, 7, 30, 0) // the bucket has got one and a half back
		used("", 0, 0, 0, 0, 0)
		spend()
		b.pass(1100 * ms)
		spend()
		used("", 7, 7, 7, 60, 0)
		used("none")
	})
}

// "one call reads that and forgets it, so that no unit is missing and none counted twice", however many spend meanwhile.
func TestResetLosesNoUnit(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, policy.Rule{Name: "w", Algorithm: policy.SlidingWindow, Limit: 1_000_000, Per: time.Hour}))
	var spent, counted atomic.Int64
	var spenders, resets sync.WaitGroup
	var over atomic.Bool
	resets.Go(func() {
		for last := false; !last; {
			last = over.Load()
			done, err := b.Reset(t.Context(), "p", "")
			if err != nil {
				t.Error(err)
				return
			}
			counted.Add(done[0].Used)
		}
	})
	for range 4 {
		spenders.Go(func() {
			for range 200 {
				if err := allowed(b.Limiter, "p"); err != nil {
					t.Error(err)
					return
				}
				spent.Add(1)
			}
		})
	}
	spenders.Wait()
	over.Store(true)
	resets.Wait()
	if counted.Load() != spent.Load() {
		t.Errorf("%d units were counted, and %d were spent", counted.Load(), spent.Load())
	}
}
