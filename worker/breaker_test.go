package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/upstream"
)

// docs/breaker.md, "What it saves": while an API is down few calls are made, and no task is archived; a minute after it is back, its
// quota is used; and another tenant is untouched. A handler says how its calls end by answers, by a hint, or by its error.
func TestBreakerOfAnAPIThatIsDown(t *testing.T) {
	t.Parallel()
	errDown := errors.New("connection refused")
	for name, fails := range map[string]func(context.Context) error{
		"answers": func(ctx context.Context) error {
			_ = ReportStatus(ctx, http.StatusBadGateway, nil)
			return errors.New("bad gateway")
		},
		"failures": func(ctx context.Context) error {
			_ = ReportHint(ctx, upstream.Hint{Failed: true})
			return errors.New("no answer")
		},
		"errors": func(context.Context) error { return fmt.Errorf("call: %w", errDown) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pol, err := limitsyaml.Parse("f", []byte(`limits: {p: {scopes: {"*": {breaker: {wait: 5s, of: 20}, rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}}}}`))
			must(t, err)
			classify := func(err error) bool { return errors.Is(err, errDown) }
			inFakeTimeUnder(t, pol, MiddlewareConfig{CallFailed: classify}, func(s *system) {
				const down, tasks = 5 * time.Minute, 600
				var isDown atomic.Bool
				var calls, others, back atomic.Int64
				var backAt atomic.Pointer[time.Time]
				s.serve(asynq.Config{Concurrency: 20}, func(ctx context.Context, _ *asynq.Task) error {
					if TaskScope(ctx) == "p/b" {
						others.Add(1)
						return nil
					}
					if isDown.Load() {
						calls.Add(1)
						return fails(ctx)
					}
					if at := backAt.Load(); at != nil && time.Since(*at) > 50*time.Second && time.Since(*at) <= 60*time.Second {
						back.Add(1)
					}
					return nil
				})
				isDown.Store(true)
				for i := range tasks {
					s.add(queue.Task{ID: fmt.Sprint("a", i), Scope: "p/a"})
				}
				for i := range 100 {
					s.add(queue.Task{ID: fmt.Sprint("b", i), Scope: "p/b"})
				}
				pass := func(d time.Duration) { <-time.After(d) }
				pass(15 * time.Second)
				if n := others.Load(); n != 100 {
					t.Errorf("%d tasks of another tenant have run", n)
				}
				pass(down - 15*time.Second)
				if n, could := calls.Load(), int64(down/time.Second)*10; n > could/100+20 {
					t.Errorf("%d calls while it is down, of %d", n, could)
				}
				now := time.Now()
				backAt.Store(&now)
				isDown.Store(false)
				pass(time.Minute)
				if n := back.Load(); n < 95 {
					t.Errorf("%d calls from the 50th to the 60th second after it is back, of 100", n)
				}
				pass(time.Minute)
				if in, err := s.inspector.GetQueueInfo("default"); err != nil || in.Archived > 0 {
					t.Errorf("%+v, %v", in, err)
				}
			})
		})
	}
}

// docs/breaker.md, "When it opens": with `retry: false` a task whose call fails keeps its attempt, also before the breaker opens, and as
// often as MaxDeferrals says.
func TestBreakerKeepsAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaker      string
		deferrals    int
		fails, after int64 // how many calls fail; after how many it is archived, 0 for never
	}{
		"uses them up":        {"{of: 1, wait: 5s}", 0, 9, 1},
		"while it is open":    {"{of: 1, wait: 5s, retry: false}", 0, 3, 0},
		"before it opens":     {"{of: 1000, wait: 5s, retry: false}", 0, 3, 0},
		"not more than so":    {"{of: 1000, wait: 5s, retry: false}", 2, 9, 3},
		"not without a probe": {"{of: 1, wait: 5s, retry: false}", 2, 9, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pol, err := limitsyaml.Parse("f", []byte(`limits: {p: {breaker: `+c.breaker+`, rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}}`))
			must(t, err)
			inFakeTimeUnder(t, pol, MiddlewareConfig{MaxDeferrals: c.deferrals}, func(s *system) {
				var runs atomic.Int64
				s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
					if retried, _ := asynq.GetRetryCount(ctx); retried != 0 {
						t.Errorf("it is attempt %d", retried)
					}
					if runs.Add(1) <= c.fails {
						_ = ReportHint(ctx, upstream.Hint{Failed: true})
						return errors.New("no answer")
					}
					return nil
				})
				s.add(queue.Task{ID: "one", Scope: "p/a", MaxRetry: queue.Retries(0)})
				if c.after == 0 {
					s.until("it has succeeded", func() bool { return runs.Load() == c.fails+1 })
					return
				}
				s.until("it is archived", func() bool {
					info, err := s.inspector.GetTaskInfo("default", "one")
					return err == nil && info.State == asynq.TaskStateArchived
				})
				if n := runs.Load(); n != c.after {
					t.Errorf("it has run %d times, want %d", n, c.after)
				}
			})
		})
	}
}

// The errors of a run that say by themselves whether a call failed.
func TestCallFailer(t *testing.T) {
	t.Parallel()
	m := &Middleware{cfg: MiddlewareConfig{CallFailed: func(error) bool { return true }}}
	for _, failed := range []bool{false, true} {
		if got := m.callFailed(fmt.Errorf("run: %w", saysFailed{failed})); got != failed {
			t.Errorf("%t, want %t", got, failed)
		}
	}
	if !m.callFailed(throttle.ErrUnavailable) {
		t.Error("the function is not asked")
	}
}

type saysFailed struct{ is bool }

func (saysFailed) Error() string      { return "failed" }
func (s saysFailed) CallFailed() bool { return s.is }
