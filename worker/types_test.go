package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// muxFor is a mux that knows one type.
func (s *system) muxFor(kind string) *asynq.ServeMux {
	mux := asynq.NewServeMux()
	mux.Handle(kind, s.counting(nil))
	return mux
}

func (s *system) startMux(cfg asynq.Config, mux *asynq.ServeMux) *Server {
	s.t.Helper()
	cfg.Concurrency, cfg.LogLevel = 2, asynq.FatalLevel
	cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval = 20*time.Millisecond, 100*time.Millisecond
	server := s.throttle.NewServer(cfg)
	must(s.t, server.Start(mux))
	s.t.Cleanup(server.Shutdown)
	return server
}

// "A type that has no handler is a failure as any other": it is retried within the task's
// own budget, then archived, and charges nothing.
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
	told := map[string]int{}
	s.startMux(asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
			id, _ := asynq.GetTaskID(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			if told[id]++; !errors.Is(err, asynq.ErrHandlerNotFound) {
				t.Errorf("%s failed with %v", id, err)
			}
		}),
	}, s.muxFor("work"))
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

// "Old workers lose no tasks of new types while a release is rolled out."
func TestUnknownTypeRunsElsewhere(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(3), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", Type: "new"})
	old := s.startMux(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, s.muxFor("work"))
	s.until("it has failed once", func() bool { i := s.info("t"); return i != nil && i.Retried > 0 })
	s.startMux(asynq.Config{}, s.muxFor("new"))
	old.Stop()
	s.until("it has run", func() bool { return s.ran("t") == 1 })
}

// "takes no turn": one that stands in line, and whose turn comes to a worker that has no
// handler for it, gives its units to the next.
func TestUnknownTypeTakesNoTurn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1, Lease: time.Hour}}, MiddlewareConfig{})
	let := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Handle("work", s.counting(func(context.Context, *asynq.Task) error { <-let; return nil }))
	s.startMux(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}, mux)
	s.add(queue.Task{ID: "runs"})
	s.until("it runs", func() bool { return s.ran("runs") == 1 })
	planned := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.throttle.cfg.Limiter})
	for _, task := range []queue.Task{{ID: "new", Type: "new"}, {ID: "next", Type: "work"}} {
		task.Scope = "p/a"
		if got, err := planned.Enqueue(t.Context(), task); err != nil || !got.Waits {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	close(let)
	s.until("the next runs", func() bool { return s.ran("next") == 1 })
	s.until("the other has failed", func() bool { i := s.info("new"); return i != nil && i.Retried == 1 })
	s.until("nobody stands in line or is out", func() bool {
		got, err := s.throttle.cfg.Limiter.Inspect(t.Context(), "p/a")
		return err == nil && got.Waiting == 0 && got.Dispatched == 0
	})
}

// "A completed task keeps no text of having waited", and the text of a real failure stays.
func TestCompletedTaskHasNotFailed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1, OnMaxWait: WaitOn()})
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
