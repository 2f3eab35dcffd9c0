package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
)

const (
	callers   = 64
	turn      = 500 * time.Millisecond
	manyKeys  = 1000
	neverFull = 1_000_000
)

// BenchmarkDecide counts decisions of 64 callers in one process beside those of
// redis_rate, in turns and in the same run: each decision a command of its own,
// and those of many callers sharing round trips. The figure is the median ratio.
func BenchmarkDecide(b *testing.B) {
	scopes := map[string]string{"one rule": "p/", "three levels, four rules": "q/"}
	for name, prefix := range scopes {
		for mode, unbatched := range map[string]bool{"alone": true, "batched": false} {
			b.Run(name+"/"+mode, func(b *testing.B) { decideBeside(b, prefix, unbatched) })
		}
	}
}

func decideBeside(b *testing.B, prefix string, unbatched bool) {
	b.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
	defer func() { _ = rdb.Close() }()
	peer := redis_rate.NewLimiter(rdb)
	limiter, err := throttle.New(rdb, unreached(b), throttle.Config{Unbatched: unbatched})
	if err != nil {
		b.Fatal(err)
	}
	var ratios []float64
	for b.Loop() {
		base := perSecond(b, func(ctx context.Context, i int) error {
			_, err := peer.Allow(ctx, "k"+strconv.Itoa(i), redis_rate.PerSecond(neverFull))
			return err
		})
		ours := perSecond(b, func(ctx context.Context, i int) error {
			d, err := limiter.Allow(ctx, prefix+strconv.Itoa(i)+"/b")
			if err == nil && !d.Allowed {
				err = fmt.Errorf("denied: %+v", d)
			}
			return err
		})
		ratios = append(ratios, ours/base)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "x-redis_rate")
}

// perSecond has 64 callers decide for a while.
func perSecond(b *testing.B, decide func(context.Context, int) error) float64 {
	b.Helper()
	var done atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	began := time.Now()
	for caller := range callers {
		wg.Go(func() {
			for i := caller; ; i = (i + callers + 1) % manyKeys {
				select {
				case <-stop:
					return
				default:
				}
				if err := decide(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	timer := time.NewTimer(turn)
	<-timer.C
	close(stop)
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// unreached is a policy whose limits nothing here comes near.
func unreached(b *testing.B) *throttle.Policy {
	b.Helper()
	policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{
		"p": {Scopes: map[string]throttle.Node{"*": {Rules: []throttle.Rule{
			{Name: "r", Algorithm: throttle.TokenBucket, Limit: neverFull, Per: time.Second, Burst: neverFull},
		}}}},
		"q": {
			Rules: []throttle.Rule{{Name: "account", Algorithm: throttle.SlidingWindow, Limit: neverFull, Per: time.Second}},
			Scopes: map[string]throttle.Node{"*": {
				Rules: []throttle.Rule{
					{Name: "tenant", Algorithm: throttle.TokenBucket, Limit: neverFull, Per: time.Second, Burst: neverFull},
					{Name: "plan", Algorithm: throttle.FixedWindow, Limit: neverFull, Per: 24 * time.Hour},
				},
				Scopes: map[string]throttle.Node{"b": {Rules: []throttle.Rule{
					{Name: "endpoint", Algorithm: throttle.SlidingWindow, Limit: neverFull, Per: time.Second},
				}}},
			}},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return policy
}
