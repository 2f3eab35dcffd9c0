package dispatch

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// "One process at a time plans a queue."
func TestPlanner(t *testing.T) {
	t.Parallel()
	s := newServedBench(t)
	const n = 3 * mostPage
	for i := range n {
		s.add(fmt.Sprintf("%03d", i), "p/a")
	}
	pending := func() int64 { return s.rdb.LLen(t.Context(), "asynq:{default}:pending").Val() }
	p, b := s.d.planner, &backlog{types: map[string]bool{"work": true}, size: firstPage}
	if free, err := p.lock(t.Context(), "default"); err != nil || !free {
		t.Fatal(free, err)
	}
	p.run("default", b)
	if left := pending(); left != n {
		t.Errorf("%d of %d are left in pending, and another process plans", left, n)
	}
	s.rdb.Del(t.Context(), planKey("default"))
	p.run("default", b)
	if left := pending(); left > mostPage {
		t.Errorf("%d are left in pending", left)
	}
	if held := s.rdb.Exists(t.Context(), planKey("default")).Val(); held != 0 {
		t.Error("the lock was kept")
	}
	if b.size != mostPage || b.busy || !b.rested.After(time.Now()) {
		t.Errorf("%+v after a pass", b)
	}
}

// "a server that shuts down sees first to what it has claimed"
func TestPlannerStops(t *testing.T) {
	t.Parallel()
	s := newServedBench(t)
	for _, id := range []string{"starts", "waits"} {
		s.add(id, "p/a")
	}
	rdb, until := s.server.Client(t), make(chan struct{})
	entered := slowly(rdb, until)
	s.cfg.Limiter = s.limiterOn(rdb)
	s.build()
	for range planAfter {
		s.d.planner.putBack("default", "work")
	}
	<-entered
	if got := s.states("starts", "waits"); !slices.Equal(got, []string{"scheduled", "scheduled"}) {
		t.Errorf("claimed, and %q", got)
	}
	s.stop()
	close(until)
	s.d.planner.wait()
	if got := s.states("starts", "waits"); !slices.Equal(got, []string{"scheduled", "scheduled"}) {
		t.Errorf("stopped, and %q", got)
	}
	if info, err := s.inspector.GetTaskInfo("default", "waits"); err != nil || time.Until(info.NextProcessAt) < 10*time.Minute {
		t.Errorf("stopped, and parked: %+v, %v", info, err)
	}
}

// "For 100 ms at most: a Redis that hangs then costs the order, and not other tasks."
func TestPlannerShutsBriefly(t *testing.T) {
	t.Parallel()
	s := newServedBench(t)
	s.add("a", "p/a")
	rdb, until := s.server.Client(t), make(chan struct{})
	entered := slowly(rdb, until)
	s.cfg.Limiter = s.limiterOn(rdb)
	s.build()
	one := asynqx.NewPacer(time.Hour)
	defer one.Stop()
	s.cfg.Servers.Add(one, asynqx.NewSlots(4))
	for range planAfter {
		s.d.planner.putBack("default", "work")
	}
	<-entered
	redistest.WaitFor(t, "tasks are taken while the limiter hangs", time.Minute, func() bool { return !one.IsShut("default") })
	close(until)
	s.d.planner.wait()
}

// "While another process plans a queue, no task of it is taken, for 100 ms at most": they would have to be put back.
func TestPlannedByAnother(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("it ends: ", ends), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { leftToAnother(newBench(t), ends) })
		})
	}
}

// leftToAnother has another process plan a queue, which ends or does not, and looks how long no task is taken.
func leftToAnother(s *bench, ends bool) {
	s.Helper()
	defer s.stop()
	one := asynqx.NewPacer(time.Hour)
	s.cfg.Servers.Add(one, asynqx.NewSlots(4))
	s.rdb.Set(s.Context(), planKey("default"), 1, planLock)
	for range planAfter {
		s.d.planner.putBack("default", "work")
	}
	synctest.Wait()
	took := time.Duration(0)
	for shut := true; shut && took < time.Second; took += time.Millisecond {
		if ends && took == 20*time.Millisecond {
			s.rdb.Del(s.Context(), planKey("default"))
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		shut = one.IsShut("default")
	}
	if least, most := 20*time.Millisecond, 21*time.Millisecond+shutPause; ends && (took < least || took > most) {
		s.Errorf("it ended after %s, and was heeded after %s", least, took)
	}
	if most := mostShut + shutPause; !ends && (took < mostShut || took > most) {
		s.Errorf("shut for %s", took)
	}
	s.d.planner.wait()
}

// slowly has the first script of a client wait, and returns what is closed when it does.
func slowly(rdb *redis.Client, until <-chan struct{}) (entered chan struct{}) {
	entered = make(chan struct{})
	var first sync.Once
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if cmd.Name() == "evalsha" {
			first.Do(func() {
				close(entered)
				<-until
			})
		}
		return send()
	}))
	return entered
}

