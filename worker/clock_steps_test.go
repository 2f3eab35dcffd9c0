package worker

import (
	"context"
	"fmt"
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
