package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// low are n tasks of one scope in a queue of their own.
func low(n int) (tasks []queue.Task) {
	for i := range n {
		tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", Queue: "low", ID: fmt.Sprintf("low %05d", i)})
	}
	return tasks
}

// Servers that are not ours count too, as asynq tells of them; where that can't be asked all queues
// are taken for served.
func TestServedByOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t, steady(100), MiddlewareConfig{})
	plain := asynq.NewServerFromRedisClient(s.rdb, asynq.Config{Queues: map[string]int{"other": 1}, LogLevel: asynq.FatalLevel})
	must(t, plain.Start(s.counting(nil)))
	t.Cleanup(plain.Shutdown)
	s.until("asynq tells of the server", func() bool {
		list, err := s.inspector.Servers()
		return err == nil && len(list) == 1 && list[0].Status == "active"
	})
	q := s.throttle.queues
	q.Serve(map[string]int{"own": 1, "never": 0})
	q.Ask(t.Context(), time.Second, "own", "other", "never", "nobody's")
	for name, want := range map[string]bool{"own": false, "other": false, "never": true, "nobody's": true} {
		if q.Stands(name) != want {
			t.Errorf("%s stands still: %t, want %t", name, q.Stands(name), want)
		}
	}
}

// "Then it has the place that it had": tasks of a higher priority that a lowered limit can't admit
// let the others pass, and go before them again as soon as the limit is what it was.
func TestLoweredAndRestored(t *testing.T) {
	t.Parallel()
	bucket := func(limit int64) []policy.Rule {
		return []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second, Burst: limit}}
	}
	inFakeTime(t, bucket(20), func(s *system) {
		const dear, cheap = 30, 100
		limits := s.throttle.cfg.Limiter
		if d, err := limits.Decide(s.t.Context(), throttle.Request{Scope: "p/a", Cost: 20}); err != nil || !d.Allowed {
			s.t.Fatalf("%+v, %v", d, err)
		}
		tasks := jobs(cheap, "p/a")
		for i := range dear {
			tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprintf("dear %02d", i), Cost: 10, Priority: 5})
		}
		s.planned(tasks...)
		var ran order
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		has := func(n int, prefix string) {
			s.until(fmt.Sprintf("%d of %s have run", n, prefix), func() bool { return len(ran.from(prefix)) >= n })
		}
		has(3, "dear")
		limits.SetPolicy(policyOfP(s.t, bucket(5)))
		has(10, "p/a")
		before := len(ran.from(""))
		limits.SetPolicy(policyOfP(s.t, bucket(20)))
		has(dear, "dear")
		passed := 0
		for _, id := range ran.from("")[before:] {
			if id == "dear 29" {
				break
			}
			if !strings.HasPrefix(id, "dear") {
				passed++
			}
		}
		if passed > 5 {
			s.t.Errorf("%d of priority 0 went before those of priority 5, which fit again: %v", passed, ran.from(""))
		}
		if got := ran.from("dear"); !slices.IsSorted(got) {
			s.t.Errorf("they ran as %v", got)
		}
		s.finish(dear + cheap)
	})
}
