package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// A task that can't start before its deadline fails with that reason; waiting for a turn never counts against its time-out.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := forAnHour(t, MiddlewareConfig{})
	soon := time.Now().Add(5 * time.Minute)
	s.add(queue.Task{ID: "own", Deadline: soon})
	s.addForeign("foreign", asynq.Deadline(soon), asynq.MaxRetry(5))
	s.addForeign("timeout", asynq.Timeout(5*time.Minute), asynq.MaxRetry(5))
	for _, id := range []string{"own", "foreign"} {
		if text := s.archived(id); !strings.Contains(text, "deadline") || !strings.Contains(text, "rule r of p") {
			t.Errorf("%s failed with %q", id, text)
		}
	}
	s.until("a time-out is no deadline", func() bool {
		info := s.info("timeout")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 0
	})
}

// "timeout bounds the run from its start"
func TestTimeoutOfOwn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", Timeout: 20 * time.Millisecond, MaxRetry: queue.Retries(0)})
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if text := s.archived("t"); !strings.Contains(text, context.DeadlineExceeded.Error()) {
		t.Errorf("it failed with %q", text)
	}
}

// "waiting stops the lock's clock"
func TestUniqueWhileWaiting(t *testing.T) {
	t.Parallel()
	s := forAnHour(t, MiddlewareConfig{})
	unique := func(id string, retries int) error {
		task := asynq.NewTaskWithHeaders("work", []byte(id[:1]), map[string]string{queue.HeaderScope: "p/a"})
		_, err := s.client.Enqueue(task, asynq.TaskID(id), asynq.Unique(2*time.Second), asynq.MaxRetry(retries))
		return err
	}
	for id, retries := range map[string]int{"a1": 3, "b1": 0} {
		must(t, unique(id, retries))
		key := asynqx.NewLock("default", id, "work", []byte(id[:1])).Key
		s.until("the lock of "+id+" is put off", func() bool { return s.rdb.PTTL(t.Context(), key).Val() > time.Minute })
		if err := unique(id[:1]+"2", retries); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("a duplicate of %s got in: %v", id, err)
		}
	}
}

// "Leave gives the waiting tasks of a queue back their plain asynq form"
func TestLeave(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{Hold: -1})
	s.add(queue.Task{ID: "spends it"})
	server := s.serve(asynq.Config{Concurrency: 1}, nil)
	<-s.ended
	s.add(queue.Task{ID: "waits", MaxRetry: queue.Retries(7), Timeout: 90 * time.Second, Remember: time.Hour, Payload: []byte(`{"n":1}`)})
	s.addForeign("last", asynq.MaxRetry(0))
	s.is("waits", asynq.TaskStateRetry)
	s.is("last", asynq.TaskStateRetry)
	server.Shutdown()
	s.add(queue.Task{ID: "later", Delay: time.Hour, MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "now"})
	_, err := s.client.Enqueue(asynq.NewTask("plain", nil), asynq.TaskID("plain"))
	must(t, err)
	n, err := Detach(t.Context(), s.rdb, "default")
	if err != nil || n != 3 {
		t.Fatalf("changed %d tasks: %v", n, err)
	}
	want := map[string]int{"waits": 7, "last": 0, "later": 0, "now": 25, "plain": 25}
	for id, retries := range want {
		info := s.info(id)
		if info == nil || info.MaxRetry != retries {
			t.Errorf("%s is %+v, want max retry %d", id, info, retries)
		}
	}
	if w := s.info("waits"); w.Timeout != 90*time.Second || w.Retention != time.Hour || string(w.Payload) != `{"n":1}` || w.State != asynq.TaskStateScheduled {
		t.Errorf("waits is %+v", w)
	}
	if n, err := Detach(t.Context(), s.rdb, "default"); err != nil || n != 0 {
		t.Errorf("a second Leave changed %d: %v", n, err)
	}
	if keys := s.rdb.Keys(t.Context(), "hw:leaving*").Val(); len(keys) > 0 {
		t.Errorf("left behind: %v", keys)
	}
}

