package asynqx

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// A carrier enqueues its task once: also when it does so again, for example after a crash, and the task has run and is gone.
func TestArrivals(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) { t.Parallel(); testArrivals(t, redistest.NewServer(t).Client(t)) })
	t.Run("miniredis", func(t *testing.T) { _, rdb := redistest.Miniredis(t); testArrivals(t, rdb) })
}

func testArrivals(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	client, inspector := asynq.NewClientFromRedisClient(Arrivals{rdb}), asynq.NewInspectorFromRedisClient(rdb)
	enqueue := func(id string, opts ...asynq.Option) {
		t.Helper()
		opts = append(opts, asynq.TaskID(id), asynq.ProcessIn(time.Hour))
		_, err := client.EnqueueContext(WithCarrier(t.Context(), "default", id), asynq.NewTask("work", []byte(id)), opts...)
		must(t, err)
	}
	is := func(id string, want bool) {
		t.Helper()
		if _, err := inspector.GetTaskInfo("default", id); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t: %v", id, !want, want, err)
		}
	}
	for id, opts := range map[string][]asynq.Option{"plain": nil, "unique": {asynq.Unique(time.Hour)}} {
		_, err := client.EnqueueContext(t.Context(), asynq.NewTask(CarrierType, nil), asynq.TaskID(CarrierID(id)))
		must(t, err)
		enqueue(id, opts...)
		is(id, true)
		enqueue(id, opts...)
		must(t, inspector.DeleteTask("default", id))
		enqueue(id, opts...)
		is(id, false)
		must(t, inspector.DeleteTask("default", CarrierID(id)))
		enqueue(id, opts...) // another carrier's, or one that was deleted: nothing of it is left
		is(id, true)
		is(CarrierID(id), false)
	}
}

// trips counts round trips, and makes each take a while.
type trips struct {
	takes time.Duration

	mu   sync.Mutex
	ways []int // how many commands went in each
}

func (r *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "eval" { // and not what begins a connection
			r.goes(1)
		}
		return next(ctx, cmd)
	}
}

func (r *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.goes(len(cmds))
		return next(ctx, cmds)
	}
}

func (r *trips) goes(n int) {
	r.mu.Lock()
	r.ways = append(r.ways, n)
	r.mu.Unlock()
	<-time.After(r.takes)
}

// "Nobody waits for one that hangs": those that came while it was on its way go by themselves.
func TestCombinerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &combiner{}
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			c.send(func(redis.Scripter) *redis.Cmd { <-time.After(time.Minute); return nil })
		})
		synctest.Wait()
		for range 200 {
			all.Go(func() {
				c.send(func(redis.Scripter) *redis.Cmd { return nil })
				if took := time.Since(began); took > 2*farAway {
					t.Errorf("one was sent after %s", took)
				}
			})
		}
		all.Wait()
	})
}

// "Scripts that come while another is on its way go together, in one round trip; where that takes longer than it does beside
// Redis, each goes at once", and gets its own answer.
func TestCombiner(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		takes time.Duration
		trips int // of 80 at once after one
		in    time.Duration
	}{
		{time.Millisecond, 1 + 4, 4 * time.Millisecond},
		{20 * time.Millisecond, 1 + 80, 20 * time.Millisecond},
	} {
		t.Run(test.takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Miniredis(t)
				way := &trips{takes: test.takes}
				rdb.AddHook(way)
				c := &combiner{rdb: rdb}
				ask := func(i int) {
					cmd := c.send(func(to redis.Scripter) *redis.Cmd {
						return to.Eval(t.Context(), "return ARGV[1]", nil, i)
					})
					if got, err := cmd.Text(); err != nil || got != fmt.Sprint(i) {
						t.Errorf("%d was answered %q, %v", i, got, err)
					}
				}
				ask(0)
				began := time.Now()
				var all sync.WaitGroup
				for i := range 80 {
					all.Go(func() { ask(i) })
				}
				all.Wait()
				if took := time.Since(began); took > test.in {
					t.Errorf("80 took %s, want %s at most", took, test.in)
				}
				if got := fmt.Sprint(way.ways); len(way.ways) != test.trips {
					t.Errorf("they went as %s, want %d round trips", got, test.trips)
				}
			})
		})
	}
}

// Where nothing is due asynq's script that forwards tasks is not sent: one command asks, and asynq hears that it
// moved none. It is sent as soon as something is due, and its errors reach asynq.
func TestForwardsWhatIsDue(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	forwarded := 0
	g := NewClient(ClientConfig{
		Redis: rdb, Serving: t.Context(), Interval: time.Second, Concurrency: 1,
		Forwarded: func(queue string, n int) {
			if queue != "default" {
				t.Errorf("%d were forwarded into %q", n, queue)
			}
			forwarded += n
		},
	})
	const now = 1_700_000_000
	keys := []string{"asynq:{default}:retry", "asynq:{default}:pending"}
	forwards := func(want int) map[string]int {
		t.Helper()
		return redistest.Commands(t, rdb, func() {
			got, err := g.Eval(t.Context(), `return redis.call("ZCARD", KEYS[1])`, keys, int64(now), "asynq:{default}:t:").Result()
			if err != nil || got != int64(want) {
				t.Errorf("%v (%T), %v; want %d", got, got, err, want)
			}
		})
	}
	add := func(id string, score float64) {
		t.Helper()
		must(t, rdb.ZAdd(t.Context(), keys[0], redis.Z{Score: score, Member: id}).Err())
	}
	if got := forwards(0); redistest.Total(got) != 1 || got["zrangebyscore"] != 1 {
		t.Errorf("an empty set takes %v", got)
	}
	add("later", now+1)
	if got := forwards(0); redistest.Total(got) != 1 {
		t.Errorf("a set with nothing due takes %v", got)
	}
	add("due", now)
	if got := forwards(2); got["eval"] != 1 || forwarded != 2 {
		t.Errorf("a task that is due takes %v, and %d were forwarded", got, forwarded)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Eval(over, `return 1`, keys, int64(now)).Err(); err == nil {
		t.Error("a Redis that cannot be asked forwards")
	}
}
