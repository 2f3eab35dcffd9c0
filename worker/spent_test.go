package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
)

// spendings is a Usage that remembers.
type spendings struct {
	mu  sync.Mutex
	all []string
}

func (s *spendings) Spent(scope string, by usage.By, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, fmt.Sprintf("%s %q %s %s %d", scope, by.App, by.Queue, by.Type, units))
}

// apart is one that is told units as well.
type apart struct{ spendings }

func (a *apart) SpentCosts(scope string, by usage.By, costs policy.Costs) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, fmt.Sprintf("%s %s %s %s", scope, by.Queue, by.Type, costs))
}

// enqueuers is a Usage that remembers who enqueued.
type enqueuers struct{ spendings }

func (e *enqueuers) Spent(scope string, by usage.By, units int64) {
	by.App = by.EnqueuedBy
	e.spendings.Spent(scope, by, units)
}

// What a task spends is told with the application that enqueued it, where the task says so.
func TestEnqueuedBy(t *testing.T) {
	t.Parallel()
	told := &enqueuers{}
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{Usage: told})
	s.add(queue.Task{ID: "none"})
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{App: "web/shop é"})
	s.add(queue.Task{ID: "ours"})
	task := asynq.NewTaskWithHeaders("work", []byte(`{"id":"foreign"}`), map[string]string{queue.HeaderScope: "p/a", queue.HeaderApp: "crm"})
	if _, err := s.client.EnqueueContext(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	s.serve(asynq.Config{}, nil)
	for range 3 {
		<-s.ended
	}
	told.want(t, `p/a "" default work 1`, `p/a "web/shop é" default work 1`, `p/a "crm" default work 1`)
}

// corrected is one that is told what runs come to.
type corrected struct{ apart }

func (c *corrected) Settled(scope string, by usage.By, more policy.Costs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf("settled %s %s %s %s", scope, by.Queue, by.Type, more))
}

// "What a handler settles corrects them when it does": by what it is more or less than what
// was told last, and what could not be settled is not told.
func TestSettledIsTold(t *testing.T) {
	t.Parallel()
	told := &corrected{}
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{Usage: told})
	s.add(queue.Task{ID: "plain", Type: "plain", Cost: 4})
	s.add(queue.Task{ID: "a", Costs: policy.Costs{"tokens": 500}})
	s.serve(asynq.Config{}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "plain" {
			_, err := Settle(ctx, policy.Costs{"requests": 2, "rows": 7})
			return err
		}
		for _, costs := range []policy.Costs{{"tokens": 90}, {"requests": 1, "tokens": 90}, {"tokens": 100}} {
			if _, err := Settle(ctx, costs); err != nil {
				t.Error(err)
			}
		}
		if _, err := Settle(ctx, policy.Costs{"tokens": -1}); err == nil {
			t.Error("less than nothing was settled")
		}
		return nil
	})
	for range 2 {
		<-s.ended
	}
	told.want(t, `p/a "" default plain 4`, "settled p/a default plain requests=-2,rows=7",
		"p/a default work tokens=500", "settled p/a default work tokens=-410", "settled p/a default work tokens=10")
}

// want holds what was told against what shall have been, in any order.
func (s *spendings) want(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.all)
	slices.Sort(want)
	if !slices.Equal(s.all, want) {
		t.Errorf("got %q, want %q", s.all, want)
	}
}

// "A task counts once, when it starts, with the units that it costs; one that waits
// spends nothing."
func TestSpent(t *testing.T) {
	t.Parallel()
	told := &spendings{}
	s := newSystem(t, perHour(9), MiddlewareConfig{Usage: told, Spends: func(task *asynq.Task) (string, int64) {
		if task.Type() == "free" {
			return "", 0
		}
		return "p/foreign", 2
	}})
	for _, task := range []queue.Task{
		{ID: "dear", Cost: 4}, {ID: "plain", Type: "other"}, {ID: "below", Scope: "p/a/b"},
	} {
		s.add(task)
	}
	s.addForeign("headers")
	for _, kind := range []string{"free", "told"} {
		if _, err := s.client.EnqueueContext(t.Context(), asynq.NewTask(kind, nil), asynq.TaskID(kind)); err != nil {
			t.Fatal(err)
		}
	}
	s.serve(asynq.Config{}, nil)
	for range 6 {
		<-s.ended
	}
	s.add(queue.Task{ID: "waits"})
	s.until("one waits", func() bool {
		info := s.info("waits")
		return info != nil && info.State == asynq.TaskStateRetry
	})
	told.want(t, `p/a "" default work 4`, `p/a "" default other 1`, `p/a/b "" default work 1`, `p/a "" default work 1`, `p/foreign "" default told 2`)
}
