package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// short is a patience that a test can wait for, and spent a rule that one task uses up for an hour.
const short = time.Second

func spent(maxWait time.Duration) []policy.Rule {
	return []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour, MaxWait: maxWait}}
}

// full is a rule that one run uses up for as long as it takes: no clock tells when.
func full(maxWait time.Duration) []policy.Rule {
	return []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1, MaxWait: maxWait}}
}

// blocked starts a server whose only place a task has until the test ends.
func blocked(t *testing.T, rules []policy.Rule, cfg MiddlewareConfig) *system {
	t.Helper()
	s, _ := blockedUntil(t, rules, cfg)
	return s
}

// blockedUntil is blocked, until what it returns is called.
func blockedUntil(t *testing.T, rules []policy.Rule, cfg MiddlewareConfig) (*system, func()) {
	t.Helper()
	s := newSystem(t, rules, cfg)
	began, unblock := s.serveBlocker(asynq.Config{}, nil)
	s.add(queue.Task{ID: "blocks"})
	<-began
	return s, unblock
}

// serveBlocker has the task "blocks" run until end is called, and others end so.
func (s *system) serveBlocker(cfg asynq.Config, others error) (began chan struct{}, end func()) {
	s.t.Helper()
	began, over := make(chan struct{}), make(chan struct{})
	s.serve(cfg, func(ctx context.Context, _ *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id != "blocks" {
			return others
		}
		close(began)
		<-over
		return nil
	})
	end = sync.OnceFunc(func() { close(over) })
	s.t.Cleanup(end) // before the server's
	return began, end
}

// archived waits until a task is, and returns why.
func (s *system) archived(id string) string {
	s.t.Helper()
	return s.is(id, asynq.TaskStateArchived).LastErr
}

func (s *system) gone(id string) {
	s.t.Helper()
	s.until(id+" is gone", func() bool { return s.info(id) == nil })
}

func waitOn(context.Context, Expired) Action { return Action{} }

// "The shorter of the task's max_wait and of those of the rules that limit it counts",
// for tasks of ours and of others, on their last attempt too.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	long := time.Hour
	for name, tt := range map[string]struct {
		rules []policy.Rule
		add   func(s *system)
		says  string
	}{
		"of a task":             {full(0), func(s *system) { s.add(queue.Task{ID: "t", MaxWait: short}) }, "its max_wait is 1s"},
		"of a rule":             {full(short), func(s *system) { s.add(queue.Task{ID: "t"}) }, "its max_wait is 1s"},
		"the task's is shorter": {full(long), func(s *system) { s.add(queue.Task{ID: "t", MaxWait: short}) }, "its max_wait is 1s"},
		"the rule's is shorter": {full(short), func(s *system) { s.add(queue.Task{ID: "t", MaxWait: long}) }, "its max_wait is 1s"},
		"no retries":            {full(0), func(s *system) { s.add(queue.Task{ID: "t", MaxWait: short, MaxRetry: queue.Retries(0)}) }, "its max_wait is 1s"},
		"after a delay":         {full(0), func(s *system) { s.add(queue.Task{ID: "t", MaxWait: short, Delay: time.Second}) }, "its max_wait is 1s"},
		"planned":               {full(0), func(s *system) { s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "t", MaxWait: short}) }, "its max_wait is 1s"},
		"planned, of a rule":    {full(short), func(s *system) { s.planned(queue.Task{Type: "work", Scope: "p/a", ID: "t"}) }, "its max_wait is 1s"},
		"foreign":               {full(short), func(s *system) { s.addForeign("t", asynq.MaxRetry(3)) }, "its max_wait is 1s"},
		"foreign, last attempt": {full(short), func(s *system) { s.addForeign("t", asynq.MaxRetry(0)) }, "its max_wait is 1s"},
		"known to outlast it":   {spent(time.Minute), func(s *system) { s.add(queue.Task{ID: "t"}) }, "and can't start in time for rule r of p; its max_wait is 1m0s"},
		"a deadline after it":   {spent(time.Minute), func(s *system) { s.add(queue.Task{ID: "t", Deadline: time.Now().Add(2 * time.Minute)}) }, "its max_wait is 1m0s"},
		"a deadline before it":  {spent(2 * time.Minute), func(s *system) { s.add(queue.Task{ID: "t", Deadline: time.Now().Add(time.Minute)}) }, "after its deadline of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := blocked(t, tt.rules, MiddlewareConfig{OnMaxWait: Fail()})
			added := time.Now()
			tt.add(s)
			why := s.archived("t")
			if !strings.Contains(why, tt.says) || !strings.HasPrefix(why, "headway: ") || !strings.Contains(why, "rule r of p") {
				t.Errorf("it failed with %q", why)
			}
			if early := strings.Contains(tt.says, "1s") && time.Since(added) < short; early {
				t.Errorf("it failed after %v", time.Since(added))
			}
			if s.ran("t") != 0 {
				t.Error("it ran")
			}
		})
	}
}

