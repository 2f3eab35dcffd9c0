package bench

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
)

// BenchmarkScripts says what each script costs Redis, by its own count (INFO
// commandstats): the median of several turns, in µs a call, and as a multiple of
// redis_rate's script, which has a turn beside each of ours.
func BenchmarkScripts(b *testing.B) {
	token, sliding := lua.Rule('T', [4]int64{1, 1, 1_000_000}), lua.Rule('S', [4]int64{1_000_000, 1_005_000, 5025})
	fixed, runs := lua.Rule('S', [4]int64{1_000_000, 0, 86_400_000_000, 5000}), lua.Rule('C', [4]int64{1_000_000, 60_000_000})
	onUse := lua.Rule('S', [4]int64{1_000_000, 86_400_005_000, 0, 10_000})
	full := lua.Rule('T', [4]int64{1, 3_600_000_000, 1}) // one an hour
	for _, test := range []struct {
		name   string
		script *lua.Script
		rules  []string
		extra  int // KEYS after the rules
	}{
		{"decide/token bucket", lua.Decide.For("T"), []string{token}, 1},
		{"decide/sliding window", lua.Decide.For("S"), []string{sliding}, 1},
		{"decide/fixed window", lua.Decide.For("S"), []string{fixed}, 1},
		{"decide/window on use", lua.Decide.For("S"), []string{onUse}, 1},
		{"decide/concurrency", lua.Decide.For("C"), []string{runs}, 1},
		{"decide/four rules", lua.Decide.For("TS"), []string{sliding, token, fixed, sliding}, 1},
		{"decide/denied by a token bucket", lua.Decide.For("T"), []string{full}, 1},
		{"decide/denied by one of four", lua.Decide.For("TS"), []string{sliding, full, fixed, sliding}, 1},
		{"settle/token bucket given back", lua.Settle.For("T"), []string{token}, 1},
		{"renew/one lease", lua.Renew, []string{runs}, 0},
		{"release/one lease", lua.Release, []string{runs}, 0},
		{"heartbeat", lua.Heartbeat, []string{""}, 0},
	} {
		b.Run(test.name, func(b *testing.B) {
			rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
			defer func() { _ = rdb.Close() }()
			var keys []string
			for i, rule := range test.rules {
				keys = append(keys, fmt.Sprintf("hw:{payments}/acme:rule%d", i))
				if strings.HasPrefix(rule, "C") {
					keys[i] += ":held"
				}
			}
			peer := redis_rate.NewLimiter(rdb)
			var cost, times []float64
			for b.Loop() {
				base := costOf(b, rdb, func(ctx context.Context, _ int) error {
					_, err := peer.Allow(ctx, "acme", redis_rate.PerSecond(neverFull))
					return err
				})
				hold(b, rdb, keys[0])
				mine := costOf(b, rdb, func(ctx context.Context, i int) error {
					all, args := arguments(test.script.Name, keys, test.extra, test.rules, i)
					return redis.NewScript(test.script.Source()).Run(ctx, rdb, all, args...).Err()
				})
				cost, times = append(cost, mine), append(times, mine/base)
			}
			slices.Sort(cost)
			slices.Sort(times)
			b.ReportMetric(cost[len(cost)/2], "µs/call")
			b.ReportMetric(times[len(times)/2], "x-redis_rate")
		})
	}
}

// arguments are those of the i-th call, as a client makes it.
func arguments(name string, keys []string, extra int, rules []string, i int) (all []string, args []any) {
	id := fmt.Sprintf("attempt%09d", i)
	switch name {
	case "renew":
		return keys, []any{"", "held", 60_000_000}
	case "release":
		return append(slices.Clone(keys), "hw:{payments}!runs:parallel", "hw:{payments}!schedule", "hw:{payments}!meta"), []any{"", id, 1_500_000 + i}
	case "heartbeat":
		return []string{"hw:members"}, []any{"", "member" + strconv.Itoa(i%8), 15_000_000}
	}
	all, args = slices.Clone(keys), []any{"", id}
	if extra > 0 {
		all = append(all, "hw:{payments}@#process.1")
	}
	switch name {
	case "settle":
		all = append(all, "hw:{payments}@"+id, "hw:{payments}@"+id+"=", "hw:{payments}!schedule", "hw:{payments}!meta")
		args = append(args, "", int64(1)<<53, 0, 0)
	case "decide":
		all, args = append(all, "hw:{payments}!upstream"), append(args, "0/acme")
	}
	for _, rule := range rules {
		args = append(args, rule, 1)
		if name == "settle" {
			args = append(args, 0, 0, 0)
		}
	}
	return all, args
}

// hold takes the places that renew and release are called for.
func hold(b *testing.B, rdb *redis.Client, key string) {
	b.Helper()
	if !strings.HasSuffix(key, ":held") {
		return
	}
	ends := float64(time.Now().Add(time.Minute).UnixMicro())
	places := []redis.Z{{Score: ends, Member: "held"}}
	for i := range scriptCalls() {
		places = append(places, redis.Z{Score: ends, Member: fmt.Sprintf("attempt%09d", i)})
	}
	if err := rdb.ZAdd(context.Background(), key, places...).Err(); err != nil {
		b.Fatal(err)
	}
}

// scriptCalls is how many calls a turn has.
func scriptCalls() int {
	if long() {
		return 20_000
	}
	return 2000
}

var evalCost = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// costOf returns the µs that Redis counts for an EVALSHA of a turn's calls, which
// many callers make: a server that waits for each call finds its caches cold.
func costOf(b *testing.B, rdb *redis.Client, call func(context.Context, int) error) float64 {
	b.Helper()
	ctx := context.Background()
	for i := range 10 { // the first calls find no script and no state
		if err := call(ctx, i); err != nil {
			b.Fatal(err)
		}
	}
	rdb.ConfigResetStat(ctx)
	calls := int64(scriptCalls())
	var next atomic.Int64
	next.Store(10)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i < calls; i = next.Add(1) {
				if err := call(ctx, int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	m := evalCost.FindStringSubmatch(rdb.Info(ctx, "commandstats").Val())
	if m == nil {
		b.Fatal("Redis has counted no EVALSHA")
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	us, _ := strconv.ParseFloat(m[2], 64)
	return us / n
}
