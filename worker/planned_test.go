package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "A task that was charged keeps its charge": an idle limit that has units for all planned tasks but one runs all but one
// at once, as forecast. By the clock alone the units of one that lost them would come back in an hour.
func TestPlannedTasksUseTheWholeBurst(t *testing.T) {
	t.Parallel()
	const units = 20
	for name, rule := range map[string]policy.Rule{
		"token bucket":   {Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: units},
		"sliding window": {Name: "r", Algorithm: policy.SlidingWindow, Limit: units, Per: time.Hour},
	} {
		for way, batch := range map[string]bool{"in a batch": true, "one by one": false} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				s := newSystem(t, []policy.Rule{rule}, MiddlewareConfig{})
				elsewhere, err := throttle.New(s.server.Client(t), s.throttle.cfg.Limiter.Policy(), throttle.Config{})
				must(t, err)
				client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: elsewhere})
				s.serve(asynq.Config{Concurrency: 10}, nil)
				tasks := jobs(units+1, "p/a")
				if batch {
					_, err = client.EnqueueBatch(t.Context(), queue.Number(slices.Values(tasks)), nil)
				}
				for i := 0; i < len(tasks) && !batch && err == nil; i++ {
					_, err = client.Enqueue(t.Context(), tasks[i])
				}
				must(t, err)
				for range units {
					select {
					case <-s.ended:
					case <-time.After(bound):
						state, _ := elsewhere.Peek(t.Context(), throttle.Request{Scope: "p/a"})
						t.Fatalf("units are left unused: %+v", state.Rules)
					}
				}
				if state, err := elsewhere.Peek(t.Context(), throttle.Request{Scope: "p/a"}); err != nil || state.Rules[0].Remaining != 0 || len(s.ended) > 0 {
					t.Errorf("%+v, %v: after %d runs; %d more", state.Rules, err, units, len(s.ended))
				}
			})
		}
	}
}
