package worker

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// says is a log to look into.
type says struct{ programs.Output }

func (l *says) times(text string) int { return strings.Count(l.String(), text) }

func logTo(l *says) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// limits puts a policy in force.
func (s *system) limits(limits map[string]policy.ScopeConfig) {
	s.t.Helper()
	s.throttle.cfg.Limiter.SetPolicy(policyOf(s.t, limits))
}

func (s *system) refusals(why string) int {
	return s.seen.get(func(o *seen) int { return strings.Count(strings.Join(o.refused, " "), why) })
}

// "A task that reaches the worker of an application that may not spend from its scope waits
// for one that may, at any max retry, and is told loudly."
func TestOtherAppsTasksWait(t *testing.T) {
	t.Parallel()
	var log says
	s := newSystem(t, perHour(100), MiddlewareConfig{Logger: logTo(&log)})
	s.limits(map[string]policy.ScopeConfig{"p": {Apps: []string{"billing"}, Rules: perHour(100)}})
	ids := []string{"own", "own0", "foreign", "foreign0"}
	s.add(queue.Task{ID: "own"})
	s.add(queue.Task{ID: "own0", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.addForeign("foreign0", asynq.MaxRetry(0))
	s.serve(asynq.Config{}, nil)
	s.until("each has come several times", func() bool { return s.refusals("app") >= 3*len(ids) })
	for _, id := range ids {
		s.until(id+" waits", func() bool {
			i := s.info(id)
			return i != nil && (i.State == asynq.TaskStateRetry || i.State == asynq.TaskStateScheduled)
		})
		if i := s.info(id); i.Retried != 0 || id != "foreign0" && !strings.Contains(i.LastErr, "p is for billing") {
			t.Errorf("%s is %+v", id, i)
		}
	}
	if n := log.times("this worker's application may not spend from the scope"); n != 1 || log.times("p is for billing") != 1 {
		t.Errorf("it was told %d times", n)
	}
	allowed := s.throttle.cfg.Limiter.Policy()
	limiter, err := throttle.New(s.rdb, allowed, throttle.Config{App: "billing"})
	must(t, err)
	other := newSystemOn(t, s.rdb, allowed, MiddlewareConfig{})
	other.server, other.throttle.cfg.Limiter = s.server, limiter
	other.serve(asynq.Config{}, nil) // both serve the queue from now on
	other.haveEnded(len(ids))
	for _, id := range ids {
		if s.ran(id) != 0 || other.ran(id) != 1 {
			t.Errorf("%s ran %d times here and %d there", id, s.ran(id), other.ran(id))
		}
	}
	if archived, err := s.inspector.ListArchivedTasks("default"); err != nil || len(archived) > 0 {
		t.Errorf("archived: %v, %v", archived, err)
	}
	if _, failed := s.counters(); failed != 0 {
		t.Errorf("%d failures", failed)
	}
}

// Under unmatched: fail a task that has a place in line fails for good too when it is picked up.
func TestUnmatchedFails(t *testing.T) {
	t.Parallel()
	var log says
	s := newSystem(t, perHour(1), MiddlewareConfig{Logger: logTo(&log)})
	s.serve(asynq.Config{}, nil)
	s.add(queue.Task{ID: "runs"})
	<-s.ended
	s.add(queue.Task{ID: "stands"})
	s.is("stands", asynq.TaskStateRetry)
	p, err := policy.New(policy.UnmatchedFail, map[string]policy.ScopeConfig{"renamed": {Rules: perHour(100)}})
	must(t, err)
	s.throttle.cfg.Limiter.SetPolicy(p)
	must(t, s.inspector.RunTask("default", "stands")) // it would come by itself in an hour and a half
	if text := s.archived("stands"); !strings.Contains(text, "meets no rule") {
		t.Errorf("it failed with %q", text)
	}
	s.until("its place is given up", func() bool {
		queued, granted, err := s.throttle.cfg.Limiter.Waitlist().Standing(t.Context(), waitlist.Ref{Scope: "p/a", Queue: "default", ID: "stands"})
		return err == nil && !queued && !granted
	})
	if s.refusals("unmatched") != 0 || log.times("no rule matches") != 0 {
		t.Error("it is said that they wait")
	}
}

// "A limit lowered under a task's cost leaves it waiting", one that comes only then too; a cost that could never pass fails for good.
func TestLoweredUnderANewTask(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(10), MiddlewareConfig{})
	s.limits(map[string]policy.ScopeConfig{"p": {Rules: perHour(3)}})
	s.add(queue.Task{ID: "could", Cost: 5, MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "never", Cost: 11})
	s.serve(asynq.Config{}, nil)
	s.archived("never")
	s.is("could", asynq.TaskStateRetry)
	if s.refusals("cost") != 1 {
		t.Errorf("told %d times", s.refusals("cost"))
	}
	s.limits(map[string]policy.ScopeConfig{"p": {Rules: perHour(10)}})
	if id := <-s.ended; id != "could" {
		t.Errorf("%s ran", id)
	}
}

// Under New a task whose scope no rule knows, or that names none, follows unmatched: it waits, fails or runs. A task that no limit is
// for runs, and a negative cost fails with its reason, whatever unmatched says.
func TestNewFollowsUnmatched(t *testing.T) {
	t.Parallel()
	const (
		waits = "headway: waiting: "
		fails = "fails: "
		runs  = ""
	)
	noRule, noScope := `scope "newvendor/acme" meets no rule`, "no scope is named by this task of type "
	for unmatched, want := range map[string]map[string]string{
		"deny":  {"misspelt": waits + noRule, "last": waits + noRule, "unnamed": waits + noScope + `"unnamed"`, "unnamed last": waits + noScope, "free": runs, "negative": fails + "returns a cost of -1"},
		"fail":  {"misspelt": fails + noRule, "last": fails + noRule, "unnamed": fails + noScope + `"unnamed"`, "unnamed last": fails + noScope, "free": runs, "negative": fails + "returns a cost of -1"},
		"allow": {"misspelt": runs, "last": runs, "unnamed": runs, "unnamed last": runs, "free": runs, "negative": fails + "returns a cost of -1"},
	} {
		t.Run(unmatched, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limits, err := limitsyaml.Parse("limits.yaml", []byte("unmatched: "+unmatched+"\nlimits: {payments: {rules: [{name: r, algorithm: sliding-window, limit: 5, per: 1s}]}}"))
				must(t, err)
				_, rdb := redistest.Miniredis(t)
				t.Cleanup(synctest.Wait)
				var log says
				l, err := New(rdb, Config{Limits: limits, NoMetrics: true, Logger: logTo(&log), Summary: -1, Spends: func(task *asynq.Task) (string, int64) {
					switch kind, _, _ := strings.Cut(task.Type(), " "); kind {
					case "unnamed":
						return "", 1
					case "free":
						return Unlimited, 0
					case "negative":
						return "newvendor/acme", -1
					}
					return "newvendor/acme", 1
				}})
				must(t, err)
				client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
				for kind := range want {
					retry := 5
					if strings.HasSuffix(kind, "last") {
						retry = 0
					}
					_, err := client.Enqueue(asynq.NewTask(kind, nil), asynq.TaskID(kind), asynq.MaxRetry(retry))
					must(t, err)
				}
				var mu sync.Mutex
				var ran []string
				server := l.NewServer(asynq.Config{Concurrency: 4})
				must(t, server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, task.Type())
					return nil
				})))
				defer server.Shutdown()
				<-time.After(5 * time.Second)
				waiting := 0
				for kind, text := range want {
					state, last := "", ""
					if info, err := inspector.GetTaskInfo("default", kind); err == nil {
						state, last = info.State.String(), info.LastErr
					}
					mu.Lock()
					did := slices.Contains(ran, kind)
					mu.Unlock()
					switch rest, failed := strings.CutPrefix(text, fails); {
					case text == runs && did:
					case failed && state == "archived" && strings.Contains(last, rest) && !did:
					case strings.HasPrefix(text, waits) && (state == "retry" && strings.HasPrefix(last, text) || state == "scheduled" && strings.HasSuffix(kind, "last")) && !did:
						waiting++
					default:
						t.Errorf("%s is %s with %q and ran: %t; want %q", kind, state, last, did, text)
					}
				}
				if unmatched != "deny" {
					return
				}
				if n := log.times("level=WARN"); n != 3 || log.times("no rule matches the scope") != 3 || log.times("no scope is named by this task of type") != 2 || log.times("scope=newvendor/acme") != 1 {
					t.Errorf("%d warnings: %s", n, log.String())
				}
				allows, err := limitsyaml.Parse("limits.yaml", []byte("unmatched: allow\nlimits: {}"))
				must(t, err)
				l.Limiter().SetPolicy(allows)
				<-time.After(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if len(ran) != 1+waiting {
					t.Errorf("when they may, %q run", ran)
				}
			})
		})
	}
}

// "However many there are, they come back some at a time": 10,000 tasks cost some 220 pick-ups a second, and fewer 20 at most.
func TestRefusedComeBackSomeAtATime(t *testing.T) {
	t.Parallel()
	for tasks, most := range map[int]int{1: 1, 10: 15, 1000: 40, 10_000: 260} {
		var r refusedReturns
		begin, due, total := time.Unix(1_800_000_000, 0), map[int64]int{0: tasks}, 0 // due by second
		for second := int64(0); second < 600; second++ {
			now := begin.Add(time.Duration(second) * time.Second)
			if n := due[second]; second >= 60 && n > 2*most {
				t.Errorf("of %d tasks %d come in second %d, want %d at most", tasks, n, second, 2*most)
			} else if second >= 60 {
				total += n
			}
			for range due[second] {
				at := r.next(now, time.Second)
				if wait := at.Sub(now); wait < time.Second || wait > time.Minute {
					t.Fatalf("one of %d comes in %s", tasks, wait)
				}
				due[asynqx.SecondAtOrAfter(at)-begin.Unix()]++
			}
		}
		if total > 540*most || total < 540/2 {
			t.Errorf("of %d tasks %d come in 540 seconds, want %d at most", tasks, total, 540*most)
		}
	}
}
