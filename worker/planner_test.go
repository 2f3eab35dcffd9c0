package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// foreign enqueues a task with asynq alone.
func (s *system) foreign(id string, headers map[string]string, opts ...asynq.Option) {
	s.t.Helper()
	task := asynq.NewTaskWithHeaders("work", []byte(id), headers)
	if _, err := s.client.Enqueue(task, append(opts, asynq.TaskID(id))...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) states(ids ...string) (out []string) {
	for _, id := range ids {
		state := "gone"
		if info := s.info(id); info != nil {
			state = info.State.String()
		}
		out = append(out, state)
	}
	return out
}

// untilPlanned has the default queue planned, those of its tasks that are of type work or of these types, until one of them is
// parked.
func (s *system) untilPlanned(id string, types ...string) {
	s.t.Helper()
	s.until(id+" is planned where it stands", func() bool {
		for _, kind := range slices.Concat(types, slices.Repeat([]string{"work"}, 4)) {
			s.throttle.dispatcher.PutBack("default", kind)
		}
		return s.states(id)[0] == "scheduled"
	})
	s.throttle.dispatcher.Wait()
}

// "A backlog that asynq's client enqueued is planned where it stands": its tasks are
// picked up little more than once, in their order.
func TestBacklogIsPlannedWhereItStands(t *testing.T) {
	t.Parallel()
	inFakeTime(t, steady(100), func(s *system) {
		const n = 300
		var ran order
		for i := range n {
			s.foreign(fmt.Sprintf("%03d", i), map[string]string{queue.HeaderScope: "p/a"})
		}
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		s.finish(n)
		// Eight take tasks while the first look is under way: how many is the scheduler's to say. Without
		// the planner each is picked up twice at least.
		if got := s.seen.get(func(o *seen) int { return o.pickups }); got > n+n/2 {
			t.Errorf("%d pick-ups of %d tasks", got, n)
		}
		var off []int
		for i := range n {
			off = append(off, max(ran.of(fmt.Sprintf("%03d", i))-i, i-ran.of(fmt.Sprintf("%03d", i))))
		}
		slices.Sort(off)
		if p99 := off[n*99/100]; p99 > 10 {
			t.Errorf("tasks started up to %d places off, p99 %d", off[n-1], p99)
		}
	})
}

// "What asynq moves to pending, since its time has come, is planned before anybody takes it": those who stand in line
// get their places again, and nobody picks them up.
func TestForwardedArePlanned(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perHour(1), func(s *system) {
		const n = 40
		ctx, t := s.t.Context(), s.t
		for i := range n {
			s.foreign(fmt.Sprintf("%02d", i), map[string]string{queue.HeaderScope: "p/a"})
		}
		s.serve(asynq.Config{Concurrency: 4}, func(context.Context, *asynq.Task) error { return nil })
		<-time.After(10 * time.Second)
		const times = 5
		before := s.seen.get(func(o *seen) int { return o.pickups })
		for range times {
			for _, set := range []string{"asynq:{default}:scheduled", "asynq:{default}:retry"} {
				waits, err := s.rdb.ZRange(ctx, set, 0, -1).Result()
				must(t, err)
				for _, id := range waits {
					s.rdb.ZAdd(ctx, set, redis.Z{Score: float64(time.Now().Unix()), Member: id})
				}
			}
			<-time.After(10 * time.Second)
		}
		// Some are taken before the pass has begun. Without it eight or more are each time, until so many were put back.
		if got := s.seen.get(func(o *seen) int { return o.pickups }) - before; got > 4*times {
			t.Errorf("tasks that stand in line were picked up %d times", got)
		}
		info, err := s.inspector.GetQueueInfo("default")
		if err != nil || info.Pending+info.Active > 0 || info.Scheduled+info.Retry != n-1 {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// "What must not wait unseen stays in pending."
func TestPlannerLeavesAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{Spends: func(task *asynq.Task) (string, int64) {
		if string(task.Payload()) == "panics" {
			panic("it has no ResultWriter")
		}
		return "", 0
	}})
	limited := map[string]string{queue.HeaderScope: "p/a"}
	s.foreign("panics", nil)
	s.foreign("starts", limited)
	s.foreign("waits", limited)
	s.foreign("last", limited, asynq.MaxRetry(0))
	s.foreign("unlimited", nil)
	s.foreign("deadline", limited, asynq.Deadline(time.Now().Add(time.Hour)))
	s.foreign("broken", map[string]string{queue.HeaderScope: "p/a", queue.HeaderCost: "many"})
	s.foreign("costly", map[string]string{queue.HeaderScope: "p/a", queue.HeaderCost: "2"})
	if _, err := s.client.Enqueue(asynq.NewTaskWithHeaders("other", nil, limited), asynq.TaskID("of a type not met")); err != nil {
		t.Fatal(err)
	}
	s.foreign("no such scope", map[string]string{queue.HeaderScope: "q"})
	if _, err := s.client.Enqueue(asynq.NewTaskWithHeaders(asynqx.CarrierType, nil, limited), asynq.TaskID("carrier")); err != nil {
		t.Fatal(err)
	}
	s.foreign("of a group", limited, asynq.Group("g"))
	if n, err := s.inspector.RunAllAggregatingTasks("default", "g"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	s.add(queue.Task{ID: "own deadline", Deadline: time.Now().Add(time.Hour)})
	s.add(queue.Task{ID: "own"})
	s.untilPlanned("own", asynqx.CarrierType)
	parked := []string{"starts", "waits", "last", "own"}
	pending := []string{"panics", "unlimited", "deadline", "broken", "costly", "no such scope", "carrier", "own deadline", "of a type not met", "of a group"}
	if got := s.states(parked...); slices.ContainsFunc(got, func(state string) bool { return state != "scheduled" }) {
		t.Errorf("%q are %q", parked, got)
	}
	if got := s.states(pending...); slices.ContainsFunc(got, func(state string) bool { return state != "pending" }) {
		t.Errorf("%q are %q", pending, got)
	}
	if at := time.Until(s.info("waits").NextProcessAt); at < time.Hour || at > 95*time.Minute {
		t.Errorf("parked for %s; its start is an hour away", at)
	}
	if n := s.seen.get(func(o *seen) int { return o.rescheduled }); n != 4 {
		t.Errorf("%d were told to be put back", n)
	}
}
