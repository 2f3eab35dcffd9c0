package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// starts gives n tasks of a tenant slots, and returns those that may start.
func (s *slots) starts(tenant string, n int) (all []*slot) {
	for i := range n {
		key := fmt.Sprint(tenant, i)
		s.comes(key)
		one := s.take(key)
		if one.startsFor(tenant, false) {
			one.runs()
			all = append(all, one)
			continue
		}
		one.leave()
	}
	return all
}

// admits says whether a task may be taken now.
func (s *slots) admits() bool {
	changed, _ := s.full()
	return changed == nil
}

// "One tenant alone has all of them", and when it has had them for a moment others have half as many more.
func TestSlotsBesideOneTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		hog := s.starts("a", 8)
		if len(hog) != 8 || s.admits() {
			t.Fatalf("%d tasks of one tenant start, and more are taken: %t", len(hog), s.admits())
		}
		<-time.After(slotLasts)
		if !s.admits() || s.beyond() != 4 {
			t.Fatalf("others have %d slots beside it", s.beyond())
		}
		if !s.refuses("a", false) || s.refuses("b", true) {
			t.Error("another task of the tenant may start, or none of another's")
		}
		others := s.starts("b", 3)
		if more := len(s.starts("a", 1)); len(others) != 3 || more != 0 {
			t.Fatalf("%d tasks of another start, and %d of the first", len(others), more)
		}
		if others = append(others, s.starts("b", 2)...); len(others) != 4 || s.admits() {
			t.Fatalf("%d tasks of another start, beyond half", len(others))
		}
		for i, one := range hog {
			if relieves := one.leave(); relieves != (i == 4) {
				t.Errorf("after %d have ended the tenant may start again: %t", i+1, relieves)
			}
		}
		if more := len(s.starts("a", 8)); more != 4 {
			t.Errorf("%d more start beside four of another's", more)
		}
	})
}

// What is decided before the runs begin lends no slots, however long it takes: a tenant that is alone on a
// busy machine has no tasks picked up for nothing.
func TestDecisionsAreNoRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		var all []*slot
		for i := range 8 {
			one := s.take(fmt.Sprint(i))
			one.startsFor("a", false)
			all = append(all, one)
		}
		<-time.After(10 * slotLasts)
		if s.admits() {
			t.Error("a ninth task is taken, and none runs")
		}
		for _, one := range all {
			one.runs()
		}
		if <-time.After(slotLasts - 1); s.admits() {
			t.Error("a ninth task is taken, and no run lasts")
		}
		if <-time.After(1); !s.admits() {
			t.Error("no task of another tenant is taken beside runs that last")
		}
	})
}

// Tasks that come together do not refuse each other a slot that is free.
func TestSlotsOfThoseWhoComeTogether(t *testing.T) {
	t.Parallel()
	s := newSlots(8)
	s.starts("a", 7)
	var came []*slot
	for i := range 4 {
		came = append(came, s.take(fmt.Sprint(i)))
	}
	starts := 0
	for _, one := range came {
		if one.startsFor("a", false) {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("%d start in one free slot", starts)
	}
}

// Who was refused is told when it may start, in the slots that are lent too.
func TestSlotsRelieve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		s.starts("a", 8)
		<-time.After(slotLasts)
		others := s.starts("b", 4)
		if !s.refuses("a", true) || !s.refuses("b", true) {
			t.Fatal("more may start")
		}
		if !others[0].leave() || s.refuses("b", true) {
			t.Error("another may start in its place, and nobody is told")
		}
		if others[1].leave() {
			t.Error("nobody who was refused may start")
		}
	})
}

// "Lends nothing for a while, twice as long each time": what had its turn and is refused is not taken
// again and again.
func TestSlotsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		s.starts("a", 8)
		<-time.After(slotLasts)
		began, refused := time.Now(), 0
		for time.Since(began) < 10*time.Second {
			if s.admit(nil); s.take("x").refusedAfterItsTurn("a") {
				refused++
			}
		}
		if refused > 20 {
			t.Errorf("%d are taken in ten seconds for nothing", refused)
		}
		<-time.After(slotMostRest)
		s.starts("b", 1)
		if s.rested != 0 {
			t.Errorf("what is lent is used, and rests %v", s.rested)
		}
	})
}

