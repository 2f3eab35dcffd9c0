package worker

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

func never(int, error, *asynq.Task) time.Duration { return time.Hour }

// "A task past asynq's own deadline takes nothing from others": what another program gave a
// deadline leaves its line when asynq fails it, burns the one retry that it would without us,
// is not released again, and the limit goes to the others of its line and to the neighbour.
func TestDeadlineOfAsynqs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const doomed, others = 30, 120
		w := newWard(t)
		w.limits.cfg.Limiter.SetPolicy(policyOfP(t, steady(20)))
		var mu sync.Mutex
		var starts []time.Time
		ran, failures := map[string]int{}, 0
		server := w.limits.NewServer(asynq.Config{
			LogLevel: asynq.FatalLevel, Concurrency: 8, RetryDelayFunc: never,
			ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {
				mu.Lock()
				defer mu.Unlock()
				failures++
			}),
		})
		must(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			mu.Lock()
			defer mu.Unlock()
			id, _ := asynq.GetTaskID(ctx)
			starts = append(starts, time.Now())
			ran[id]++
			return nil
		})))
		add := func(tasks []queue.Task) {
			client := queue.NewClient(w.rdb, queue.ClientConfig{Limiter: w.limits.cfg.Limiter})
			for _, task := range tasks {
				_, err := client.Enqueue(t.Context(), task)
				must(t, err)
			}
		}
		add(jobs(20, "p/first"))
		client, deadline := asynq.NewClientFromRedisClient(w.rdb), time.Now().Add(2*time.Second)
		for i := range doomed {
			task := asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: "p/a"})
			_, err := client.Enqueue(task, asynq.TaskID(fmt.Sprint("doomed ", i)), asynq.Deadline(deadline), asynq.MaxRetry(5))
			must(t, err)
		}
		<-time.After(10 * time.Millisecond) // they are before the others
		add(jobs(others/2, "p/a"))
		add(jobs(others/2, "p/b"))
		<-time.After(20 * time.Second)
		server.Shutdown()
		mu.Lock()
		defer mu.Unlock()
		late, twice := 0, 0
		for i := range doomed {
			id := fmt.Sprint("doomed ", i)
			if ran[id] > 0 {
				continue
			}
			late++
			info, err := w.limits.inspector.GetTaskInfo("default", id)
			must(t, err)
			known := info.State == asynq.TaskStateArchived && info.Retried == 0 // at its last pick-up before
			if info.Retried == 2 {                                              // it was granted in the moment in which asynq failed it
				twice++
			} else if !known && (info.State != asynq.TaskStateRetry || info.Retried != 1) {
				t.Errorf("%s is %+v: want one retry burnt", id, info)
			}
		}
		if late < doomed/2 || twice > 1 || failures != late+twice {
			t.Errorf("%d came too late, and asynq failed tasks %d times", late, failures)
		}
		if want := 20 + others + doomed - late; len(starts) != want {
			t.Errorf("%d tasks ran, want %d", len(starts), want)
		}
		// Each start but the first took a twentieth of a second, and there was no idle one.
		if span, least := starts[len(starts)-1].Sub(starts[0]), time.Duration(len(starts)-1)*time.Second/20; span > least*102/100 {
			t.Errorf("%d starts took %s, want %s", len(starts), span, least)
		}
		if got, err := w.limits.cfg.Limiter.Inspect(t.Context(), "p"); err != nil || got.Waiting+got.Dispatched > 0 {
			t.Errorf("%+v, %v: somebody is said to wait", got, err)
		}
	})
}

