package worker

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

const twoModels = `
limits:
  llm:
    rules: [{name: period, algorithm: calendar, limit: 1000, resets: "*/20 * * * *", unit: usd}]
    pool: {members: [dear, cheap], choose: drain, overflow_after: 1h}
    scopes:
      "@dear":
        rules:
          - {name: period, algorithm: calendar, limit: 800, resets: "*/20 * * * *", unit: usd}
          - {name: calls, algorithm: sliding-window, limit: 5, per: 1m}
      "@cheap": {rules: [{name: calls, algorithm: sliding-window, limit: 100, per: 1m}]}
`

// docs/llm.md: tasks that wait are moved from the dear model to the cheap one when its part of the budget is used up, which what is settled
// puts off. Their handlers learn the model, and with the next period they have the dear one again.
func TestBacklogOfTwoModels(t *testing.T) {
	t.Parallel()
	inFakeTimeUnder(t, poolPolicy(t, twoModels), MiddlewareConfig{}, func(s *system) {
		var made calls
		backlog := func(n int) (tasks []queue.Task) {
			for _, task := range slices.Concat(jobs(n/2, "llm/a"), jobs(n/2, "llm/b")) {
				task.ID += time.Now().String()
				task.Costs = policy.Costs{policy.Requests: 1, "usd": 30}
				tasks = append(tasks, task)
			}
			return tasks
		}
		s.planned(backlog(100)...)
		began := time.Now()
		s.serve(asynq.Config{Concurrency: 10}, func(ctx context.Context, task *asynq.Task) error {
			_ = made.handle(ctx, task)
			spent := map[string]int64{"dear": 20, "cheap": 2}[Member(ctx)]
			_, err := Settle(ctx, policy.Costs{"usd": spent})
			return err
		})
		s.haveEnded(100)
		if n := made.of("dear"); n < 38 || n > 40 || made.of("cheap") != 100-n {
			t.Errorf("%d calls of the dear model, whose budget has 40, and %d of the other", n, made.of("cheap"))
		}
		if most := made.most("cheap"); most < 40 {
			t.Errorf("the cheap model has %d calls in a second: tasks waited for it", most)
		}
		last, first := slices.MaxFunc(made.at["dear"], time.Time.Compare), slices.MinFunc(made.at["cheap"], time.Time.Compare)
		if first.Before(last.Add(-time.Minute)) || last.Sub(began) < 6*time.Minute || time.Since(began) > 10*time.Minute {
			t.Errorf("the dear model was called for %s, the cheap one from %s on, until %s", last.Sub(began), first.Sub(began), time.Since(began))
		}
		if n := s.seen.get(func(o *seen) int { return o.pickups }); n > 101 {
			t.Errorf("%d pick-ups of 100 tasks", n)
		}
		<-time.After(time.Until(time.Date(2000, 1, 1, 0, 20, 1, 0, time.UTC)))
		before := made.of("dear")
		s.planned(backlog(10)...)
		s.haveEnded(10)
		if n := made.of("dear") - before; n != 10 {
			t.Errorf("%d of 10 calls in the next period have the dear model", n)
		}
	})
}