// "Waits on" is the default, and what a function may say: "one that panics lets it wait".
func TestPatienceWaitsOn(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]MaxWaitPolicy{
		"default": nil,
		"zero":    waitOn,
		"panics":  func(context.Context, Expired) Action { panic("no") },
		"here":    MoveTo("default"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan Expired, 100)
			cfg := MiddlewareConfig{OnMaxWait: patience}
			if patience != nil {
				cfg.OnMaxWait = func(ctx context.Context, w Expired) Action { asked <- w; return patience(ctx, w) }
			}
			s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 3 * time.Second}}, cfg)
			s.add(queue.Task{ID: "first"})
			s.serve(asynq.Config{}, nil)
			<-s.ended
			s.add(queue.Task{ID: "t", MaxWait: short, MaxRetry: queue.Retries(0)})
			if patience != nil {
				if w := <-asked; w.ID != "t" || w.Queue != "default" || w.Scope != "p/a" || w.Rule != "r" || w.RuleScope != "p" ||
					w.MaxWait != short || w.Task.Type() != "work" {
					t.Errorf("asked of %+v", w)
				}
			}
			if id := <-s.ended; id != "t" || s.ran("t") != 1 {
				t.Errorf("%s ran", id)
			}
			if n := s.seen.get(func(o *seen) int { return len(o.became) }); n != 0 {
				t.Errorf("%d were told to have ended", n)
			}
			s.gone("t")
		})
	}
}

// "Ends the task without running it, without a failure and without a retry. It is recorded".
func TestDrop(t *testing.T) {
	t.Parallel()
	var recorded []Expired
	s := blocked(t, full(short), MiddlewareConfig{OnMaxWait: Drop(func(w Expired) { recorded = append(recorded, w) })})
	s.add(queue.Task{ID: "kept", Remember: time.Hour})
	s.is("kept", asynq.TaskStateCompleted)
	var result dropped
	must(t, json.Unmarshal(s.info("kept").Result, &result))
	if !result.Dropped || result.Scope != "p/a" || result.Rule != "r" || result.WaitedMS < 1000 || result.MaxWaitMS != 1000 {
		t.Errorf("its result is %+v", result)
	}
	s.addForeign("foreign", asynq.MaxRetry(0))
	s.until("it was dropped", func() bool { return s.seen.get(func(o *seen) int { return len(o.became) }) == 2 })
	s.gone("foreign")
	s.onlyWait(0)
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("asynq counts %d failures", failed)
	}
	if len(recorded) != 2 || recorded[0].ID != "kept" || recorded[1].ID != "foreign" || s.ran("kept")+s.ran("foreign") != 0 {
		t.Errorf("recorded %+v, ran %v", recorded, s.runs)
	}
	if got := s.seen.became; !slices.Equal(got, []string{"dropped", "dropped"}) {
		t.Errorf("the observer was told %v", got)
	}
}