// The same where its turn is far: asynq brings it back at its deadline.
func TestDeadlineOfAsynqsInLine(t *testing.T) {
	t.Parallel()
	s := newSystem(t, full(0), MiddlewareConfig{})
	began, end := make(chan struct{}), make(chan struct{})
	s.add(queue.Task{ID: "blocks"})
	s.serve(asynq.Config{Concurrency: 4, RetryDelayFunc: never}, func(context.Context, *asynq.Task) error {
		close(began)
		<-end
		return nil
	})
	t.Cleanup(func() { close(end) })
	<-began
	s.planned(jobs(3, "p/a")...)
	s.addForeign("late", asynq.Deadline(time.Now().Add(3*time.Second)), asynq.MaxRetry(5))
	s.onlyWait(4)
	s.until("asynq has failed it", func() bool {
		info := s.info("late")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	s.onlyWait(3)
}

// What asynq does to a task that is held, or about to be picked up, without asking: it leaves
// what it has to others, at once, and comes back by asynq's own delay.
func TestCancelProcessing(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: 4 * time.Second}}, MiddlewareConfig{Hold: 5 * time.Second})
	held := make(chan struct{}, 10)
	s.seen.onHold = func() { held <- struct{}{} }
	s.add(queue.Task{ID: "first"})
	s.serve(asynq.Config{Concurrency: 4, RetryDelayFunc: never}, nil)
	<-s.ended
	s.add(queue.Task{ID: "cancelled"})
	<-held
	s.until("asynq has cancelled it", func() bool {
		must(t, s.inspector.CancelProcessing("cancelled"))
		info := s.info("cancelled")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	s.add(queue.Task{ID: "next"})
	s.until("the next has what it was granted", func() bool { return s.ran("next") == 1 })
	s.onlyWait(0)
	s.untilNoTrace()
	if n := s.ran("cancelled"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}

// A task whose time-out, asynq's own, passes while its limits cannot answer does not wait in
// line for longer than asynq keeps it.
func TestTimeoutWhileDeciding(t *testing.T) {
	t.Parallel()
	s := forAnHour(t, MiddlewareConfig{})
	s.addForeign("waits", asynq.Timeout(time.Hour), asynq.MaxRetry(5))
	s.onlyWait(1)
	// Its handler has been called and is over, as asynq sees it, before it is denied.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := &job{task: asynq.NewTask("work", nil), id: "waits", queue: "default", scope: "p/a"}
	if err := s.throttle.denied(ctx, j, throttle.Decision{Position: throttle.QueuePosition{Waits: true}}); err == nil {
		t.Error("it is not told to have ended")
	}
	s.onlyWait(0)
}

// asynq's recoverer brings back, or archives, a task in line whose process died when it had
// been denied and not yet put back.
func TestRecoveredInLine(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	if d, err := s.throttle.cfg.Limiter.Allow(t.Context(), "p/a"); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for id, retries := range map[string]int{"comes back": 3, "is archived": 0} {
		s.addForeign(id, asynq.MaxRetry(retries))
		_, err := s.throttle.cfg.Limiter.Waitlist().Join(t.Context(), []throttle.Waiter{{Scope: "p/a", ID: queue.Ticket("default", id)}}, 0, 0)
		must(t, err)
		key := "asynq:{default}:"
		must(t, s.rdb.LRem(t.Context(), key+"pending", 1, id).Err())
		must(t, s.rdb.HSet(t.Context(), key+"t:"+id, "state", "active").Err())
		must(t, s.rdb.LPush(t.Context(), key+"active", id).Err())
		must(t, s.rdb.ZAdd(t.Context(), key+"lease", redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: id}).Err())
	}
	s.serve(asynq.Config{Concurrency: 2, RetryDelayFunc: never}, nil)
	s.archived("is archived")
	s.onlyWait(1)
	s.until("it to be brought back", func() bool {
		info := s.info("comes back")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 1
	})
	if got, err := s.throttle.cfg.Limiter.Waitlist().InspectWaiter(t.Context(), throttle.Waiter{Scope: "p/a", ID: queue.Ticket("default", "comes back")}); err != nil || !got.Waits {
		t.Errorf("%+v, %v: it has lost its place", got, err)
	}
}

// The last error that asynq keeps of a task says that its scope is paused.
func TestLimitedByAPause(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		policy.PausedRule: "headway: waiting: p/a is paused", "tenant": "headway: waiting: p/a, rule tenant", "": "headway: waiting: p/a",
	} {
		if got := newLimited(&job{scope: "p/a"}, rule, time.Now()).Error(); got != want || !asynqx.IsWaiting(got) {
			t.Errorf("%q: got %q, want %q", rule, got, want)
		}
	}
}

// "Under a pause without an end" a backlog doesn't come each minute.
func TestSafetyNetOfAPause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		paused      bool
		expected    time.Duration
		least, most time.Duration
	}{
		"a pause":          {true, throttle.Never, pausedNet, pausedNet * 3 / 2},
		"one that ends":    {true, time.Hour, time.Hour, time.Hour + 31*time.Minute},
		"a suspended rule": {false, throttle.Never, time.Minute, time.Minute},
	} {
		d := throttle.Decision{Rules: []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Paused: tt.paused}}}, Position: throttle.QueuePosition{Waits: true, Expected: tt.expected}}
		if got := (&Middleware{dispatcher: new(dispatch.Dispatcher)}).safetyNet(d); got < tt.least || got > tt.most {
			t.Errorf("%s: %s, want %s to %s", name, got, tt.least, tt.most)
		}
	}
}