// "calling Leave again finishes what a crash cut off"
func TestLeaveAfterCrash(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(3)})
	s.rdb.HSet(t.Context(), "hw:leaving:{default}", "t", `{"id":"t","type":"work","max_retry":3}`)
	must(t, s.inspector.DeleteTask("default", "t"))
	_, err := Detach(t.Context(), s.rdb, "default")
	must(t, err)
	if info := s.info("t"); info == nil || info.MaxRetry != 3 {
		t.Errorf("got %+v", info)
	}
}

// "Config returns cfg with what limited tasks need around what it holds already"
func TestConfigKeepsTheUsers(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	mine := errors.New("mine")
	var told []error
	back := 0
	cfg := s.throttle.config(asynq.Config{
		IsFailure:      func(err error) bool { return !errors.Is(err, mine) },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 42 * time.Second },
		ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told = append(told, err) }),
		Queues:         map[string]int{"a": 3}, TaskCheckInterval: time.Minute,
	}, func(string, string, time.Time) { back++ })
	limited := errors.Join(errors.New("middleware"), &Limited{At: time.Now().Add(2500 * time.Millisecond)})
	if cfg.IsFailure(mine) || !cfg.IsFailure(errors.New("other")) || cfg.IsFailure(limited) {
		t.Error("IsFailure is not around the user's own")
	}
	for err, want := range map[error][2]time.Duration{
		mine: {42 * time.Second, 42 * time.Second}, limited: {2500 * time.Millisecond, 3600 * time.Millisecond},
		errors.Join(&asking{time.Hour}, mine): {time.Hour, time.Hour + 2*time.Second}, &asking{}: {42 * time.Second, 42 * time.Second},
	} {
		if d := cfg.RetryDelayFunc(0, err, nil); d < want[0] || d > want[1] {
			t.Errorf("after %q it comes back in %s, want %s to %s", err, d, want[0], want[1])
		}
	}
	cfg.ErrorHandler.HandleError(t.Context(), nil, limited)
	cfg.ErrorHandler.HandleError(t.Context(), nil, mine)
	if !slices.Equal(told, []error{mine}) || back != 1 {
		t.Errorf("the user was told of %v, and %d were put back", told, back)
	}
	if cfg.TaskCheckInterval != time.Minute || cfg.DelayedTaskCheckInterval != delayedCheckInterval || cfg.Queues["a"] != 3 {
		t.Errorf("got %+v", cfg)
	}
}

// asking is an error that says when to try again.
type asking struct{ wait time.Duration }

func (a *asking) Error() string                  { return "asking" }
func (a *asking) RetryIn() (time.Duration, bool) { return a.wait, a.wait > 0 }

// "never before it": asynq keeps whole seconds and rounds them down.
func TestDelayIsNeverEarly(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 700_000_000)
	for at, want := range map[time.Duration]int64{0: 1, 200 * time.Millisecond: 1, 300 * time.Millisecond: 1, 301 * time.Millisecond: 2, -time.Hour: 0} {
		stored := now.Add(delay(now.Add(at), now)).Unix()
		if got := stored - now.Unix(); got != want {
			t.Errorf("a wait of %s is stored as second %d, want %d", at, got, want)
		}
	}
}

// "A type that has no handler is a failure as any other": it is retried within the task's own budget, then archived, and charges nothing.
func TestUnknownTypeIsRetried(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(3), MiddlewareConfig{})
	s.add(queue.Task{ID: "own", Type: "new", MaxRetry: queue.Retries(2)})
	s.add(queue.Task{ID: "none", Type: "new", MaxRetry: queue.Retries(0)})
	task := asynq.NewTaskWithHeaders("new", nil, map[string]string{queue.HeaderScope: "p/a"})
	_, err := s.client.Enqueue(task, asynq.TaskID("foreign"), asynq.MaxRetry(1))
	must(t, err)
	_, err = s.client.Enqueue(asynq.NewTask("new", nil), asynq.TaskID("unlimited"), asynq.MaxRetry(1))
	must(t, err)
	told, mux := map[string]int{}, asynq.NewServeMux()
	mux.Handle("work", s.counting(nil))
	s.start(asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
			id, _ := asynq.GetTaskID(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			if told[id]++; !errors.Is(err, asynq.ErrHandlerNotFound) {
				t.Errorf("%s failed with %v", id, err)
			}
		}),
	}, mux)
	for id, retries := range map[string]int{"own": 2, "none": 0, "foreign": 1, "unlimited": 1} {
		s.archived(id)
		s.mu.Lock()
		n := told[id]
		s.mu.Unlock()
		info := s.info(id)
		if info.Retried != retries || n != retries+1 || !strings.Contains(info.LastErr, `type "new"`) {
			t.Errorf("%s: %d retries, %d failures told, %q; want %d retries", id, info.Retried, n, info.LastErr, retries)
		}
	}
	d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
	if err != nil || d.Rules[0].Remaining != 3 {
		t.Errorf("%+v, %v: something was spent", d, err)
	}
}

