package traps

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Of many calls in one instant the first L are admitted, and
// each answer says how many are left.
func TestExactlyTheLimit(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(10, 60*sec), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		for i := range 30 {
			d := l.take(1)
			left := max(0, int64(9-i))
			if d.Allowed != (i < 10) || d.Rules[0].Remaining != left {
				w.Errorf("call %d: allowed %t, %d left; want %t, %d", i+1, d.Allowed, d.Rules[0].Remaining, i < 10, left)
			}
			if !d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > 60*sec) {
				w.Errorf("call %d: come back in %v", i+1, d.RetryAfter)
			}
		}
	})
}

// Of many callers in many processes who come at the same time,
// exactly L are admitted.
func TestAttackers(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ callers, limit int }{{10, 5}, {1000, 100}} {
		forEach(t, kinds(int64(size.limit), 10*sec), func(w *world, rule policy.Rule) {
			w.at(0)
			processes := make([]limiter, 4)
			for i := range processes {
				processes[i] = w.limiterOn(w.another(), w.policy(rule))
			}
			callers := max(w.size(size.callers), size.limit*3/2)
			if got := attack(w, processes, callers); got != size.limit {
				w.Errorf("%d of %d were admitted", got, callers)
			}
		})
	}
}

// another is another process's client.
func (w *world) another() *redis.Client {
	w.Helper()
	if w.mini == nil {
		rdb := redistest.Client(w.T)
		rdb.AddHook(w.clock)
		return rdb
	}
	rdb := redis.NewClient(miniOptions(w.mini))
	rdb.AddHook(w.clock)
	w.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// attack lets callers go at once, spread over the processes, and returns how
// many were admitted.
func attack(w *world, processes []limiter, callers int) int {
	w.Helper()
	var admitted atomic.Int32
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		wg.Go(func() {
			<-start
			d, err := processes[i%len(processes)].Allow(context.Background(), "p/x")
			if err != nil {
				w.Errorf("caller %d: %v", i, err)
			}
			if d.Allowed {
				admitted.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	return int(admitted.Load())
}

// A call takes its cost, is refused where less is left, and the
// answer tells what is left and when to come back.
func TestCostCounts(t *testing.T) {
	t.Parallel()
	forEach(t, rates(10, 60*sec), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		for _, left := range []int64{7, 4, 1} {
			if d := l.take(3); !d.Allowed || d.Rules[0].Remaining != left {
				w.Fatalf("%+v, want %d left", d, left)
			}
		}
		d := l.take(3)
		if d.Allowed || d.Rules[0].Remaining != 1 || d.RetryAfter <= 0 {
			w.Errorf("cost 3 with 1 left: %+v", d)
		}
		if d := l.take(1); !d.Allowed || d.Rules[0].Remaining != 0 {
			w.Errorf("cost 1 with 1 left: %+v", d)
		}
	})
}

// What can never pass is an error at once, wherever it is
// asked, and no wait.
func TestCostAboveCapacity(t *testing.T) {
	t.Parallel()
	forEach(t, rates(10, 60*sec), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		ctx := context.Background()
		asks := map[string]func(throttle.Request) error{
			"decide": func(r throttle.Request) error { _, err := l.Decide(ctx, r); return err },
			"peek":   func(r throttle.Request) error { _, err := l.Peek(ctx, r); return err },
			"start":  func(r throttle.Request) error { _, err := l.Start(ctx, r); return err },
			"wait":   func(r throttle.Request) error { _, err := l.Wait(ctx, r); return err },
		}
		for name, ask := range asks {
			err := ask(throttle.Request{Scope: "p/x", Cost: 11})
			tooMuch, ok := errors.AsType[*policy.CostError](err)
			if !ok || tooMuch.Capacity != 10 || tooMuch.Rule != rule.Name {
				w.Errorf("%s: %v", name, err)
			}
		}
		if keys := w.keys(); len(keys) != 0 {
			w.Errorf("it left %q", keys)
		}
	})
}

// Limit 0 admits nothing, not even the first.
func TestSuspended(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{bucket(0, sec, 5), sliding(0, sec), fixed(0, sec), places(0, sec)}
	forEach(t, rules, func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		for i := range 10 {
			w.at(time.Duration(i) * hour)
			if d := l.take(1); d.Allowed || d.RetryAfter != throttle.Never || d.Rules[0].Remaining != 0 {
				w.Errorf("call %d: %+v", i, d)
			}
		}
		if keys := w.keys(); len(keys) != 0 {
			w.Errorf("refusals left %q", keys)
		}
	})
}

// A call that one rule refuses takes nothing from the others,
// at any level and in any order.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		full := policy.Rule{Name: "full", Algorithm: policy.SlidingWindow, Limit: 1, Per: hour}
		for name, order := range map[string][]policy.Rule{
			"refused by the last":  append(kinds(10, hour), full),
			"refused by the first": append([]policy.Rule{full}, kinds(10, hour)...),
		} {
			w.anew()
			l := w.limiter(order...)
			l.take(1)
			before := w.state()
			for range 50 {
				d := l.take(1)
				if d.Allowed {
					w.Fatalf("%s: %+v", name, d)
				}
				for _, r := range d.Rules {
					if want := map[bool]int64{true: 0, false: 9}[r.Rule == "full"]; r.Remaining != want {
						w.Errorf("%s: rule %s has %d left, want %d", name, r.Rule, r.Remaining, want)
					}
				}
			}
			if after := w.state(); after != before {
				w.Errorf("%s: refusals changed\n%sto\n%s", name, before, after)
			}
		}
	})
}

