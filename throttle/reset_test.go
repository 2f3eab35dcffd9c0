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
		used := func(rule string) (all []int64) {
			b.t.Helper()
			done, err := b.Reset(b.t.Context(), "p", rule)
			noError(b.t, err)
			for _, one := range done {
				if one.Unit != map[bool]string{true: "tokens", false: policy.Requests}[one.Rule == "d"] || rule != "" && one.Rule != rule {
					b.t.Errorf("%+v", one)
				}
				all = append(all, one.Used)
			}
			return all
		}
		spend := func() {
			b.t.Helper()
			if d := b.decide(Request{Scope: "p", Costs: policy.Costs{policy.Requests: 7, "tokens": 30}}); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
		}
		is := func(got []int64, want ...int64) {
			b.t.Helper()
			if !slices.Equal(got, want) {
				b.t.Errorf("%v, want %v", got, want)
			}
		}
		spend()
		b.now.Add(150_000)
		is(used("w"), 7)
		is(used(""), 6, 0, 7, 30, 0) // the bucket has got one and a half back
		is(used(""), 0, 0, 0, 0, 0)
		spend()
		b.now.Add(1_100_000)
		spend()
		is(used(""), 7, 7, 7, 60, 0)
		is(used("none"))
	})
}

// "one call reads that and forgets it, so that no unit is missing and none counted twice", however many spend meanwhile.
func TestResetLosesNoUnit(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, policy.Rule{Name: "w", Algorithm: policy.SlidingWindow, Limit: 1_000_000, Per: time.Hour}))
	var allowed, counted atomic.Int64
	var spenders, resets sync.WaitGroup
	over := make(chan struct{})
	resets.Go(func() {
		for {
			done, err := b.Reset(t.Context(), "p", "")
			if err != nil {
				t.Error(err)
				return
			}
			counted.Add(done[0].Used)
			select {
			case <-over:
				return
			default:
			}
		}
	})
	for range 4 {
		spenders.Go(func() {
			for range 200 {
				d, err := b.Allow(t.Context(), "p")
				if err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
					return
				}
				allowed.Add(1)
			}
		})
	}
	spenders.Wait()
	close(over)
	resets.Wait()
	done, err := b.Reset(t.Context(), "p", "")
	noError(t, err)
	if all := counted.Load() + done[0].Used; all != allowed.Load() {
		t.Errorf("%d units were counted, and %d were spent", all, allowed.Load())
	}
}