// "takes no turn": one that stands in line, and whose turn comes to a worker that has no handler for it, gives its units to the next.
func TestUnknownTypeTakesNoTurn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Lease: time.Hour}}, MiddlewareConfig{})
	let := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Handle("work", s.counting(func(context.Context, *asynq.Task) error { <-let; return nil }))
	s.start(asynq.Config{RetryDelayFunc: never}, mux)
	s.add(queue.Task{ID: "runs"})
	s.until("it runs", func() bool { return s.ran("runs") == 1 })
	s.planned(queue.Task{ID: "new", Type: "new", Scope: "p/a"}, queue.Task{ID: "next", Type: "work", Scope: "p/a"})
	close(let)
	s.until("the next runs", func() bool { return s.ran("next") == 1 })
	s.until("the other has failed", func() bool { i := s.info("new"); return i != nil && i.Retried == 1 })
	s.onlyWait(0)
}

// "A completed task keeps no text of having waited", and the text of a real failure stays.
func TestCompletedTaskHasNotFailed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1, OnMaxWait: waitOn})
	for _, id := range []string{"a", "b", "c"} {
		s.add(queue.Task{ID: id, Remember: time.Hour})
	}
	s.addForeign("foreign", asynq.Retention(time.Hour), asynq.MaxRetry(3))
	s.add(queue.Task{ID: "unlucky", Remember: time.Hour, MaxWait: time.Hour})
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }},
		func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if n, _ := asynq.GetRetryCount(ctx); n == 0 && id == "unlucky" {
				return errors.New("bad luck")
			}
			return nil
		})
	for id, want := range map[string]string{"a": "", "b": "", "c": "", "foreign": "", "unlucky": "bad luck"} {
		s.is(id, asynq.TaskStateCompleted)
		info := s.info(id)
		if info.LastErr != want || info.LastFailedAt.IsZero() != (want == "") || info.Retention != time.Hour || info.CompletedAt.IsZero() {
			t.Errorf("%s: last error %q at %s, completed at %s; want %q", id, info.LastErr, info.LastFailedAt, info.CompletedAt, want)
		}
	}
	if n := s.seen.get(func(o *seen) int { return o.rescheduled }); n < 3 {
		t.Errorf("only %d reschedules: the test did not limit", n)
	}
}

// WaitingScope reads what a waiting task's last error says of its scope, whatever the scope's names are.
func TestWaitingScope(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 128) + strings.Repeat("/"+strings.Repeat("b", 128), 7)
	for _, scope := range []string{long, "p", "p/a", "p, rule x/b", "scope/a", "p is paused", `scope "x`, "p/é\"<", "x/:"} {
		parsed, err := policy.ParseScope(scope)
		must(t, err)
		for why, limited := range map[string]*Limited{
			"rule":      newLimited(&job{scope: scope}, "r", time.Now()),
			"pause":     newLimited(&job{scope: scope}, policy.PausedRule, time.Now()),
			"unmatched": newLimited(&job{scope: scope, why: strings.TrimPrefix((&policy.UnmatchedError{Scope: parsed}).Error(), "throttle: ")}, "", time.Now()),
			"cost":      newLimited(&job{scope: scope, why: strings.TrimPrefix((&policy.CostError{Scope: parsed, Rule: "r", Cost: 9}).Error(), "throttle: ")}, "", time.Now()),
		} {
			if got, is := WaitingScope(limited.Error()); !is || got != scope {
				t.Errorf("%s: of %q it reads %q, %t", why, limited.Error(), got, is)
			}
		}
	}
	for _, text := range []string{"", "boom", errors.ErrUnsupported.Error(), "headway: waiting", "headway: waiting: a//b"} {
		if got, is := WaitingScope(text); is {
			t.Errorf("of %q it reads %q", text, got)
		}
	}
}
