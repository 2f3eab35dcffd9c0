package bench

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

// BenchmarkBacklog lets a server loose on a backlog under one limit for a while,
// the usual way (a limiter in the handler, and an error that tells asynq when to
// come back) and Headway's. The figures, all from the handlers' own starts and from
// Redis's count of commands:
//
//	%quota     starts, of those that the limit had room for
//	worst      most starts in any one second, and
//	limit      what the rule allows in one
//	pick-ups   how often asynq handed a task out, for each start
//	commands   of Redis, for each start
func BenchmarkBacklog(b *testing.B) {
	for _, way := range []struct {
		name  string
		limit throttle.Rule
		serve func(*testing.B, redis.UniversalClient, throttle.Rule, asynq.Config, asynq.HandlerFunc, *atomic.Int64) (stop func())
	}{
		{"usual way/burst=1", bucket(1), usualWay},
		{"usual way/burst=limit", bucket(backlogRate), usualWay},
		{"headway/burst=1", bucket(1), headwaysWay},
		{"headway/burst=10", bucket(10), headwaysWay},
		{"headway/sliding window", throttle.Rule{
			Name: "r", Algorithm: throttle.SlidingWindow, Limit: backlogRate, Per: time.Second,
		}, headwaysWay},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				server := redistest.NewServer(b)
				rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 64})
				backlog(b, rdb)
				var run starts
				var picked atomic.Int64
				cfg := asynq.Config{Concurrency: 32, LogLevel: asynq.FatalLevel}
				stop := way.serve(b, rdb, way.limit, cfg, run.start, &picked)
				<-time.After(backlogSpell)
				run.over.Store(true)
				commands := commandsOf(b, rdb)
				stop()
				run.report(b, way.limit, picked.Load(), commands)
				_ = rdb.Close()
				server.Kill9()
			}
		})
	}
}

const (
	backlogTasks = 2000
	backlogRate  = 100 // a second
	backlogSpell = 5 * time.Second
)

func bucket(burst int64) throttle.Rule {
	return throttle.Rule{Name: "r", Algorithm: throttle.TokenBucket, Limit: backlogRate, Per: time.Second, Burst: burst}
}

// starts are the moments at which runs began.
type starts struct {
	over atomic.Bool

	mu sync.Mutex
	at []time.Time
}

func (s *starts) start(context.Context, *asynq.Task) error {
	now := time.Now()
	if s.over.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, now)
	return nil
}

func (s *starts) report(b *testing.B, rule throttle.Rule, picked, commands int64) {
	b.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.at, time.Time.Compare)
	n, worst, from := len(s.at), 0, 0
	if n == 0 {
		b.Fatal("nothing ran")
	}
	for to := range s.at {
		for s.at[to].Sub(s.at[from]) >= time.Second {
			from++
		}
		worst = max(worst, to-from+1)
	}
	room := backlogRate * backlogSpell.Seconds()
	most := float64(rule.Limit)
	if rule.Algorithm == throttle.TokenBucket {
		room += float64(rule.Burst - 1)
		most += float64(rule.Burst - 1) // in less than a second
	}
	b.ReportMetric(100*float64(n)/room, "%quota")
	b.ReportMetric(float64(worst), "worst")
	b.ReportMetric(most, "limit")
	b.ReportMetric(float64(picked)/float64(n), "pick-ups")
	b.ReportMetric(float64(commands)/float64(n), "commands")
	b.ReportMetric(0, "ns/op")
}

func backlog(b *testing.B, rdb *redis.Client) {
	b.Helper()
	client := asynq.NewClientFromRedisClient(rdb)
	headers := map[string]string{queue.HeaderScope: "p"}
	for i := range backlogTasks {
		if _, err := client.Enqueue(asynq.NewTaskWithHeaders("work", nil, headers), asynq.TaskID(strconv.Itoa(i))); err != nil {
			b.Fatal(err)
		}
	}
	rdb.ConfigResetStat(context.Background())
}

var commandCalls = regexp.MustCompile(`cmdstat_[^:]+:calls=(\d+)`)

func commandsOf(b *testing.B, rdb *redis.Client) (total int64) {
	b.Helper()
	for _, m := range commandCalls.FindAllStringSubmatch(rdb.Info(context.Background(), "commandstats").Val(), -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		total += n
	}
	return total
}

// comeBack is the error of the usual way.
type comeBack struct{ in time.Duration }

func (comeBack) Error() string { return "over the limit" }

// usualWay asks redis_rate in the handler. asynq looks for due tasks every second.
func usualWay(
	b *testing.B, rdb redis.UniversalClient, rule throttle.Rule, cfg asynq.Config, next asynq.HandlerFunc, picked *atomic.Int64,
) (stop func()) {
	b.Helper()
	limiter := redis_rate.NewLimiter(rdb)
	limit := redis_rate.Limit{Rate: int(rule.Limit), Burst: int(rule.Burst), Period: rule.Per}
	cfg.DelayedTaskCheckInterval = time.Second
	cfg.IsFailure = func(err error) bool { return !errors.As(err, new(comeBack)) }
	cfg.RetryDelayFunc = func(_ int, err error, _ *asynq.Task) time.Duration {
		var limited comeBack
		errors.As(err, &limited)
		return limited.in
	}
	srv := asynq.NewServerFromRedisClient(rdb, cfg)
	err := srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		picked.Add(1)
		res, err := limiter.Allow(ctx, "p", limit)
		if err != nil {
			return err
		}
		if res.Allowed == 0 {
			return comeBack{res.RetryAfter}
		}
		return next(ctx, task)
	}))
	if err != nil {
		b.Fatal(err)
	}
	return srv.Shutdown
}

// headwaysWay wraps the same handler.
func headwaysWay(
	b *testing.B, rdb redis.UniversalClient, rule throttle.Rule, cfg asynq.Config, next asynq.HandlerFunc, picked *atomic.Int64,
) (stop func()) {
	b.Helper()
	policy, err := throttle.NewPolicy(throttle.UnmatchedDeny, map[string]throttle.Node{"p": {Rules: []throttle.Rule{rule}}})
	if err != nil {
		b.Fatal(err)
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		b.Fatal(err)
	}
	t, err := worker.New(worker.Config{Redis: rdb, Limiter: limiter})
	if err != nil {
		b.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(rdb, t.Config(cfg))
	wrapped := t.Handler(next)
	err = srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		picked.Add(1)
		return wrapped.ProcessTask(ctx, task)
	}))
	if err != nil {
		b.Fatal(err)
	}
	return func() { t.Stop(); srv.Shutdown() }
}