// "Runs handler instead of the task's own. It spends nothing. Its error counts as the task's own run": one that failed and is
// retried keeps its place, and so does one that is put off; those who have ended leave their line.
func TestFallback(t *testing.T) {
	t.Parallel()
	answered, spends := make(chan string, 10), &spendings{}
	s := blocked(t, full(short), MiddlewareConfig{Usage: spends, OnMaxWait: Fallback(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		answered <- id
		switch id {
		case "fails", "retried":
			return errors.New("no answer in the cache")
		case "put off":
			return busy{wait: time.Hour, known: true}
		}
		return nil
	}))})
	s.add(queue.Task{ID: "answered", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.add(queue.Task{ID: "fails", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "retried", MaxRetry: queue.Retries(3)})
	s.add(queue.Task{ID: "put off"})
	if why := s.archived("fails"); why != "no answer in the cache" {
		t.Errorf("it failed with %q", why)
	}
	s.gone("answered")
	s.gone("foreign")
	s.until("each has fallen back", func() bool { return len(answered) >= 5 })
	s.onlyWait(2)
	if s.ran("answered")+s.ran("foreign")+s.ran("fails") != 0 || len(answered) != 5 {
		t.Errorf("%v ran, and %d fallbacks", s.runs, len(answered))
	}
	spends.mu.Lock()
	defer spends.mu.Unlock()
	spent := slices.DeleteFunc(slices.Clone(spends.all), func(line string) bool { return strings.HasPrefix(line, "ended ") })
	if len(spent) > 1 { // what is in their way has spent
		t.Errorf("fallbacks have spent: %q", spends.all)
	}
}

// "Under the same id, type, payload, headers, retention, with the retries that it has left": it runs there once, and is gone from here.
func TestMoveTo(t *testing.T) {
	t.Parallel()
	s := blocked(t, full(short), MiddlewareConfig{OnMaxWait: MoveTo("slow")})
	s.add(queue.Task{ID: "own", Payload: []byte(`{"a":1}`), Remember: time.Hour, MaxRetry: queue.Retries(2), Priority: 3})
	s.addForeign("foreign", asynq.MaxRetry(0))
	for id, retries := range map[string]string{"own": "2", "foreign": "0"} {
		s.gone(id)
		var info *asynq.TaskInfo
		s.until(id+" is let go there", func() bool {
			var err error
			info, err = s.inspector.GetTaskInfo("slow", id)
			return err == nil && info.State == asynq.TaskStatePending
		})
		spec, found, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
		if !found || err != nil || spec.Scope != "p/a" || info.Headers[queue.HeaderMaxRetry] != retries || info.Type != "work" || spec.ID != id {
			t.Errorf("%s: %+v %v", id, spec, err)
		}
		if age := time.Since(spec.Due); age < 0 || age > bound {
			t.Errorf("%s: its patience began %v ago", id, age)
		}
		switch {
		case id == "own" && (string(info.Payload) != `{"a":1}` || spec.Priority != 3 || info.Retention != time.Hour):
			t.Errorf("%+v", info)
		case id == "foreign" && (info.Headers["x-own"] != "foreign" || string(info.Payload) != `{"id":"foreign"}`):
			t.Errorf("%+v", info)
		}
	}
	s.onlyWait(0)
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("asynq counts %d failures", failed)
	}
	if n := s.ran("own") + s.ran("foreign"); n != 0 {
		t.Errorf("%d ran here", n)
	}
}

// movedBy returns what a handler is asked of for a task that is to be moved.
func movedBy(s *system, id string) (context.Context, *job) {
	info := s.info(id)
	task := asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers)
	j := &job{task: task, id: id, queue: "default"}
	must(s.t, s.throttle.spends(j))
	return s.t.Context(), j
}

// "Wherever a crash comes between, it is there or here": a move that is done again finds
// the task there. "A task whose id another task has there stays where it is."
func TestMoveAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "twice"})
	ctx, j := movedBy(s, "twice")
	must(t, s.throttle.move(ctx, j, "slow"))
	first, err := s.inspector.GetTaskInfo("slow", "twice")
	if err != nil || first.State != asynq.TaskStateScheduled || time.Until(first.NextProcessAt) < 4*time.Minute {
		t.Fatalf("%+v, %v: asynq must keep it until the one here is gone", first, err)
	}
	must(t, s.throttle.move(ctx, j, "slow"))

	s.add(queue.Task{ID: "other", Payload: []byte("1")})
	s.add(queue.Task{ID: "other", Queue: "slow", Payload: []byte("2")})
	ctx, j = movedBy(s, "other")
	if err := s.throttle.move(ctx, j, "slow"); !errors.Is(err, errIDTaken) {
		t.Errorf("it was moved over another task: %v", err)
	}
	if info, err := s.inspector.GetTaskInfo("slow", "other"); err != nil || string(info.Payload) != "2" {
		t.Errorf("%+v, %v", info, err)
	}
}

// waitsSince is when a task began to wait that has so many retries left, the zero time where nothing is kept of it.
func (s *system) waitsSince(id string, retries int) time.Time {
	return s.throttle.loadWait(s.t.Context(), &job{queue: "default", id: id, allowed: retries})
}

