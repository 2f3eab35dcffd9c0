package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// foreign enqueues a task with asynq alone.
func (s *system) foreign(id string, headers map[string]string, opts ...asynq.Option) {
	s.t.Helper()
	task := asynq.NewTaskWithHeaders("work", []byte(id), headers)
	_, err := s.client.Enqueue(task, append(opts, asynq.TaskID(id))...)
	must(s.t, err)
}

// onDispatch calls note after each call of dispatch.
func (s *system) onDispatch(note func(waitlist.Dispatched)) {
	s.throttle.dispatcher.Intercept(func(next dispatch.Func) dispatch.Func {
		return func(ctx context.Context, req waitlist.Request) (waitlist.Dispatched, error) {
			got, err := next(ctx, req)
			note(got)
			return got, err
		}
	})
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

// untilPlanned has the default queue planned, those of its tasks that are of type work, until one of them is parked.
func (s *system) untilPlanned(id string) {
	s.t.Helper()
	s.until(id+" is planned where it stands", func() bool {
		for range 4 {
			s.throttle.planner.PutBack("default", "work")
		}
		return s.states(id)[0] == "scheduled"
	})
	s.throttle.planner.Wait()
}

// "A backlog that asynq's client enqueued is planned where it stands": its tasks are picked up little more than once,
// and those of a page in their order.
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
		pickups := s.seen.get(func(o *seen) int { return o.pickups })
		if pickups > n+n/2 {
			t.Fatalf("%d pick-ups of %d tasks", pickups, n)
		}
		var off []int
		for i := range n {
			off = append(off, max(ran.of(fmt.Sprintf("%03d", i))-i, i-ran.of(fmt.Sprintf("%03d", i))))
		}
		slices.Sort(off)
		if off[n-1-(pickups-n)] > 8 { // those that were taken while the first look was under way overtake the others
			t.Errorf("tasks are %v places off", off[n-24:])
		}
		if got := s.seen.get(func(o *seen) int { return o.began }); got != n {
			t.Errorf("%d of %d runs were told as begun", got, n)
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
	_, err := s.client.Enqueue(asynq.NewTaskWithHeaders("other", nil, limited), asynq.TaskID("of a type not met"))
	must(t, err)
	s.foreign("no such scope", map[string]string{queue.HeaderScope: "q"})
	s.foreign("of a group", limited, asynq.Group("g"))
	if n, err := s.inspector.RunAllAggregatingTasks("default", "g"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	s.add(queue.Task{ID: "own deadline", Deadline: time.Now().Add(time.Hour)})
	s.add(queue.Task{ID: "own"})
	s.untilPlanned("own")
	parked := []string{"starts", "waits", "last", "own"}
	pending := []string{"panics", "unlimited", "deadline", "broken", "costly", "no such scope", "own deadline", "of a type not met", "of a group"}
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

// "A slow limit gets a wider spread", and nothing is granted that is more than 250 ms ahead: of a slow limit
// each look grants several, and of one that is quick no more than before.
func TestSlowLimitsAreGrantedSeveralAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rate        int64
		least, most float64 // tasks a look
		ahead       time.Duration
	}{
		{10, 2, 3, 250 * time.Millisecond},
		{20, 3, 5, 250 * time.Millisecond},
		{100, 5, 12, 150 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(test.rate), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, steady(test.rate), func(s *system) {
				const n = 60
				var looks, granted, ahead atomic.Int64
				s.onDispatch(func(got waitlist.Dispatched) {
					for _, g := range got.Granted {
						ahead.Store(max(ahead.Load(), int64(g.Wait)))
					}
					if len(got.Granted) > 0 && granted.Add(int64(len(got.Granted))) > 10 { // it is known how many there are
						looks.Add(1)
					}
				})
				s.planned(jobs(n, "p/a")...)
				s.serve(asynq.Config{Concurrency: 20}, nil)
				s.finish(n)
				each := float64(granted.Load()-10) / float64(looks.Load())
				if each < test.least || each > test.most {
					s.t.Errorf("%.1f tasks a look", each)
				}
				if got := time.Duration(ahead.Load()); got > test.ahead {
					s.t.Errorf("a start is %v ahead", got)
				}
			})
		})
	}
}

