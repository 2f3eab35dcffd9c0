package traps

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// limiter has one rule at provider p, and a clock that the test turns.
func limiter(t *testing.T, rdb *redis.Client, prefix string, clock *redistest.Clock, rule policy.Rule) *throttle.Limiter {
	t.Helper()
	rdb.AddHook(clock)
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{rule}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(rdb, p, throttle.Config{Prefix: prefix, StartTolerance: -1, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func admits(t *testing.T, l *throttle.Limiter, cost int64) bool {
	t.Helper()
	d, err := l.Decide(t.Context(), throttle.Request{Scope: "p/x", Cost: cost})
	if err != nil {
		t.Error(err)
	}
	return d.Allowed
}

var epoch = time.Unix(1_800_057_600, 0)

// Of many callers in several processes at the same moment, exactly the limit is admitted.
func TestAttackers(t *testing.T) {
	t.Parallel()
	for _, rule := range []policy.Rule{
		{Name: "bucket", Algorithm: policy.TokenBucket, Limit: 100, Per: time.Minute, Burst: 100}, {Name: "sliding", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Minute},
		{Name: "fixed", Algorithm: policy.FixedWindow, Limit: 100, Per: time.Minute}, {Name: "places", Algorithm: policy.Concurrency, Limit: 100, Lease: time.Minute},
	} {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			prefix, clock, start := redistest.Prefix(t), redistest.NewClock(epoch), make(chan struct{})
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for range 4 {
				l := limiter(t, redistest.Client(t), prefix, clock, rule)
				for range 60 {
					wg.Go(func() {
						if <-start; admits(t, l, 1) {
							admitted.Add(1)
						}
					})
				}
			}
			close(start)
			wg.Wait()
			if got := admitted.Load(); got != 100 {
				t.Errorf("%d of 240 were admitted, want 100", got)
			}
		})
	}
}

// What a rule keeps is small, whatever its limit and however its calls come.
func TestBoundedMemory(t *testing.T) {
	t.Parallel()
	for algorithm, most := range map[policy.Algorithm]int64{policy.TokenBucket: 120, policy.SlidingWindow: 1024, policy.FixedWindow: 136} {
		for _, limit := range []int64{100, 1_000_000} {
			rdb, clock := redistest.NewServer(t).Client(t), redistest.NewClock(epoch)
			rule := policy.Rule{Name: "sliding", Algorithm: algorithm, Limit: limit, Per: time.Minute}
			if algorithm == policy.TokenBucket {
				rule.Burst = limit
			}
			l, spent := limiter(t, rdb, "hw", clock, rule), int64(0)
			for i := range 1500 {
				clock.Set(epoch.Add(time.Duration(i) * 41 * time.Millisecond))
				if cost := 1 + int64(i%7)*limit/5000; admits(t, l, cost) {
					spent += cost
				}
			}
			if spent < limit*9/10 {
				t.Errorf("%d of %d were used: the test did not fill it", spent, limit)
			}
			if size := rdb.MemoryUsage(t.Context(), "hw:{p}:r::sliding").Val(); size == 0 || size > most {
				t.Errorf("%s of %d takes %d bytes, want %d at most", algorithm, limit, size, most)
			}
		}
	}
}
