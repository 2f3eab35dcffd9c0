package throttle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// asks counts decisions.
type asks struct {
	NoObserver
	atomic.Int64
}

func (a *asks) Decided(context.Context, Decision, time.Duration, error) { a.Add(1) }

// "takes as many units from scope as are available now, at most n"; "taken is 0 if not even one unit is available: the Decision is then a denial, and its RetryAfter is that of one unit"; "one round trip if n units are available, usually two if fewer are".
func TestAllowAtMost(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "w", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
	day := policy.Rule{Name: "d", Algorithm: policy.Calendar, Limit: 100, Resets: wallclock.MustParse("@daily", "UTC")}
	type step struct {
		after    time.Duration
		n, taken int64
		left     int64 // of the binding rule
		retry    time.Duration
		asks     int64
	}
	for name, test := range map[string]struct {
		rules []policy.Rule
		steps []step
	}{
		"a window": {[]policy.Rule{window}, []step{
			{0, 4, 4, 6, 0, 1}, {0, 7, 6, 0, 0, 2}, {ms, 7, 0, 0, 999 * ms, 2}, {0, 1, 0, 0, 999 * ms, 1}, {999 * ms, 3, 3, 7, 0, 1},
		}},
		"a bucket": {[]policy.Rule{bucket(10, 5)}, []step{
			{0, 3, 3, 2, 0, 1}, {0, 5, 2, 0, 0, 2}, {250 * ms, 5, 2, 0, 0, 2}, {0, 5, 0, 0, 50 * ms, 2},
		}},
		"the least of all rules": {[]policy.Rule{window, bucket(10, 5), day}, []step{
			{0, 9, 5, 0, 0, 1}, {0, 9, 0, 0, 100 * ms, 2}, {500 * ms, 9, 5, 0, 0, 1}, {499 * ms, 9, 0, 0, ms, 2}, {ms, 9, 5, 0, 0, 1},
		}},
		"a place whatever is taken": {[]policy.Rule{window, {Name: "c", Algorithm: policy.Concurrency, Limit: 1}}, []step{
			{0, 4, 4, 0, 0, 1}, {sec, 4, 0, 0, 29 * sec, 2}, {29 * sec, 10, 10, 0, 0, 1},
		}},
		"suspended": {[]policy.Rule{window, {Name: "z", Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}}, []step{{0, 4, 0, 0, Never, 2}}},
	} {
		onBothIn(t, name, Config{}, policyOf(t, test.rules...), func(b *bench) {
			var asked asks
			b.cfg.Observer = &asked
			for i, s := range test.steps {
				b.pass(s.after)
				before := asked.Load()
				d, taken, err := b.AllowAtMost(ctx, "p/x", s.n)
				noError(b.t, err)
				r, _ := d.BindingRule()
				got := step{s.after, s.n, taken, r.Remaining, d.RetryAfter, asked.Load() - before}
				if got != s || d.Allowed != (taken > 0) || d.Grant.Zero() == d.Allowed {
					b.t.Errorf("step %d: got %+v, want %+v: %+v", i, got, s, d)
				}
			}
		})
	}
}

// "concurrent callers never take more than the rules admit": and all that they admit is.
func TestAllowAtMostAtOnce(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{{Name: "w", Algorithm: policy.SlidingWindow, Limit: 1000, Per: sec}, bucket(10, 997)}
	onBoth(t, Config{}, policyOf(t, rules...), func(b *bench) {
		var all atomic.Int64
		var callers sync.WaitGroup
		for i := range 16 {
			callers.Go(func() {
				for {
					_, taken, err := b.AllowAtMost(ctx, "p/x", int64(7+5*i))
					if err != nil {
						b.t.Error(err)
					}
					if all.Add(taken); taken == 0 {
						return
					}
				}
			})
		}
		callers.Wait()
		if all.Load() != 997 {
			b.t.Errorf("%d units were taken of 997", all.Load())
		}
		d, err := b.Peek(ctx, Request{Scope: "p/x"})
		if err != nil || leftOf(d) != "w 3, r 0" {
			b.t.Errorf("%s are left, %v", leftOf(d), err)
		}
	})
}

// quicker takes a unit after each denial, as others do that are quicker.
type quicker struct {
	NoObserver
	asks
	other *bench
}

func (q *quicker) Decided(_ context.Context, d Decision, _ time.Duration, _ error) {
	if q.Add(1); !d.Allowed {
		q.other.decide(Request{Scope: "p"})
	}
}

// "If others are faster three times in a row, it takes one unit, though more may be available"; "five at most".
func TestAllowAtMostBehindOthers(t *testing.T) {
	t.Parallel()
	hundred := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 100, Per: sec}
	onBoth(t, Config{}, policyOf(t, hundred), func(b *bench) {
		b.decide(Request{Scope: "p", Cost: 50})
		q := &quicker{other: b.under(hundred)}
		b.cfg.Observer = q
		d, taken, err := b.AllowAtMost(ctx, "p", 90)
		if err != nil || taken != 1 || q.Load() != 5 || d.Rules[0].Remaining != 45 {
			b.t.Errorf("%d taken in %d decisions, %v: %+v", taken, q.Load(), err, d)
		}
	})
}

// "The error is one of Decide, and nothing was taken; for an n below 1 it is a *policy.CostError."
func TestAllowAtMostErrors(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, window10()), func(b *bench) {
		for _, n := range []int64{0, -1, -1 << 63} {
			var wrong *policy.CostError
			if d, taken, err := b.AllowAtMost(ctx, "p", n); !errors.As(err, &wrong) || wrong.Cost != n || taken != 0 || d.Allowed {
				b.t.Errorf("%d: %+v, %d taken, %v", n, d, taken, err)
			}
		}
		if _, taken, err := b.AllowAtMost(ctx, "q", 1); !errors.As(err, new(*policy.UnmatchedError)) || taken != 0 {
			b.t.Errorf("%d taken, %v", taken, err)
		}
		if d := b.decide(Request{Scope: "p"}); d.Rules[0].Remaining != 9 {
			b.t.Errorf("something was taken: %+v", d)
		}
	})
}