// A claim whose reply was lost is sent again, and claims the same; one that fails has what it took put back.
func TestPlannerClaimsAgain(t *testing.T) {
	t.Parallel()
	s := newServedBench(t)
	for _, lost := range []string{"once", "for good"} {
		ids := []string{lost + " a", lost + " b"}
		for _, id := range ids {
			s.add(id, "p/a")
		}
		rdb := s.server.Client(t)
		rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if args := cmd.Args(); err != nil || len(args) < 2 || args[1] != lua.DeferTasks.SHA() && args[1] != lua.DeferTasks.Source() {
				return err
			}
			if lost == "once" {
				return send()
			}
			return io.ErrUnexpectedEOF
		}))
		s.cfg.Mover = asynqx.NewMover(rdb, s.noted.Failed)
		s.build()
		b := &backlog{types: map[string]bool{"work": true}, size: firstPage}
		got, err := s.d.planner.page(t.Context(), "default", b)
		states := s.states(ids...)
		switch {
		case lost == "once" && (err != nil || got.parked != 2 || !slices.Equal(states, []string{"scheduled", "scheduled"})):
			t.Errorf("lost once: %+v, %v, %q", got, err, states)
		case lost == "for good" && (err == nil || !slices.Equal(states, []string{"pending", "pending"})):
			t.Errorf("lost for good: %+v, %v, %q", got, err, states)
		}
	}
}

// A task that is deleted, or archived, when it has been released and nobody has picked it up
// counts as released for about a second more: others have its units then.
func TestEndedOnItsWay(t *testing.T) {
	t.Parallel()
	const key = "asynq:{default}:t:one"
	for name, end := range map[string][]any{"deleted": {"DEL", key}, "archived": {"HSET", key, "state", "archived"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t)
				defer w.stop()
				w.serves()
				w.rdb.HSet(t.Context(), key, "state", "scheduled", "msg", "as asynq leaves it")
				w.rdb.ZAdd(t.Context(), "asynq:{default}:scheduled", redis.Z{Score: 1, Member: "one"})
				one := throttle.WaiterRef{Scope: "p/a", ID: queue.Ticket("default", "one")}
				var looks int
				told := make(chan throttle.DispatchRequest, 100)
				w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
					if len(req.Deleted) > 0 {
						told <- req
						return throttle.Dispatched{}, nil
					}
					if looks++; looks == 1 {
						return throttle.Dispatched{Granted: []throttle.Granted{{WaiterRef: one}}, Waiting: true, Next: time.Hour}, nil
					}
					return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
				})
				w.d.Decided("p", throttle.Decision{})
				synctest.Wait()
				if state := w.rdb.HGet(t.Context(), key, "state").Val(); state != "pending" {
					t.Fatalf("it is %q", state)
				}
				must(t, w.rdb.Do(t.Context(), end...).Err())
				select {
				case req := <-told:
					if len(req.Deleted) != 1 || req.Deleted[0] != one {
						t.Errorf("told %+v", req.Deleted)
					}
				case <-time.After(2*lookAgain + sweepAgain):
					t.Error("nobody is told that it has gone")
				}
			})
		})
	}
}

// A task whose turn comes while its own process puts it back is released when it is back, though that takes a second on a busy
// machine: it has its place, and comes by itself minutes later.
func TestReleasedWhilePutBack(t *testing.T) {
	t.Parallel()
	const key = "asynq:{default}:t:one"
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		w.serves()
		w.rdb.HSet(t.Context(), key, "state", "active", "msg", "as asynq leaves it")
		one := throttle.WaiterRef{Scope: "p/a", ID: queue.Ticket("default", "one")}
		w.rdb.HSet(t.Context(), "hw:{p}!flight", "/a\x00:"+one.ID, "its grant")
		looks := 0
		w.grants(func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			if looks++; looks == 1 {
				return throttle.Dispatched{Granted: []throttle.Granted{{WaiterRef: one}}, Waiting: true, Next: time.Hour}, nil
			}
			return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
		})
		w.d.Decided("p", throttle.Decision{})
		<-time.After(time.Second)
		w.rdb.HSet(t.Context(), key, "state", "scheduled")
		w.rdb.ZAdd(t.Context(), "asynq:{default}:scheduled", redis.Z{Score: float64(time.Now().Add(time.Hour).Unix()), Member: "one"})
		<-time.After(2 * time.Second)
		if n := w.rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 1 {
			t.Errorf("%d tasks are in pending", n)
		}
	})
}
