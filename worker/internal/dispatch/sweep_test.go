package dispatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

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

// A task that does not exist is on its way for as long as its carrier brings it back, whether or not this
// program's asynq keeps tasks as expected.
func TestStatesOfCarriedTasks(t *testing.T) {
	t.Parallel()
	b := newServedBench(t)
	b.add("there", "p/a")
	b.add(asynqx.CarrierID("there"), "p/a")
	b.add(asynqx.CarrierID("carried"), "p/a")
	b.add(asynqx.CarrierID("stuck"), "p/a")
	must(t, b.inspector.ArchiveTask("default", asynqx.CarrierID("stuck")))
	want := map[string]string{"there": "pending", "carried": onTheWay, "stuck": "", "gone": ""}
	for _, known := range []bool{true, false} {
		b.d.cfg.Mover.Known = known
		for id, want := range want {
			states, err := b.d.askStates("default", []inQueue{{throttle.WaiterRef{}, id}})
			if err != nil || states[0] != want {
				t.Errorf("asynq's keys known %t: %s is %q, want %q; %v", known, id, states, want, err)
			}
		}
		if states, err := b.d.askStates("none", []inQueue{{throttle.WaiterRef{}, "gone"}}); err != nil || states[0] != "" {
			t.Errorf("asynq's keys known %t: in a queue that does not exist: %q, %v", known, states, err)
		}
	}
}