func (o *slot) refusedAfterItsTurn(tenant string) bool {
	defer o.leave()
	return !o.startsFor(tenant, true)
}

// Those that come and go are never more than the slots, and whose they were is forgotten.
func TestSlotsAreKept(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 1))
			s := newSlots(1 + draw.IntN(9))
			var all []*slot
			for range 2000 {
				switch draw.IntN(4) {
				case 0:
					<-time.After(time.Duration(draw.Int64N(int64(slotLasts / 2))))
				case 1:
					if len(all) > 0 {
						i := draw.IntN(len(all))
						all[i].leave()
						all[i].leave() // once is enough
						all[i] = all[len(all)-1]
						all = all[:len(all)-1]
					}
				default:
					if s.admits() {
						all = append(all, s.starts(string(rune('a'+draw.IntN(3))), 1)...)
					}
				}
				if len(all) > s.most() || s.counted() > s.size {
					t.Fatalf("seed %d: %d tasks run, %d of them count, in %d slots", seed, len(all), s.counted(), s.size)
				}
			}
			for _, one := range all {
				one.leave()
			}
			if s.taken != 0 || len(s.held) != 0 || s.beyond() != 0 {
				t.Errorf("seed %d: %d are taken by %d at the end", seed, s.taken, len(s.held))
			}
		})
	}
}

// asynq ends some tasks before a handler has them, such as one whose deadline has passed.
func TestSlotsOfTasksThatDoNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		s.comes("asynq:{default}:t:1")
		s.comes("asynq:{default}:t:2")
		if s.admits() {
			t.Error("a third is taken at once")
		}
		time.AfterFunc(slotComes/2, func() { s.ended("asynq:{default}:t:2") })
		began := time.Now()
		if !s.admit(nil) || time.Since(began) != slotComes/2 {
			t.Errorf("a third is taken after %s, when asynq has ended one", time.Since(began))
		}
		<-time.After(slotComes)
		s.comes("asynq:{default}:t:4")
		if !s.admits() {
			t.Error("asynq gave up the first without a word, and its slot is taken for good")
		}
		s.ended("asynq:{default}:t:4")
		stopped := make(chan struct{})
		s.starts("a", 2)
		time.AfterFunc(time.Hour, func() { close(stopped) })
		if s.held["a"].Len() != 2 || !s.admit(stopped) {
			t.Error("nothing is taken beside a tenant that lasts")
		}
		s.starts("b", 2)
		if s.admit(stopped) {
			t.Error("a task is taken for which there is no slot")
		}
	})
}

// tenants is a policy of p whose tenants start so many a second each.
func tenants(t *testing.T, limit int64) *policy.Policy {
	t.Helper()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"p": {Scopes: map[string]policy.ScopeConfig{"*": {
			Rules: []policy.Rule{{Name: "rate", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
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
	slots := server.guard.slots
	s.until("no slot is taken", func() bool {
		slots.mu.Lock()
		defer slots.mu.Unlock()
		return slots.taken+len(slots.coming)+len(slots.held) == 0
	})
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
		sleep(ctx, 100*time.Millisecond+rand.N(300*time.Millisecond))
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

// Tasks that no limit concerns take slots as they come: one tenant that has all others takes none of those
// that are lent.
func TestTenantBesideUnscopedTasks(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, redistest.NewServer(t).Client(t), tenants(t, 1000), MiddlewareConfig{})
	for range 2 {
		_, err := s.client.Enqueue(asynq.NewTask("unscoped", nil))
		must(t, err)
	}
	for i := range 30 {
		s.add(queue.Task{Type: "endless", ID: fmt.Sprint(i), Scope: "p/a"})
	}
	var running, most atomic.Int64
	s.serve(asynq.Config{Concurrency: 8}, func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "endless" {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
		}
		<-ctx.Done()
		return nil
	})
	s.until("its other tasks are refused", func() bool {
		return s.seen.get(func(o *seen) int { return o.rescheduled }) >= 20
	})
	if most.Load() != 6 {
		t.Errorf("it has %d slots of 8 beside two that others have", most.Load())
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
