package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
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

// pageOf plans one page of the default queue.
func (s *system) pageOf(size int) page {
	s.t.Helper()
	b := &backlog{types: map[string]bool{"work": true, asynqx.CarrierType: true}, size: size}
	got, err := s.throttle.planner.page(s.t.Context(), "default", b)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
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
				if err != nil {
					t.Fatal(err)
				}
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
	got := s.pageOf(mostPage)
	if want := (page{tasks: 14, bytes: got.bytes, parked: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
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

// "one whose start is near, which may have been released already", is not parked: it would
// lose its turn.
func TestPlannerLeavesTheReleased(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	limiter := s.throttle.cfg.Limiter
	d, err := limiter.Decide(t.Context(), throttle.Request{Scope: "p/a"})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	for _, id := range []string{"a", "b"} {
		s.foreign(id, map[string]string{queue.HeaderScope: "p/a"})
	}
	if _, err := limiter.Waitlist().Join(t.Context(), []throttle.Waiter{{Scope: "p/a", ID: queue.Ticket("default", "a")}}, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := limiter.Refund(t.Context(), d.Grant); err != nil {
		t.Fatal(err)
	}
	woken, err := limiter.Waitlist().Dispatch(t.Context(), throttle.DispatchRequest{Provider: "p", Max: 1})
	if err != nil || len(woken.Granted) != 1 {
		t.Fatalf("%+v, %v", woken, err)
	}
	s.pageOf(mostPage)
	if got := s.states("a", "b"); !slices.Equal(got, []string{"pending", "scheduled"}) {
		t.Errorf("released, and behind it: %q", got)
	}
}

// A parked task keeps its unique lock for as long as it waits besides.
func TestPlannerKeepsLocks(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	limited := map[string]string{queue.HeaderScope: "p/a"}
	s.foreign("starts", limited)
	s.foreign("unique", limited, asynq.Unique(time.Minute))
	s.foreign("another", limited)
	s.pageOf(mostPage)
	j := &job{task: asynq.NewTask("work", []byte("unique")), id: "unique", queue: "default"}
	if left := j.lock().Left(t.Context(), s.rdb); left < time.Hour {
		t.Errorf("its lock ends in %s, and it waits for an hour", left)
	}
}

// "One process at a time plans a queue."
func TestPlanner(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	const n = 3 * mostPage
	for i := range n {
		s.foreign(fmt.Sprintf("%03d", i), map[string]string{queue.HeaderScope: "p/a"})
	}
	pending := func() int64 { return s.rdb.LLen(t.Context(), "asynq:{default}:pending").Val() }
	p, b := s.throttle.planner, &backlog{types: map[string]bool{"work": true}, size: firstPage}
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

// Where a backlog can't be planned its tasks are where they were, one line says so, and it
// is left alone for longer.
func TestPlannerFails(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	limited := map[string]string{queue.HeaderScope: "p/a"}
	ids := []string{"a", "b", "c"}
	for _, id := range ids {
		s.foreign(id, limited)
	}
	var said bytes.Buffer
	p := s.throttle.planner
	s.throttle.log = slog.New(slog.NewTextHandler(&said, nil))
	policy := s.throttle.cfg.Limiter.Policy()
	refused, err := throttle.New(s.server.User(t, []string{"hw:*"}, "-@all"), policy, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.throttle.cfg.Limiter = refused
	b := &backlog{types: map[string]bool{"work": true}, size: firstPage}
	for range 2 {
		p.run("default", b)
		if got := s.rdb.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val(); !slices.Equal(got, []string{"c", "b", "a"}) {
			t.Errorf("pending is %q", got)
		}
	}
	if rest := time.Until(b.rested); rest < planFault/2 {
		t.Errorf("it rests for %s", rest)
	}
	if n := strings.Count(said.String(), "cannot plan a backlog"); n != 1 {
		t.Errorf("told %d times: %s", n, &said)
	}
}

// A pass ends with the backlog, and where less than half of a page waits; pages grow as
// far as their messages allow.
func TestPlannerPages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		page
		size int
		more bool
		next int
	}{
		{page{32, 32 << 10, true, 32}, 32, true, 64},
		{page{64, 64 << 10, true, 32}, 64, true, 128},
		{page{128, 128 << 10, true, 128}, 128, true, 128},
		{page{32, 4 << 20, true, 32}, 32, true, 8},
		{page{1, 8 << 20, true, 1}, 1, true, 1},
		{page{32, 0, true, 32}, 32, true, 64},
		{page{20, 1 << 10, true, 10}, 32, true, 64},
		{page{31, 1 << 10, false, 31}, 32, false, 32},
		{page{32, 1 << 10, true, 15}, 32, false, 32},
		{page{128, 256 << 20, true, 15}, 128, false, 1},
		{page{3, 1 << 10, true, 1}, 3, false, 16},
		{page{1, 1 << 10, true, 0}, 1, false, 16},
		{page{1, 8 << 20, true, 0}, 1, false, 1},
		{page{}, 32, false, 32},
	} {
		if more, next := test.page.more(), test.page.next(test.size); more != test.more || next != test.next {
			t.Errorf("%+v of %d: %t, %d; want %t, %d", test.page, test.size, more, next, test.more, test.next)
		}
	}
}

// "a server that shuts down sees first to what it has claimed"
func TestPlannerStops(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	for _, id := range []string{"starts", "waits"} {
		s.foreign(id, map[string]string{queue.HeaderScope: "p/a"})
	}
	slow := &slowly{entered: make(chan struct{})}
	rdb := s.server.Client(t)
	rdb.AddHook(slow)
	limiter, err := throttle.New(rdb, s.throttle.cfg.Limiter.Policy(), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.throttle.cfg.Limiter = limiter
	for range planAfter {
		s.throttle.planner.met("default", "work")
	}
	<-slow.entered
	if got := s.states("starts", "waits"); !slices.Equal(got, []string{"scheduled", "scheduled"}) {
		t.Errorf("claimed, and %q", got)
	}
	s.throttle.Stop()
	s.throttle.planner.wait()
	if got := s.states("starts", "waits"); !slices.Equal(got, []string{"scheduled", "scheduled"}) {
		t.Errorf("stopped, and %q", got)
	}
	if at := time.Until(s.info("waits").NextProcessAt); at < time.Hour {
		t.Errorf("stopped, and parked for %s", at)
	}
}

// "For 100 ms at most: a Redis that hangs then costs the order, and not other tasks."
func TestPlannerShutsBriefly(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.foreign("a", map[string]string{queue.HeaderScope: "p/a"})
	hangs := &slowly{entered: make(chan struct{}), until: make(chan struct{})}
	rdb := s.server.Client(t)
	rdb.AddHook(hangs)
	limiter, err := throttle.New(rdb, s.throttle.cfg.Limiter.Policy(), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.throttle.cfg.Limiter = limiter
	one := asynqx.NewPacer(time.Hour)
	defer one.Stop()
	s.throttle.servers.Add(one, asynqx.NewSlots(4))
	for range planAfter {
		s.throttle.planner.met("default", "work")
	}
	<-hangs.entered
	s.until("tasks are taken while the limiter hangs", func() bool { return !one.IsShut("default") })
	close(hangs.until)
	s.throttle.planner.wait()
}

// "While another process plans a queue, no task of it is taken, for 100 ms at most": they would have to be put back.
func TestPlannedByAnother(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("it ends: ", ends), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, perHour(1), func(s *system) { leftToAnother(s, ends) })
		})
	}
}

// leftToAnother has another process plan a queue, which ends or does not, and looks how long no task is taken.
func leftToAnother(s *system, ends bool) {
	s.t.Helper()
	one := asynqx.NewPacer(time.Hour)
	s.throttle.servers.Add(one, asynqx.NewSlots(4))
	s.rdb.Set(s.t.Context(), planKey("default"), 1, planLock)
	for range planAfter {
		s.throttle.planner.met("default", "work")
	}
	synctest.Wait()
	took := time.Duration(0)
	for shut := true; shut && took < time.Second; took += time.Millisecond {
		if ends && took == 20*time.Millisecond {
			s.rdb.Del(s.t.Context(), planKey("default"))
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		shut = one.IsShut("default")
	}
	if least, most := 20*time.Millisecond, 21*time.Millisecond+shutPause; ends && (took < least || took > most) {
		s.t.Errorf("it ended after %s, and was heeded after %s", least, took)
	}
	if most := mostShut + shutPause; !ends && (took < mostShut || took > most) {
		s.t.Errorf("shut for %s", took)
	}
	s.throttle.planner.wait()
}

// "Should the process die, asynq brings them back."
func TestPlannerDies(t *testing.T) {
	t.Parallel()
	s := newSystem(t, steady(100), MiddlewareConfig{})
	for _, id := range []string{"a", "b", "c"} {
		s.foreign(id, map[string]string{queue.HeaderScope: "p/a"})
	}
	p, b := s.throttle.planner, &backlog{types: map[string]bool{"work": true}, size: firstPage}
	_, read, err := p.read("default", b)
	if err != nil {
		t.Fatal(err)
	}
	if claimed, err := p.claim(t.Context(), "default", read); err != nil || len(claimed) != 3 {
		t.Fatal(claimed, err)
	}
	if got := s.states("a", "b", "c"); !slices.Equal(got, []string{"scheduled", "scheduled", "scheduled"}) {
		t.Errorf("claimed, and %q", got)
	}
	s.serve(asynq.Config{}, nil)
	s.finish(3)
}

// A page is of a few providers: each costs round trips while nothing else is taken.
func TestPlannerBoundsProviders(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	for i := range 3 * mostProviders {
		s.foreign(fmt.Sprint(i), map[string]string{queue.HeaderScope: fmt.Sprintf("p%d/a", i)})
	}
	b := &backlog{types: map[string]bool{"work": true}, size: mostPage}
	if _, read, err := s.throttle.planner.read("default", b); err != nil || len(read) != mostProviders {
		t.Errorf("a page of %d providers, %v", len(read), err)
	}
}

// slowly answers the first call of a script late: after a while, or when it may.
type slowly struct {
	entered, until chan struct{}
	first          sync.Once
}

func (*slowly) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *slowly) hold() {
	l.first.Do(func() {
		close(l.entered)
		if l.until != nil {
			<-l.until
			return
		}
		<-time.After(100 * time.Millisecond)
	})
}

func (l *slowly) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			l.hold()
		}
		return next(ctx, cmd)
	}
}

