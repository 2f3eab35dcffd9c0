package zz

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/network"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

func env(name string, def int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return def
}

func TestAway(t *testing.T) {
	away := time.Duration(env("AWAY", 20)) * time.Millisecond
	n, rate, conc, tenants, workers := env("N", 150), env("RATE", 50), env("CONC", 32), env("TENANTS", 1), env("WORKERS", 2)
	trate := env("TRATE", 0)
	server := redistest.NewServer(t)
	ctx := context.Background()
	var node throttle.Node
	rule := throttle.Rule{Name: "r", Algorithm: throttle.SlidingWindow, Limit: int64(rate), Per: time.Second}
	if os.Getenv("BUCKET") != "" {
		rule = throttle.Rule{Name: "r", Algorithm: throttle.TokenBucket, Limit: int64(rate), Per: time.Second, Burst: 1}
	}
	node.Rules = []throttle.Rule{rule}
	if trate > 0 {
		node.Scopes = map[string]throttle.Node{"*": {Rules: []throttle.Rule{{Name: "t", Algorithm: throttle.SlidingWindow, Limit: int64(trate), Per: time.Second}}}}
	}
	policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{"p": node})
	if err != nil {
		t.Fatal(err)
	}
	near := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 100})
	lim, err := throttle.New(near, policy, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client := queue.NewClient(near, queue.ClientConfig{Limiter: lim})
	t0 := time.Now()
	sum, err := client.EnqueueBatch(ctx, func(yield func(queue.Entry) bool) {
		for i := 0; i < n; i++ {
			scope := "p"
			if tenants > 1 {
				scope = fmt.Sprintf("p/t%d", i%tenants)
			}
			if !yield(queue.Entry{Task: queue.Task{Type: "x", ID: fmt.Sprint(i), Scope: scope}}) {
				return
			}
		}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = sum
	t.Logf("enqueued in %s", time.Since(t0))
	near.ConfigResetStat(ctx)
	near.SlowLogReset(ctx)
	near.ConfigSet(ctx, "slowlog-log-slower-than", "1500")
	near.ConfigSet(ctx, "slowlog-max-len", "1000")
	var mu sync.Mutex
	var starts []time.Time
	picks := 0
	done := make(chan struct{})
	for w := 0; w < workers; w++ {
		addr := server.Addr()
		if away > 0 {
			p := network.NewProxy(t, addr)
			p.Delay(away, 0)
			addr = p.Addr()
		}
		rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 2*conc + 20})
		lim, err := throttle.New(rdb, policy, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		th, err := worker.New(worker.Config{Redis: rdb, Limiter: lim, Observer: obs{&mu, &picks}})
		if err != nil {
			t.Fatal(err)
		}
		srv := th.NewServer(asynq.Config{Concurrency: conc, LogLevel: asynq.ErrorLevel})
		if err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Now())
			if len(starts) == n {
				close(done)
			}
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Shutdown)
	}
	begin := time.Now()
	limit := time.Duration(env("SECS", 60)) * time.Second
	select {
	case <-done:
	case <-time.After(limit):
	}
	took := time.Since(begin)
	mu.Lock()
	defer mu.Unlock()
	sort.Slice(starts, func(i, j int) bool { return starts[i].Before(starts[j]) })
	if len(starts) == 0 {
		t.Fatal("no starts")
	}
	span := starts[len(starts)-1].Sub(starts[0])
	over := 0
	for i := 0; i+rate < len(starts); i++ {
		if starts[i+rate].Sub(starts[i]) < time.Second {
			over++
		}
	}
	t.Logf("%d started in %s (from server start %s) %.1f/s, pickups %.3f, over %d", len(starts), span, took, float64(len(starts)-1)/span.Seconds(), float64(picks)/float64(len(starts)), over)
	hist := map[int]int{}
	for _, s := range starts {
		hist[int(s.Sub(starts[0])/(100*time.Millisecond))]++
	}
	line := ""
	for i := 0; i <= int(span/(100*time.Millisecond)) && i < 60; i++ {
		line += fmt.Sprint(hist[i], " ")
	}
	t.Log(line)
	if len(starts) < n {
		insp := asynq.NewInspectorFromRedisClient(near)
		q, _ := insp.GetQueueInfo("default")
		fmt.Printf("LEFT pending=%d active=%d scheduled=%d retry=%d archived=%d flight=%d overdue=%d\n", q.Pending, q.Active, q.Scheduled, q.Retry, q.Archived, near.HLen(ctx, "hw:{p}!flight").Val(), near.ZCard(ctx, "hw:{p}!overdue").Val())
		act, _ := insp.ListActiveTasks("default", asynq.PageSize(10))
		for _, a := range act {
			fmt.Printf("LEFT active %s orphaned=%t lease=%v\n", a.ID, a.IsOrphaned, near.ZScore(ctx, "asynq:{default}:lease", a.ID).Val()-float64(time.Now().Unix()))
		}
		keys := near.Keys(ctx, "hw:*").Val()
		fmt.Println("LEFT keys", len(keys), keys[:min(12, len(keys))])
		var sch []redis.Z
		sch = near.ZRangeWithScores(ctx, "asynq:{default}:scheduled", 0, 5).Val()
		fmt.Println("LEFT sched", sch, time.Now().Unix())
		fmt.Println("LEFT schedule", near.ZRangeWithScores(ctx, "hw:{p}!schedule", 0, 5).Val(), time.Now().UnixMicro())
		fmt.Println("LEFT queue", near.ZCard(ctx, "hw:{p}!queue").Val())
	}
	info := near.Info(ctx, "commandstats").Val()
	fmt.Println(cmdstats(info, len(starts)))
	if os.Getenv("SLOW") != "" {
		sl := near.SlowLogGet(ctx, 1000).Val()
		by := map[string]time.Duration{}
		cnt := map[string]int{}
		for _, s := range sl {
			k := s.Args[0]
			if len(s.Args) > 1 {
				k += " " + s.Args[1]
			}
			if s.Duration > by[k] {
				by[k] = s.Duration
			}
			cnt[k]++
		}
		for k, v := range by {
			fmt.Println("slow", k[:min(len(k), 60)], v, cnt[k])
		}
	}
}
