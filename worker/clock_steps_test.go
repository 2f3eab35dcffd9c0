package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
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

// "Nothing starts for at most so long": two workers have a
// backlog, and each task starts once.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	const limit, tasks = 20, 200
	for name, row := range map[string]struct {
		rule  throttle.Rule
		most  int // starts within a second while the clock goes on
		forth int // how many more, where it steps forth
		quiet time.Duration
	}{
		"sliding window": {throttle.Rule{Algorithm: throttle.SlidingWindow}, limit, limit, 2010 * time.Millisecond},
		"fixed window":   {throttle.Rule{Algorithm: throttle.FixedWindow}, 3 * limit, 0, 3 * time.Second},
		"token bucket":   {throttle.Rule{Algorithm: throttle.TokenBucket, Burst: 5}, limit + 5, 5, 1050 * time.Millisecond},
	} {
		for _, by := range []time.Duration{-time.Hour, -time.Minute, time.Minute, time.Hour} {
			t.Run(fmt.Sprintf("%s, %v", name, by), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rule := row.rule
					rule.Name, rule.Limit, rule.Per = "r", limit, time.Second
					policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{"p": {Rules: []throttle.Rule{rule}}})
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
					one, other := newSystemOn(t, rdb, policy, Config{}), newSystemOn(t, rdb, policy, Config{})
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