func (l *slowly) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" {
			l.hold()
		}
		return next(ctx, cmds)
	}
}

// A claim whose reply was lost is sent again, and claims the same; one that fails has what
// it took put back.
func TestPlannerClaimsAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	limited := map[string]string{queue.HeaderScope: "p/a"}
	own := s.throttle.waker.mover
	for _, lost := range []string{"once", "for good"} {
		ids := []string{lost + " a", lost + " b"}
		for _, id := range ids {
			s.foreign(id, limited)
		}
		rdb := s.server.Client(t)
		rdb.AddHook(&lossy{again: lost == "once"})
		s.throttle.waker.mover = asynqx.NewMover(rdb, s.inspector, slog.New(slog.DiscardHandler), s.seen.Failed)
		b := &backlog{types: map[string]bool{"work": true}, size: firstPage}
		got, err := s.throttle.planner.page(t.Context(), "default", b)
		states := s.states(ids...)
		switch {
		case lost == "once" && (err != nil || got.parked != 2 || !slices.Equal(states, []string{"scheduled", "scheduled"})):
			t.Errorf("lost once: %+v, %v, %q", got, err, states)
		case lost == "for good" && (err == nil || !slices.Equal(states, []string{"pending", "pending"})):
			t.Errorf("lost for good: %+v, %v, %q", got, err, states)
		}
		s.throttle.waker.mover = own
	}
}

// lossy loses the reply of each defer_tasks, and, if it is to, sends it again.
type lossy struct{ again bool }

func (*lossy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lossy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); len(args) > 1 && (args[1] == lua.DeferTasks.SHA() || args[1] == lua.DeferTasks.Source()) && err == nil {
			if l.again {
				return next(ctx, cmd)
			}
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return err
	}
}

func (*lossy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