// "Being put back does not begin the wait anew", nor does another worker: the moment is kept beside
// the task, until an hour after it is to come again.
func TestWaitSurvives(t *testing.T) {
	t.Parallel()
	s := blocked(t, full(time.Hour), MiddlewareConfig{OnMaxWait: Fail()})
	s.addForeign("t", asynq.MaxRetry(3))
	var since time.Time
	s.until("it waits", func() bool {
		since = s.waitsSince("t", 3)
		info := s.info("t")
		return !since.IsZero() && info != nil && info.State == asynq.TaskStateRetry && info.LastErr == "headway: waiting: p/a, rule r"
	})
	if time.Since(since) > bound {
		t.Errorf("since %v", since)
	}
	for range 3 {
		n := s.seen.get(func(o *seen) int { return o.rescheduled })
		must(t, s.inspector.RunTask("default", "t"))
		s.until("it is put back", func() bool { return s.seen.get(func(o *seen) int { return o.rescheduled }) > n })
		s.until("it waits since the same moment", func() bool {
			info := s.info("t")
			return info != nil && info.State == asynq.TaskStateRetry && s.waitsSince("t", 3).Equal(since)
		})
	}
	info := s.info("t")
	ttl := s.rdb.PTTL(t.Context(), waitKey(&job{queue: "default", id: "t", allowed: 3})).Val()
	if least := time.Until(info.NextProcessAt) + waitStays - time.Minute; ttl < least || ttl > least+2*time.Hour {
		t.Errorf("what is kept of it goes in %v, and it comes in %v", ttl, time.Until(info.NextProcessAt))
	}
}

// "Its wait begins anew after a real failure": the retry waits for its own max_wait, and keeps the text of that failure. That text, such
// as an API's answer that looks like a waiting task's, does not change the wait.
func TestWaitBeginsAnew(t *testing.T) {
	t.Parallel()
	const forged = "500 (headway: it waits since 2001-01-01T00:00:00Z)"
	s := newSystem(t, full(2*time.Second), MiddlewareConfig{OnMaxWait: Fail()})
	began, _ := s.serveBlocker(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 3 * time.Second }}, errors.New(forged))
	s.add(queue.Task{ID: "own"})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.haveEnded(2)
	s.add(queue.Task{ID: "blocks"})
	<-began
	for id, retries := range map[string]int{"own": queue.DefaultMaxRetry - 1, "foreign": 2} {
		s.until(id+" waits after its failure", func() bool {
			info := s.info(id)
			return info != nil && info.LastErr == forged && time.Since(s.waitsSince(id, retries)) < bound
		})
	}
	for _, id := range []string{"own", "foreign"} {
		if why := s.archived(id); !strings.Contains(why, "its max_wait is 2s") {
			t.Errorf("%s failed with %q", id, why)
		}
	}
}

// setOff has a server's clock be off, to the millisecond, until the test's context ends.
func setOff(t *testing.T, m *miniredis.Miniredis, off time.Duration) {
	t.Helper()
	m.SetTime(time.Now().Add(off))
	tick := time.NewTicker(time.Millisecond)
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.SetTime(time.Now().Add(off))
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// "Waits go by Redis's clock": what a worker's own clock shows ends no task's patience, and makes none
// longer. One is an hour ahead of Redis's here, as if it had jumped, or an hour behind.
func TestWaitsGoByRedissClock(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": -time.Hour, "behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, rdb := redistest.Miniredis(t)
				setOff(t, m, off)
				s := newSystemOn(t, rdb, policyOfP(t, full(10*time.Minute)), MiddlewareConfig{OnMaxWait: Fail()})
				d, err := s.throttle.cfg.Limiter.Decide(t.Context(), throttle.Request{Scope: "p/a"})
				must(t, err)
				ctx, lease := s.throttle.cfg.Limiter.Lease(t.Context(), d.Grant)
				t.Cleanup(func() { _ = lease.Release(context.WithoutCancel(ctx)) })
				// Another worker, whose clock is right, has put it back ten minutes less three seconds ago.
				s.addForeign("t", asynq.MaxRetry(3))
				since := time.Now().Add(off - 10*time.Minute + 3*time.Second)
				must(t, rdb.Set(t.Context(), "hw:wait:{default}:3:t", fmt.Sprint(since.UnixMicro(), " 0"), 0).Err())
				began := time.Now()
				s.serve(asynq.Config{}, nil)
				why := s.archived("t")
				if took := time.Since(began); took < 2*time.Second || took > 5*time.Second || !strings.Contains(why, "waited 10m") {
					t.Errorf("it ended after %v: %s", took, why)
				}
			})
		})
	}
}