// "A loop without a free slot makes no other call, and loops take turns for slots": each of many providers has tasks whose start has
// come, and all slots are taken.
func TestProvidersTakeTurnsForSlots(t *testing.T) {
	t.Parallel()
	inFakeTimeUnder(t, policyOf(t, map[string]policy.ScopeConfig{"*": {Rules: steady(2)}}), MiddlewareConfig{}, func(s *system) {
		const providers, each, slots = 20, 5, 4
		var calls atomic.Int64
		s.onDispatch(func(waitlist.Dispatched) { calls.Add(1) })
		for i := range providers {
			s.planned(jobs(each, fmt.Sprintf("p%02d/%c", i, 'a'+rune(i)))...)
		}
		s.serve(asynq.Config{Concurrency: slots}, func(context.Context, *asynq.Task) error {
			<-time.After(time.Second)
			return nil
		})
		runs := map[string]int{}
		for range 3 * providers {
			provider, _, _ := strings.Cut(<-s.ended, "/")
			runs[provider]++
		}
		for provider, n := range runs {
			if n < 2 {
				t.Errorf("of %d runs %s has had %d: %v", 3*providers, provider, n, runs)
			}
		}
		s.finish(providers*each - 3*providers)
		// One for each slot that becomes free, and of each loop one in 3 s: a wake may have been lost.
		if most := int64(2*providers*each + providers*(providers*each/slots)); calls.Load() > most {
			t.Errorf("dispatch was called %d times, and not %d", calls.Load(), most)
		}
	})
}

// "Half of the slots must be free": slow limits take no room from a quick one beside them.
func TestSlowLimitsLeaveRoom(t *testing.T) {
	t.Parallel()
	const slow, seconds = 12, 3
	nodes := map[string]policy.ScopeConfig{"quick": {Rules: steady(300)}}
	for i := range slow {
		nodes[fmt.Sprint("slow", i)] = policy.ScopeConfig{Rules: steady(10)}
	}
	inFakeTimeUnder(t, policyOf(t, nodes), MiddlewareConfig{}, func(s *system) {
		for i := range slow {
			s.planned(jobs(seconds*20, fmt.Sprintf("slow%d/a", i))...)
		}
		s.planned(jobs(seconds*300, "quick/a")...)
		s.serve(asynq.Config{Concurrency: 10}, func(context.Context, *asynq.Task) error {
			<-time.After(10 * time.Millisecond)
			return nil
		})
		began := time.Now()
		for left := seconds * 300; left > 0; {
			if id := <-s.ended; strings.HasPrefix(id, "quick") {
				left--
			}
		}
		// The slots are taken for 4.2 of each 10 ms; 3.7 s without wider spreads, 7 with those that ask nobody for room.
		if took := time.Since(began); took > seconds*time.Second*3/2 {
			t.Errorf("the quick one's tasks took %v, and %v would do", took, seconds*time.Second)
		}
	})
}

// Servers that are not ours count too, as asynq tells of them; where that can't be asked all queues are taken for served.
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

// "A task that was charged keeps its charge": an idle limit that has units for all planned tasks but one runs all but one
// at once, as forecast. By the clock alone the units of one that lost them would come back in an hour.
func TestPlannedTasksUseTheWholeBurst(t *testing.T) {
	t.Parallel()
	const units = 20
	for name, rule := range map[string]policy.Rule{
		"token bucket":   {Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: units},
		"sliding window": {Name: "r", Algorithm: policy.SlidingWindow, Limit: units, Per: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, []policy.Rule{rule}, MiddlewareConfig{})
			elsewhere, err := throttle.New(s.server.Client(t), s.throttle.cfg.Limiter.Policy(), throttle.Config{})
			must(t, err)
			client := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: elsewhere})
			s.serve(asynq.Config{Concurrency: 20}, nil)
			_, err = client.EnqueueBatch(t.Context(), queue.Number(slices.Values(jobs(units+1, "p/a"))), nil)
			must(t, err)
			s.haveEnded(units)
			if state, err := elsewhere.Peek(t.Context(), throttle.Request{Scope: "p/a"}); err != nil || state.Rules[0].Remaining != 0 || len(s.ended) > 0 {
				t.Errorf("%+v, %v: after %d runs; %d more", state.Rules, err, units, len(s.ended))
			}
		})
	}
}
