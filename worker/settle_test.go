package worker

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// tokensPerHour is a limit that comes back no sooner than a test ends.
func tokensPerHour(limit int64) []policy.Rule {
	return []policy.Rule{
		{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Hour},
		{Name: "tokens", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour, Unit: "tokens"},
	}
}

// tokensLeft returns what is left of calls and tokens.
func (s *system) tokensLeft() (calls, tokens int64) {
	s.t.Helper()
	d, err := s.throttle.cfg.Limiter.Peek(s.t.Context(), throttle.Request{Scope: "p/a"})
	must(s.t, err)
	return d.Rules[0].Remaining, d.Rules[1].Remaining
}

// Each estimate takes all of the limit; since each run settles what it spent, the next one
// starts when it has ended. Tasks that asynq itself enqueued cost by unit too.
func TestSettle(t *testing.T) {
	t.Parallel()
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{
		Spends: func(*asynq.Task) (string, int64) { return "p/a", 0 },
		Costs:  func(*asynq.Task) policy.Costs { return policy.Costs{"tokens": 700} },
	})
	for _, id := range []string{"a", "b", "c"} {
		s.add(queue.Task{ID: id, Costs: policy.Costs{"requests": 1, "tokens": 700}})
	}
	_, err := s.client.EnqueueContext(t.Context(), asynq.NewTask("told", nil), asynq.TaskID("told"))
	must(t, err)
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		for _, spent := range []int64{50, 90, 100} { // as the answer streams
			got, err := Settle(ctx, policy.Costs{"tokens": spent})
			if err != nil || len(got.Rules) != 1 || got.Rules[0].Spent != spent {
				t.Errorf("%v %v", got, err)
			}
		}
		return nil
	})
	for range 4 {
		<-s.ended
	}
	if calls, tokens := s.tokensLeft(); calls != 96 || tokens != 600 {
		t.Errorf("%d calls and %d tokens are left", calls, tokens)
	}
}

// "Each attempt of a task is charged anew, and settled by itself. What a handler never settles
// stays charged as it was estimated."
func TestSettleEachAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, tokensPerHour(10_000), MiddlewareConfig{})
	s.add(queue.Task{ID: "a", MaxRetry: queue.Retries(1), Costs: policy.Costs{"tokens": 1000}})
	runs := 0
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, func(ctx context.Context, _ *asynq.Task) error {
		if runs++; runs == 1 {
			_, err := Settle(ctx, policy.Costs{"tokens": 300})
			return errors.Join(err, errors.New("cut off"))
		}
		return nil
	})
	<-s.ended
	<-s.ended
	if calls, tokens := s.tokensLeft(); calls != 98 || tokens != 8700 {
		t.Errorf("%d calls and %d tokens are left", calls, tokens)
	}
}

// What is kept is settled from elsewhere when the handler has ended.
func TestKeep(t *testing.T) {
	t.Parallel()
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{})
	s.add(queue.Task{ID: "batch-7", Costs: policy.Costs{"tokens": 800}})
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error { return SaveGrant(ctx, time.Hour) })
	<-s.ended
	l := s.throttle.cfg.Limiter
	g, err := l.LoadGrant(t.Context(), "p/a", "batch-7")
	must(t, err)
	if got, err := l.Settle(t.Context(), g, policy.Costs{"tokens": 120}); err != nil || got.Rules[0].Back != 680 {
		t.Errorf("%v %v", got, err)
	}
}

// "Outside of a limited task's run it does nothing."
func TestSettleNothing(t *testing.T) {
	t.Parallel()
	if got, err := Settle(t.Context(), policy.Costs{"tokens": 1}); err != nil || len(got.Rules) > 0 {
		t.Errorf("%v %v", got, err)
	}
	if err := SaveGrant(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
}

// "A day of 10 calls still has all 10 after six refusals": of an http task, where the policy does not say that they count. The
// run of another task stays charged.
func TestRefusalsKeepTheDay(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int64{queue.TypeHTTP: 9, "work": 3} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			day := policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: 10, Per: 24 * time.Hour}
			s := newSystem(t, []policy.Rule{day}, MiddlewareConfig{})
			var runs, done atomic.Int32
			s.serve(asynq.Config{Concurrency: 1}, func(context.Context, *asynq.Task) error {
				if runs.Add(1) <= 6 {
					return &RefusedError{Status: http.StatusTooManyRequests, RetryAfter: 20 * time.Millisecond, known: true}
				}
				done.Add(1)
				return nil
			})
			task := queue.Task{Type: kind}
			if kind == queue.TypeHTTP {
				task.HTTP = &queue.HTTP{URL: "http://127.0.0.1:1"}
			}
			s.add(task)
			s.until("it has run", func() bool { return done.Load() == 1 })
			d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
			if err != nil || d.Rules[0].Remaining != want {
				t.Errorf("%d are left, want %d: %v", d.Rules[0].Remaining, want, err)
			}
		})
	}
}
