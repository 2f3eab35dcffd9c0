package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// setClock is a Redis's clock that is off by what step says, to the millisecond.
type setClock struct {
	mu  sync.Mutex
	off time.Duration
}

func (c *setClock) step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += by
}

// of has a server go by the clock until the test's context ends.
func (c *setClock) of(t *testing.T, m *miniredis.Miniredis) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	set := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		m.SetTime(time.Now().Add(c.off))
	}
	set()
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				set()
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// docs/algorithms.md: "For a while nothing may start", and no longer than its table says: two workers have a
// backlog, and each task starts once.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	const limit, tasks = 20, 140
	for name, row := range map[string]struct {
		rule  policy.Rule
		most  int // starts within a second while the clock goes on
		forth int // how many more, where it steps forth
		quiet time.Duration
	}{
		"sliding window": {policy.Rule{Algorithm: policy.SlidingWindow}, limit, limit, 2010 * time.Millisecond},
		"fixed window":   {policy.Rule{Algorithm: policy.FixedWindow}, 3 * limit, 0, 3 * time.Second},
		"token bucket":   {policy.Rule{Algorithm: policy.TokenBucket, Burst: 5}, limit + 5, 5, 1050 * time.Millisecond},
	} {
		for _, by := range []time.Duration{-time.Hour, -time.Minute, time.Minute, time.Hour} {
			t.Run(fmt.Sprintf("%s, %v", name, by), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rule := row.rule
					rule.Name, rule.Limit, rule.Per = "r", limit, time.Second
					policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{rule}}})
					if err != nil {
						t.Fatal(err)
					}
					var clock setClock
					m, rdb := redistest.Miniredis(t)
					clock.of(t, m)
					var mu sync.Mutex
					var starts []time.Time
					start := func(context.Context, *asynq.Task) error {
						mu.Lock()
						defer mu.Unlock()
						starts = append(starts, time.Now())
						return nil
					}
					one, other := newSystemOn(t, rdb, policy, MiddlewareConfig{}), newSystemOn(t, rdb, policy, MiddlewareConfig{})
					one.planned(jobs(tasks, "p/a")...)
					began := time.Now()
					one.serve(asynq.Config{Concurrency: 8}, start)
					other.serve(asynq.Config{Concurrency: 8}, start)
					at := began.Add(3300 * time.Millisecond)
					time.AfterFunc(time.Until(at), func() { clock.step(by) })
					for range tasks {
						select {
						case <-one.ended:
						case <-other.ended:
						case <-time.After(bound):
							t.Fatalf("after %v %d of %d tasks have run", time.Since(began), len(starts), tasks)
						}
					}
					most := row.most
					if by > 0 {
						most += row.forth
					}
					if got := mostWithin(starts, time.Second); got > most {
						t.Errorf("%d start within a second, want %d at most", got, most)
					}
					if got := longestWithout(starts, at); got > row.quiet {
						t.Errorf("nothing starts for %v after the step, want %v at most", got, row.quiet)
					}
				})
			})
		}
	}
}

func mostWithin(starts []time.Time, in time.Duration) (most int) {
	slices.SortFunc(starts, time.Time.Compare)
	from := 0
	for i := range starts {
		for starts[i].Sub(starts[from]) >= in {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

func longestWithout(starts []time.Time, last time.Time) (longest time.Duration) {
	for _, start := range starts {
		if start.After(last) {
			longest, last = max(longest, start.Sub(last)), start
		}
	}
	return longest
}

// "Waits go by Redis's clock": what a worker's own clock shows ends no task's patience, and makes none
// longer. One is an hour ahead of Redis's here, as if it had jumped, or an hour behind.
func TestWaitsGoByRedissClock(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": -time.Hour, "behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: full(10 * time.Minute)}})
				must(t, err)
				clock := setClock{off: off}
				m, rdb := redistest.Miniredis(t)
				clock.of(t, m)
				s := newSystemOn(t, rdb, policy, MiddlewareConfig{OnMaxWait: Fail()})
				d, err := s.throttle.cfg.Limiter.Decide(t.Context(), throttle.Request{Scope: "p/a"})
				must(t, err)
				ctx, lease := s.throttle.cfg.Limiter.Lease(t.Context(), d.Grant)
				t.Cleanup(func() { _ = lease.Release(context.WithoutCancel(ctx)) })
				// Another worker, whose clock is right, has put it back ten minutes less three seconds ago.
				s.addForeign("t", asynq.MaxRetry(3))
				since := time.Now().Add(off - 10*time.Minute + 3*time.Second)
				must(t, rdb.Set(t.Context(), "hw:wait:{default}:3:t", fmt.Sprint(since.UnixMicro(), " 0"), 0).Err())
				began := time.Now()
				s.serve(asynq.Config{}, nil)
				why := s.archived("t")
				if took := time.Since(began); took < 2*time.Second || took > 5*time.Second || !strings.Contains(why, "waited 10m") {
					t.Errorf("it ended after %v: %s", took, why)
				}
			})
		})
	}
}
