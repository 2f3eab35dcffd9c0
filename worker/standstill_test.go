package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// low are n tasks of one scope in a queue of their own.
func low(n int) (tasks []queue.Task) {
	for i := range n {
		tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", Queue: "low", ID: fmt.Sprintf("low %05d", i)})
	}
	return tasks
}

// "No look": 20,000 tasks of a queue that is paused cost no more commands than a few, asked once a
// second, and a task of another queue behind them all, in the same line, starts at once.
func TestManyParkedCostLittle(t *testing.T) {
	t.Parallel()
	const seconds = 4
	s := newSystem(t, steady(100), MiddlewareConfig{})
	must(t, s.rdb.SAdd(t.Context(), "asynq:queues", "low").Err())
	must(t, s.inspector.PauseQueue("low"))
	s.planned(low(20_000)...)
	s.serve(asynq.Config{Concurrency: 8, Queues: map[string]int{"low": 1, "live": 1}}, nil)
	s.planned(queue.Task{Type: "work", Scope: "p/a", Queue: "live", ID: "behind them"})
	if id := <-s.ended; id != "behind them" {
		t.Errorf("%s ran, and its queue is paused", id)
	}
	s.until("nobody stands in line", func() bool { return s.rdb.Exists(t.Context(), "hw:{p}/a!queue").Val() == 0 })
	if n := s.rdb.ZCard(t.Context(), "hw:{p}!parked").Val(); n < 19_000 {
		t.Errorf("%d are parked", n)
	}
	if ttl := s.rdb.TTL(t.Context(), "hw:{p}!parked").Val(); ttl < time.Hour {
		t.Errorf("they are kept for %s", ttl)
	}
	s.until("those who went straight to the queue went back", func() bool { return s.rdb.ZCard(t.Context(), "hw:{p}!overdue").Val() == 0 })
	<-time.After(time.Second)
	// All other commands are asynq's, which moves what is due into pending meanwhile.
	own := redistest.Commands(t, s.rdb, func() { <-time.After(seconds * time.Second) })
	if looks, pages := own["time"], own["zrange"]; looks > 3*seconds || pages > 8*seconds {
		t.Errorf("%d looks and %d pages in %d s: %v", looks, pages, seconds, own)
	}
}

// Servers that are not ours count too, as asynq tells of them; where that can't be asked all queues
// are taken for served.
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

// "Then it has the place that it had": tasks of a higher priority that a lowered limit can't admit
// let the others pass, and go before them again as soon as the limit is what it was.
func TestLoweredAndRestored(t *testing.T) {
	t.Parallel()
	bucket := func(limit int64) []policy.Rule {
		return []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second, Burst: limit}}
	}
	inFakeTime(t, bucket(20), func(s *system) {
		const dear, cheap = 30, 100
		limits := s.throttle.cfg.Limiter
		if d, err := limits.Decide(s.t.Context(), throttle.Request{Scope: "p/a", Cost: 20}); err != nil || !d.Allowed {
			s.t.Fatalf("%+v, %v", d, err)
		}
		tasks := jobs(cheap, "p/a")
		for i := range dear {
			tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprintf("dear %02d", i), Cost: 10, Priority: 5})
		}
		s.planned(tasks...)
		var ran order
		s.serve(asynq.Config{Concurrency: 8}, ran.handle)
		has := func(n int, prefix string) {
			s.until(fmt.Sprintf("%d of %s have run", n, prefix), func() bool { return len(ran.from(prefix)) >= n })
		}
		has(3, "dear")
		limits.SetPolicy(policyOfP(s.t, bucket(5)))
		has(10, "p/a")
		before := len(ran.from(""))
		limits.SetPolicy(policyOfP(s.t, bucket(20)))
		has(dear, "dear")
		passed := 0
		for _, id := range ran.from("")[before:] {
			if id == "dear 29" {
				break
			}
			if !strings.HasPrefix(id, "dear") {
				passed++
			}
		}
		if passed > 5 {
			s.t.Errorf("%d of priority 0 went before those of priority 5, which fit again: %v", passed, ran.from(""))
		}
		if got := ran.from("dear"); !slices.IsSorted(got) {
			s.t.Errorf("they ran as %v", got)
		}
		s.finish(dear + cheap)
	})
}