// No counter, no key, no TTL, however often.
func TestRefusalsChangeNothing(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(3, 60*sec), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		for i := range int64(3) {
			w.at(time.Duration(i) * sec)
			l.take(1)
		}
		w.at(5 * sec)
		before := w.state()
		first := l.take(1)
		for range 100 {
			d := l.take(1)
			if d.Allowed || d.RetryAfter != first.RetryAfter {
				w.Fatalf("%+v, after %+v", d, first)
			}
			_ = l.left()
		}
		if after := w.state(); after != before {
			w.Errorf("100 refusals changed\n%sto\n%s", before, after)
		}
		if attempts := len(w.keys()); attempts > 4 {
			w.Errorf("refusals left keys: %q", w.keys())
		}
	})
}

// Neither a look nor a refusal makes a key.
func TestLookingLeavesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(append(kinds(5, 60*sec), policy.Rule{Name: "off", Algorithm: policy.SlidingWindow, Per: sec})...)
		for range 5 {
			l.take(1)
			l.left()
		}
		if keys := w.keys(); len(keys) != 0 {
			w.Errorf("%q", keys)
		}
	})
}

// Traffic that stays below the limit is never refused, for
// an hour: 9.2 a minute under 10 a minute.
func TestSteadyBelowTheLimit(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{bucket(10, 60*sec, 1), sliding(10, 60*sec), fixed(10, 60*sec)}
	forEach(t, rules, func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		calls := 0
		for at := time.Duration(0); at < hour; at += 6522 * ms {
			w.at(at)
			calls++
			if !l.take(1).Allowed {
				w.Fatalf("call %d, at %v, was refused", calls, at)
			}
		}
		if calls < 550 {
			w.Errorf("%d calls only", calls)
		}
	})
}

// What a boundary of windows lets through at most, of 100 a minute.
func TestEdge(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule policy.Rule
		most int
	}{
		{sliding(100, 60*sec), 100},
		{fixed(100, 60*sec), 200}, // and the manual says so
		{bucket(100, 60*sec, 1), 1},
		{bucket(100, 60*sec, 100), 100},
	} {
		onBoth(t, func(w *world) {
			l := w.limiter(test.rule)
			w.at(60*sec - ms)
			got := l.admitted(250)
			w.at(60 * sec)
			got += l.admitted(250)
			if got != test.most {
				w.Errorf("%s: %d in a millisecond, want %d", test.rule.Algorithm, got, test.most)
			}
		})
	}
}

// 100 at 9 s fill the minute until 69 s; buckets of ten seconds that
// drop the oldest too soon let 100 more in at 60 s.
func TestAnyWindow(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(sliding(100, 60*sec))
		w.at(9 * sec)
		got := l.admitted(100)
		for s := 10; s < 69; s++ {
			w.at(time.Duration(s) * sec)
			got += l.admitted(2)
		}
		w.at(69*sec - us)
		got += l.admitted(2)
		if got != 100 {
			w.Errorf("%d within a minute", got)
		}
		w.at(69 * sec)
		if got := l.admitted(101); got != 100 {
			w.Errorf("%d in the next, want 100", got)
		}
	})
}

// Calls of the same microsecond are calls each.
func TestInOneMoment(t *testing.T) {
	t.Parallel()
	forEach(t, rates(5, sec), func(w *world, rule policy.Rule) {
		w.at(123456 * us)
		if got := w.limiter(rule).admitted(100); got != 5 {
			w.Errorf("%d of 100 in one microsecond", got)
		}
	})
}

// Places are counted over all processes, by who holds them.
func TestRuns(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		a, b := w.limiter(places(3, 60*sec)), w.limiterOn(w.another(), w.policy(places(3, 60*sec)))
		held := []throttle.Decision{a.take(1), b.take(1), a.take(1)}
		if d := b.take(1); d.Allowed || d.Rules[0].Remaining != 0 {
			w.Errorf("a fourth run: %+v", d)
		}
		b.giveBack(held[0])
		if got := b.admitted(5); got != 1 {
			w.Errorf("%d for one place", got)
		}
	})
}
