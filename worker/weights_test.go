package worker

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

var asynqs = map[string]int{"critical": 6, "default": 3, "low": 1}

// oneByOne is a system with one place for all, whose tasks end one by one when they are let.
type oneByOne struct {
	*system
	order order
	next  chan struct{}
}

func newOneByOne(t *testing.T, cfg asynq.Config) *oneByOne {
	t.Helper()
	s := &oneByOne{system: newSystem(t, full(0), MiddlewareConfig{}), next: make(chan struct{})}
	cfg.Concurrency = 8
	s.serve(cfg, func(ctx context.Context, task *asynq.Task) error {
		_ = s.order.handle(ctx, task)
		select {
		case <-s.next:
		case <-t.Context().Done(): // before the server is shut down
		}
		return nil
	})
	return s
}

// let has so many tasks end, and as many others start.
func (s *oneByOne) let(n int) {
	s.t.Helper()
	for range n {
		select {
		case s.next <- struct{}{}:
		case <-time.After(bound):
			s.t.Fatal("no task runs")
		}
	}
}

// waiting waits until so many stand in the lines of scopes below p.
func (s *oneByOne) waiting(n int, scopes ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d wait", n), func() bool {
		all := 0
		for _, scope := range scopes {
			for _, name := range []string{"critical", "default", "low"} {
				all += int(s.rdb.ZCard(s.t.Context(), "hw:{p}:q:"+name+":/"+scope).Val())
			}
		}
		return all == n
	})
}

// enqueued are the ways in which tasks come to their queues.
var enqueued = map[string]func(s *oneByOne, tasks []queue.Task){
	"batch": func(s *oneByOne, tasks []queue.Task) { s.planned(tasks...) },
	"one by one": func(s *oneByOne, tasks []queue.Task) {
		client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.throttle.cfg.Limiter})
		for _, task := range tasks {
			_, err := client.Enqueue(s.t.Context(), task)
			must(s.t, err)
		}
	},
	"by asynq": func(s *oneByOne, tasks []queue.Task) {
		for _, task := range tasks {
			headers := map[string]string{queue.HeaderScope: task.Scope, queue.HeaderPriority: strconv.Itoa(task.Priority)}
			its := asynq.NewTaskWithHeaders("work", nil, headers)
			_, err := s.client.Enqueue(its, asynq.TaskID(task.ID), asynq.Queue(task.Queue))
			must(s.t, err)
		}
	},
}

// of are n tasks of a queue, numbered from 0.
func of(name, scope string, n int) (tasks []queue.Task) {
	for i := range n {
		tasks = append(tasks, queue.Task{Type: "work", Scope: scope, Queue: name, ID: fmt.Sprintf("%s %03d", name, i)})
	}
	return tasks
}

// started are the queues of those who have started, without the first.
func (s *oneByOne) started() (queues []string) {
	s.order.mu.Lock()
	defer s.order.mu.Unlock()
	for _, id := range s.order.ids[1:] {
		name, _, _ := strings.Cut(id, " ")
		queues = append(queues, name)
	}
	return queues
}

// "With StrictPriority 5 tasks of critical start before 40 of low that wait for the same
// limit", of the same scope and of others. A task's own priority counts in the line of its queue.
func TestStrictPriorityAmongLimited(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueued {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newOneByOne(t, asynq.Config{Queues: asynqs, StrictPriority: true})
			enqueue(s, of("low", "p/a", 40))
			s.waiting(39, "a")
			enqueue(s, of("critical", "p/a", 5))
			enqueue(s, of("default", "p/b", 5))
			urgent := of("low", "p/a", 1)
			urgent[0].ID, urgent[0].Priority = "urgent 0", 1
			enqueue(s, urgent)
			s.waiting(50, "a", "b")
			s.let(16)
			s.until("16 more have started", func() bool { return len(s.started()) == 16 })
			want := slices.Concat(slices.Repeat([]string{"critical"}, 5), slices.Repeat([]string{"default"}, 5), []string{"urgent"}, slices.Repeat([]string{"low"}, 5))
			if got := s.started(); !slices.Equal(got, want) {
				t.Errorf("started: %v", got)
			}
		})
	}
}

// "asynq's weights hold among the tasks of a scope that wait for their limits: of any 30 starts critical, default and low have 18, 9 and 3
// while all have a backlog; in each queue the first come goes first."
func TestWeightsAmongLimited(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueued {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newOneByOne(t, asynq.Config{Queues: asynqs})
			enqueue(s, of("low", "p/a", 20))
			s.waiting(19, "a")
			enqueue(s, of("default", "p/a", 30))
			s.waiting(49, "a")
			enqueue(s, of("critical", "p/a", 60))
			s.waiting(109, "a")
			s.let(90)
			s.until("90 have started", func() bool { return len(s.started()) >= 90 })
			s.shares(s.started()[:90])
			if name != "by asynq" { // their slots decide at once
				s.inOrder("default", "critical")
			}
			if name == "batch" { // the first singles find nobody who waits, and are picked up
				s.inOrder("low")
			}
		})
	}
}

// shares: of any 30 starts each queue has what its weight says, give or take two.
func (s *oneByOne) shares(queues []string) {
	s.t.Helper()
	for from := 0; from+30 <= len(queues); from++ {
		for name, weight := range asynqs {
			n := 0
			for _, one := range queues[from : from+30] {
				n += strings.Count(one, name)
			}
			if math.Abs(float64(n-3*weight)) > 2 {
				s.t.Fatalf("of 30 starts from %d on %s has %d, and should have %d: %v", from, name, n, 3*weight, queues)
			}
		}
	}
}

// inOrder: in each of the queues the first come has started first.
func (s *oneByOne) inOrder(queues ...string) {
	s.t.Helper()
	s.order.mu.Lock()
	defer s.order.mu.Unlock()
	for _, name := range queues {
		its := slices.DeleteFunc(slices.Clone(s.order.ids), func(id string) bool { return !strings.HasPrefix(id, name) })
		if !slices.IsSorted(its) {
			s.t.Errorf("they should have started in their order: %q", its)
		}
	}
}

// docs/limits.md: "no customer goes before another by" its priorities, however their tasks are enqueued: in a batch, one by one,
// and by asynq's own client.
func TestPrioritiesTakeNoTurns(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueued {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newOneByOne(t, asynq.Config{})
			s.limits(map[string]policy.ScopeConfig{"p": {Rules: full(0), Scopes: map[string]policy.ScopeConfig{"*": {}}}}) // one place, which tenants share
			meek, greedy := of("default", "p/globex", 12), of("default", "p/acme", 11)
			for i := range meek {
				meek[i].ID = fmt.Sprintf("globex %d", i)
			}
			for i := range greedy {
				greedy[i].ID, greedy[i].Priority = fmt.Sprintf("acme %d", i), queue.MaxPriority
			}
			enqueue(s, meek)
			s.waiting(11, "globex")
			enqueue(s, greedy)
			s.waiting(22, "globex", "acme")
			s.let(10)
			s.until("10 more have started", func() bool { return len(s.started()) == 10 })
			started := s.started()
			if acmes := strings.Count(strings.Join(started, " "), "acme"); acmes < 4 || acmes > 6 {
				t.Errorf("%d of 10 starts are acme's: %v", acmes, started)
			}
		})
	}
}