// Tasks that are deleted or archived while a lowered limit refuses them leave nothing behind.
func TestNoTraceOfTooDearTasksDeleted(t *testing.T) {
	t.Parallel()
	bucket := func(limit int64) []policy.Rule {
		return []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second, Burst: limit}}
	}
	for name, end := range map[string]func(*asynq.Inspector, string) error{
		"deleted":  func(i *asynq.Inspector, id string) error { return i.DeleteTask("default", id) },
		"archived": func(i *asynq.Inspector, id string) error { return i.ArchiveTask("default", id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, bucket(20), func(s *system) {
				const dear = 30
				limits := s.throttle.cfg.Limiter
				if d, err := limits.Decide(s.t.Context(), throttle.Request{Scope: "p/a", Cost: 20}); err != nil || !d.Allowed {
					s.t.Fatalf("%+v, %v", d, err)
				}
				var tasks []queue.Task
				for i := range dear {
					tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprintf("dear %02d", i), Cost: 10})
				}
				s.planned(tasks...)
				limits.SetPolicy(policyOfP(s.t, bucket(5)))
				s.serve(asynq.Config{Concurrency: 8}, nil)
				s.until("all are parked", func() bool { return s.rdb.ZCard(s.t.Context(), "hw:{p}!parked").Val() >= dear })
				for _, task := range tasks {
					must(s.t, end(s.inspector, task.ID))
				}
				ends := time.Now().Add(time.Minute)
				for time.Now().Before(ends) && len(s.traces()) > 0 {
					<-time.After(100 * time.Millisecond)
				}
				if left := s.traces(); len(left) > 0 {
					s.t.Errorf("a minute later %d keys are left: %q, %d parked", len(left), left, s.rdb.ZCard(s.t.Context(), "hw:{p}!parked").Val())
				}
			})
		})
	}
}

// "At once when limits change …, and two seconds after a process starts": all that fit again go back.
func TestFitAgainAfterARestart(t *testing.T) {
	t.Parallel()
	bucket := func(limit int64) []policy.Rule {
		return []policy.Rule{{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second, Burst: limit}}
	}
	for name, restart := range map[string]bool{"changed": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, bucket(1000), func(s *system) {
				const dear, scopes = 2000, 20
				limits := s.throttle.cfg.Limiter
				if d, err := limits.Decide(s.t.Context(), throttle.Request{Scope: "p/a", Cost: 1000}); err != nil || !d.Allowed {
					s.t.Fatalf("%+v, %v", d, err)
				}
				var tasks []queue.Task
				for i := range dear {
					tasks = append(tasks, queue.Task{Type: "work", Scope: fmt.Sprintf("p/s%02d", i*scopes/dear), ID: fmt.Sprintf("dear %04d", i), Cost: 10})
				}
				s.planned(tasks...)
				limits.SetPolicy(policyOfP(s.t, bucket(5)))
				server := s.serve(asynq.Config{Concurrency: 8}, nil)
				parked := func() int64 { return s.rdb.ZCard(s.t.Context(), "hw:{p}!parked").Val() }
				s.until("all are parked", func() bool { return parked() >= dear*9/10 && s.rdb.Exists(s.t.Context(), "hw:{p}!schedule").Val() == 0 })
				if restart {
					server.Shutdown()
					newSystemOn(s.t, s.rdb, policyOfP(s.t, bucket(1000)), MiddlewareConfig{}).serve(asynq.Config{Concurrency: 8}, nil)
				} else {
					limits.SetPolicy(policyOfP(s.t, bucket(1000)))
				}
				began := time.Now()
				s.until("all are back", func() bool { return parked() < scopes+1 })
				if took := time.Since(began); took > 3*time.Second {
					s.t.Errorf("they were back after %v", took)
				}
			})
		})
	}
}

// "When hours begin or end, those who wait are looked at in all workers at that moment": those too
// who cost too much while the hours last.
func TestTooDearWhileHoursLast(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{
		{Name: "r", Algorithm: policy.TokenBucket, Limit: 20, Per: time.Second, Burst: 20},
		{Name: "low", Algorithm: policy.TokenBucket, Limit: 5, Per: time.Second, Burst: 5, Active: wallclock.MustParseWindow("1 * * * *", "UTC")},
	}
	inFakeTime(t, rules, func(s *system) {
		const dear = 800
		var tasks []queue.Task
		for i := range dear {
			tasks = append(tasks, queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprintf("dear %04d", i), Cost: 10})
		}
		s.planned(tasks...)
		<-time.After(100 * time.Second) // the hours are on, and their end is near
		s.serve(asynq.Config{Concurrency: 8}, nil)
		parked := func() int64 { return s.rdb.ZCard(s.t.Context(), "hw:{p}!parked").Val() }
		s.until("all are parked", func() bool { return parked() > 600 })
		minute := time.Now().Minute()
		s.until("the hours are over", func() bool { return time.Now().Minute() != minute })
		began := time.Now()
		s.until("all are back", func() bool { return parked() <= 1 })
		if took := time.Since(began); took > 3*time.Second {
			s.t.Errorf("they were back %v after the hours", took)
		}
	})
}
