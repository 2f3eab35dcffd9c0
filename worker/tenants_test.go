package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// tenants is a policy of p whose tenants start so many a second each.
func tenants(t *testing.T, limit int64) *policy.Policy {
	t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"p": {Scopes: map[string]policy.ScopeConfig{"*": {
			Rules: []policy.Rule{{Name: "rate", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}},
		}}},
	})
	must(t, err)
	return policy
}

// "Nobody waits for the slots of one tenant": its runs, of many scopes, do not end, and another's tasks run
// beside them, those that were enqueued behind all of its own, and those that wait in line.
func TestNoTenantTakesAllSlots(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, redistest.NewServer(t).Client(t), tenants(t, 1000), MiddlewareConfig{})
	var running, most atomic.Int64
	let := make(chan struct{})
	var endless, others []queue.Task
	for i := range 32 {
		endless = append(endless, queue.Task{Type: "endless", ID: fmt.Sprint("e", i), Scope: fmt.Sprintf("p/a/%d", i%5)})
	}
	for i := range 50 {
		others = append(others, queue.Task{Type: "work", ID: fmt.Sprint("o", i), Scope: "p/b"})
	}
	for _, task := range endless {
		s.add(task)
	}
	for _, task := range others[:25] {
		s.add(task)
	}
	server := s.serve(asynq.Config{Concurrency: 8}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() != "endless" {
			return nil
		}
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		select {
		case <-let:
		case <-ctx.Done():
		}
		return nil
	})
	s.until("tasks of another run that came behind", func() bool { return s.others(others[:25]) == 25 })
	s.planned(others[25:]...)
	s.until("tasks of another run that wait in line", func() bool { return s.others(others) == 50 })
	if most.Load() != 8 {
		t.Errorf("one tenant has had %d slots of 8", most.Load())
	}
	close(let)
	s.until("all of its own run", func() bool { return s.others(endless) == 32 })
	s.until("no slot is taken", func() bool { return server.client.Slots.Free() == 8 })
	if pickups := s.seen.get(func(o *seen) int { return o.pickups }); pickups > 3*(32+50) {
		t.Errorf("82 tasks were picked up %d times", pickups)
	}
}

// "A tenant that is alone has all slots", and its tasks that wait in line are picked up once, but for one
// a second or so that finds out whether others have come.
func TestOneTenantIsPickedUpOnce(t *testing.T) {
	t.Parallel()
	const size, n = 16, 320
	s := newSystemOn(t, redistest.NewServer(t).Client(t), tenants(t, 100_000), MiddlewareConfig{})
	_, err := s.throttle.cfg.Limiter.Report(t.Context(), "p/a", upstream.Hint{Limited: true, Retry: 2 * time.Second, RetryKnown: true})
	must(t, err)
	s.planned(jobs(n, "p/a")...)
	s.serve(asynq.Config{Concurrency: size}, func(ctx context.Context, _ *asynq.Task) error {
		asynqx.Sleep(ctx, 100*time.Millisecond+rand.N(300*time.Millisecond))
		return nil
	})
	s.finish(n)
	if pickups := s.seen.get(func(o *seen) int { return o.pickups }); pickups > n*3/2 { // beside busy processors some come when the last slot has just gone
		t.Errorf("%d tasks were picked up %d times", n, pickups)
	}
}

// A tenant whose runs hang is left alone: its tasks in line are not released and refused without an end, where
// another server has room for them and serves other queues either.
func TestHangingTenantIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, redistest.NewServer(t).Client(t), tenants(t, 1000), MiddlewareConfig{})
	for i := range 40 {
		s.add(queue.Task{ID: fmt.Sprint(i), Scope: "p/a", Queue: "one"})
	}
	hangs := func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return nil
	}
	s.serve(asynq.Config{Concurrency: 8, Queues: map[string]int{"one": 1}}, hangs)
	s.serve(asynq.Config{Concurrency: 8, Queues: map[string]int{"two": 1}}, hangs)
	pickups := func() int { return s.seen.get(func(o *seen) int { return o.pickups }) }
	s.until("some are refused", func() bool { return pickups() >= 20 })
	<-time.After(5 * time.Second)
	if n := pickups(); n > 120 {
		t.Errorf("40 tasks were picked up %d times while 8 hang", n)
	}
}

// others is how many of the tasks have run.
func (s *system) others(tasks []queue.Task) (n int) {
	for _, task := range tasks {
		n += min(1, s.ran(task.ID))
	}
	return n
}

// "Defaults to the scope's second name."
func TestTenant(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{"p": "", "p/a": "a", "p/a/x": "a", "q/a/y/z": "a", "p/a b/x": "a b"} {
		if got := new(Middleware).tenant(scope); got != want {
			t.Errorf("tenant(%q) = %q, want %q", scope, got, want)
		}
	}
	own := &Middleware{cfg: MiddlewareConfig{Tenant: strings.ToUpper}}
	if got := own.tenant("p/a"); got != "P/A" {
		t.Errorf("a function of one's own is asked: %q", got)
	}
}
