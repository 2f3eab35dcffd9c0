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

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// neighbours is how many tenants of a provider wait beside one that waits for nothing.
const neighbours = 50

// BenchmarkNeighbours says what a decision of a tenant that waits for nothing costs Redis while
// others of its provider wait, and while an API's correction of another's limit is in force, as
// multiples of what it costs when neither is so. The situations take turns.
func BenchmarkNeighbours(b *testing.B) {
	for _, rules := range []struct{ name, scope string }{{"one rule", "one/mine"}, {"two rules", "two/mine"}} {
		for _, way := range []struct {
			name string
			ask  func(l *throttle.Limiter, scope string, i int) throttle.Request
		}{
			{"of callers", func(_ *throttle.Limiter, scope string, _ int) throttle.Request {
				return throttle.Request{Scope: scope}
			}},
			{"of tasks", func(_ *throttle.Limiter, scope string, i int) throttle.Request {
				return throttle.Request{Scope: scope, Turn: throttle.Turn{WaiterID: queue.Ticket(queue.DefaultQueue, "task"+strconv.Itoa(i))}}
			}},
		} {
			name := fmt.Sprintf("decisions %s of a tenant that waits for nothing, %s", way.name, rules.name)
			b.Run(name, func(b *testing.B) { besideNeighbours(b, name, rules.scope, way.ask) })
		}
	}
}

// situations are what is so beside the tenant, each in a Redis of its own.
var situations = []struct {
	who  string
	make func(b *testing.B, l *throttle.Limiter, provider string)
}{
	{"Headway, nobody waits", func(*testing.B, *throttle.Limiter, string) {}},
	{fmt.Sprintf("%d others wait", neighbours), haveWait},
	{"another's limit is corrected", haveCorrected},
}

func besideNeighbours(b *testing.B, name, scope string, ask func(*throttle.Limiter, string, int) throttle.Request) {
	b.Helper()
	var limiters []*throttle.Limiter
	var clients []*redis.Client
	for _, s := range situations {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr(), PoolSize: 2 * callers})
		b.Cleanup(func() { _ = rdb.Close() })
		l := limiterOf(b, rdb, besides())
		s.make(b, l, scope[:len("one")])
		limiters, clients = append(limiters, l), append(clients, rdb)
	}
	cost, ratios := make([][]float64, len(situations)), make([][]float64, len(situations))
	for b.Loop() {
		for i := range rounds() * len(situations) {
			i %= len(situations)
			micros := costOfDecisions(b, clients[i], limiters[i], func(n int) throttle.Request { return ask(limiters[i], scope, n) })
			cost[i] = append(cost[i], micros)
			ratios[i] = append(ratios[i], micros/cost[0][len(cost[i])-1])
		}
	}
	for i, s := range situations {
		row := figures.NewRow(name, s.who)
		row.Micros = figures.Median(slices.Clone(cost[i]))
		if i > 0 {
			ratio := figures.Median(ratios[i])
			row.Note = fmt.Sprintf("%.1f µs, %.2f × while nobody waits", row.Micros, ratio)
			b.ReportMetric(ratio, "x-"+unit(s.who))
		} else {
			row.Note = fmt.Sprintf("%.1f µs", row.Micros)
		}
		table.add(row)
	}
}

// besides are the limits of providers with a tenant that waits for nothing, others that may start
// once an hour, and one whose API has told its limit.
func besides() map[string]policy.ScopeConfig {
	tenants := map[string]policy.ScopeConfig{"mine": {Rules: []policy.Rule{bucket("tenant", neverFull, time.Second, neverFull)}}}
	for _, name := range numbered("t%02d", neighbours) {
		tenants[name] = policy.ScopeConfig{Rules: []policy.Rule{sliding("tenant", 1, time.Hour)}}
	}
	tenants["told"] = policy.ScopeConfig{Rules: []policy.Rule{sliding("tenant", 1000, time.Minute)}}
	return map[string]policy.ScopeConfig{
		"one": {Scopes: tenants},
		"two": {Rules: []policy.Rule{sliding("account", neverFull, time.Second)}, Scopes: tenants},
	}
}

func limiterOf(b *testing.B, rdb *redis.Client, limits map[string]policy.ScopeConfig) *throttle.Limiter {
	b.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, limits)
	if err != nil {
		b.Fatal(err)
	}
	l, err := throttle.New(rdb, policy, throttle.Config{StartTolerance: pad})
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// haveWait has two tasks of each neighbour: the second waits.
func haveWait(b *testing.B, l *throttle.Limiter, provider string) {
	b.Helper()
	for turn := range 2 {
		var asks []throttle.Waiter
		for _, name := range numbered("t%02d", neighbours) {
			asks = append(asks, throttle.Waiter{Scope: provider + "/" + name, ID: queue.Ticket(queue.DefaultQueue, fmt.Sprint(name, turn))})
		}
		var placed []throttle.Joined
		for some := range slices.Chunk(asks, 8) { // so that all may start that can
			more, err := l.Waitlist().Join(b.Context(), some, 0, 0)
			if err != nil {
				b.Fatal(err)
			}
			placed = append(placed, more...)
		}
		if turn == 0 { // those who may start have come, so that none is overdue
			var claimed []throttle.WaiterRef
			for _, a := range asks {
				claimed = append(claimed, a.Ref())
			}
			if err := l.Waitlist().ReportClaimed(b.Context(), provider, claimed); err != nil {
				b.Fatal(err)
			}
		} else if !placed[0].Waits {
			b.Fatal("no neighbour waits")
		}
	}
}

// haveCorrected has an API tell a limit of another tenant's that is smaller than its rule's.
func haveCorrected(b *testing.B, l *throttle.Limiter, provider string) {
	b.Helper()
	heeded, err := l.Report(b.Context(), provider+"/told", upstream.Hint{Quotas: []upstream.Quota{
		{Unit: "requests", Limit: 500, Remaining: upstream.Unknown, Reset: upstream.Unknown, Window: time.Minute},
	}})
	if err != nil || !heeded.Changed {
		b.Fatalf("the API's limit was not taken: %+v, %v", heeded, err)
	}
}

// costOfDecisions returns the µs of Redis in scripts for each of many decisions of 64 callers, all of
// which are granted.
func costOfDecisions(b *testing.B, rdb *redis.Client, l *throttle.Limiter, ask func(int) throttle.Request) float64 {
	b.Helper()
	decide := func(i int) error {
		d, err := l.Decide(b.Context(), ask(i))
		if err == nil && !d.Allowed {
			err = fmt.Errorf("the decision was a denial: %+v", d)
		}
		return err
	}
	if err := decide(int(asked.Add(1))); err != nil { // the server knows the script then
		b.Fatal(err)
	}
	if err := rdb.ConfigResetStat(context.Background()).Err(); err != nil {
		b.Fatal(err)
	}
	var left atomic.Int64
	left.Store(int64(scriptCalls()))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := decide(int(asked.Add(1))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(scriptTime(b, rdb).Microseconds()) / float64(scriptCalls())
}

// asked counts decisions, so that no two tasks have the same id.
var asked atomic.Int64
