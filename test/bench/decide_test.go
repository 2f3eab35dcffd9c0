package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	callers   = 64
	turn      = 500 * time.Millisecond
	manyKeys  = 1000
	neverFull = 1_000_000
)

// decider decides on one unit for the i-th of many keys; it never denies here.
type decider struct {
	name   string
	decide func(ctx context.Context, i int) error
}

// BenchmarkDecide counts decisions of 64 callers in one process beside those of redis_rate and of throttled, in turns and in the
// same run: ours each a command of its own, and those of many callers sharing round trips. The figures
// are the medians of the turns.
func BenchmarkDecide(b *testing.B) {
	const one, four = "decisions, 64 callers, one rule", "decisions, 64 callers, three levels, four rules"
	const alike = "decisions, 64 callers, one rule, one key"
	measureDecisions(b, one, callers, func(rdb *redis.Client) []decider {
		return []decider{
			byRedisRate(rdb), byThrottled(b, rdb),
			byLimiter(b, rdb, "Headway", "p/", false), byLimiter(b, rdb, "Headway, each alone", "p/", true),
		}
	})
	measureOneKey(b, alike, callers)
	measureDecisions(b, four, callers, func(rdb *redis.Client) []decider {
		return []decider{
			byRedisRate(rdb),
			byLimiter(b, rdb, "Headway", "q/", false), byLimiter(b, rdb, "Headway, each alone", "q/", true),
		}
	})
}

// BenchmarkCallers counts decisions of 1, 10 and 100 callers in one process over one key, as the
// limiter of https://github.com/wukq/rate-limiter was measured; docs/benchmarks.md has its figures.
func BenchmarkCallers(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		name := "1 caller"
		if n > 1 {
			name = strconv.Itoa(n) + " callers"
		}
		measureOneKey(b, "decisions, "+name+", one rule, one key", n)
	}
}

// measureOneKey has so many callers decide on one key.
func measureOneKey(b *testing.B, name string, callers int) {
	b.Helper()
	measureDecisions(b, name, callers, func(rdb *redis.Client) []decider {
		return []decider{
			ofOneKey(byRedisRate(rdb)), ofOneKey(byLimiter(b, rdb, "Headway", "p/", false)),
		}
	})
}

// measureDecisions gives each decider a turn, several times: so many callers ask it. The first is
// what the others are compared with.
func measureDecisions(b *testing.B, name string, callers int, deciders func(*redis.Client) []decider) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
		defer func() { _ = rdb.Close() }()
		all := deciders(rdb)
		rates, took := make([][]float64, len(all)), make([][]time.Duration, len(all))
		for b.Loop() {
			for i := range rounds() * len(all) {
				i %= len(all)
				calls := inTurn(b, callers, all[i].decide)
				rates[i] = append(rates[i], float64(len(calls))/turn.Seconds())
				took[i] = append(took[i], calls...)
			}
		}
		base := figures.Median(rates[0])
		for i, d := range all {
			row := figures.NewRow(name, d.name)
			row.Rate, row.P50, row.P99 = figures.Median(rates[i]), figures.Quantile(took[i], 0.5), figures.Quantile(took[i], 0.99)
			if i > 0 {
				row.Note = fmt.Sprintf("%.2f × %s", row.Rate/base, all[0].name)
				b.ReportMetric(row.Rate/base, "x-"+unit(d.name))
			}
			table.add(row)
		}
	})
}

// rounds is how many turns each contender has where medians count.
func rounds() int {
	if long() {
		return 5
	}
	return 1
}

// unit makes a name one of a metric, which has no blanks.
func unit(name string) string { return strings.NewReplacer(", ", "-", " ", "-").Replace(name) }

// inTurn has so many callers decide for a while, and returns what each call took.
func inTurn(b *testing.B, callers int, decide func(context.Context, int) error) []time.Duration {
	b.Helper()
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	ends := time.Now().Add(turn)
	for caller := range callers {
		wg.Go(func() {
			began := time.Now()
			for i := caller; began.Before(ends); i = (i + callers + 1) % manyKeys {
				if err := decide(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				took[caller] = append(took[caller], now.Sub(began))
				began = now
			}
		})
	}
	wg.Wait()
	return slices.Concat(took...)
}

// ofOneKey has a decider decide on one key alone.
func ofOneKey(d decider) decider {
	return decider{d.name, func(ctx context.Context, _ int) error { return d.decide(ctx, 0) }}
}

func byRedisRate(rdb *redis.Client) decider {
	limiter := redis_rate.NewLimiter(rdb)
	return decider{"redis_rate", func(ctx context.Context, i int) error {
		_, err := limiter.Allow(ctx, "k"+strconv.Itoa(i), redis_rate.PerSecond(neverFull))
		return err
	}}
}

func byThrottled(b *testing.B, rdb *redis.Client) decider {
	b.Helper()
	store, err := goredisstore.NewCtx(rdb, "throttled:")
	must(b, err)
	quota := throttled.RateQuota{MaxRate: throttled.PerSec(neverFull), MaxBurst: neverFull}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
	must(b, err)
	limiter.SetMaxCASAttemptsLimit(1000) // each caller that another one overtakes tries again
	return decider{"throttled", func(ctx context.Context, i int) error {
		_, _, err := limiter.RateLimitCtx(ctx, strconv.Itoa(i), 1)
		return err
	}}
}

// unreached returns a limiter whose limits nothing here comes near.
func unreached(b *testing.B, rdb *redis.Client, cfg throttle.Config) *throttle.Limiter {
	b.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, neverReached(policy.Rule{Name: "plan", Algorithm: policy.FixedWindow, Limit: neverFull, Per: 24 * time.Hour}))
	must(b, err)
	limiter, err := throttle.New(rdb, policy, cfg)
	must(b, err)
	return limiter
}

func byLimiter(b *testing.B, rdb *redis.Client, name, prefix string, alone bool) decider {
	b.Helper()
	limiter := unreached(b, rdb, throttle.Config{Unbatched: alone})
	return decider{name, func(ctx context.Context, i int) error {
		d, err := limiter.Allow(ctx, prefix+strconv.Itoa(i)+"/b")
		if err == nil && !d.Allowed {
			err = fmt.Errorf("denied: %+v", d)
		}
		return err
	}}
}
