package peers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/upstream"
)

// tests/rate_limiter.test.ts of BullMQ, and what a queue of asynq's does under Headway in the same
// steps. BullMQ needs Node, so the figures are those of its tests. Each runs in a bubble of fake time.
//
// Its tests of flows, of a queue that is obliterated and of lost jobs have no counterpart: asynq has
// no flows, and what becomes of tasks that are deleted is docs/asynq.md's to say.

// shop is a stage whose runs are counted.
type shop struct {
	*stage
	made *queue.Client

	mu     sync.Mutex
	starts []time.Duration // since the bubble began, in whole microseconds, as Redis's clock shows them
	order  []string
	now    int // runs at this moment
	most   int
}

// newShop has a rule for all tasks: so many in any duration, as BullMQ's limiter: {max, duration}.
func newShop(t *testing.T, most int64, duration time.Duration) *shop {
	t.Helper()
	s := &shop{stage: newStage(t, limiterOf(most, duration))}
	s.made = queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.limiter})
	return s
}

// limiterOf is a limits.yaml in which an API's answers pause and cut nothing, as BullMQ's do.
func limiterOf(most int64, duration time.Duration) string {
	return fmt.Sprintf(`limits: {api: {answers: pause, rules: [{name: rule, algorithm: sliding-window, limit: %d, per: %s}]}}`, most, duration)
}

// without is the same without the rule.
const without = `limits: {api: {answers: pause, rules: [{name: rule, unlimited: true}]}}`

func (s *shop) set(limits string) {
	s.t.Helper()
	policy, err := limitsyaml.Parse("limits", []byte(limits))
	s.must(err)
	s.limiter.SetPolicy(policy)
}

// bulk enqueues n tasks with asynq's client.
func (s *shop) bulk(name string, n int, opts ...asynq.Option) {
	s.t.Helper()
	for i := range n {
		s.must(s.add(fmt.Sprint(name, " ", i+1), opts...))
	}
}

// counted is a handler that counts runs, around another; nil takes no time.
func (s *shop) counted(work func(context.Context) error) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		s.mu.Lock()
		s.starts, s.order = append(s.starts, time.Since(s.began).Truncate(µs)), append(s.order, id(ctx))
		s.now++
		s.most = max(s.most, s.now)
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.now--
			s.mu.Unlock()
		}()
		if work == nil {
			return nil
		}
		return work(ctx)
	})
}

func lasting(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		<-time.After(d)
		return nil
	}
}

// ran returns the starts by now.
func (s *shop) ran() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.starts)
}

// spread fails unless n tasks have run, never more than most in a duration, and the last of them no
// sooner than the limit lets it and no more than half a second later.
func (s *shop) spread(n, most int, duration time.Duration) {
	s.t.Helper()
	starts := s.ran()
	if len(starts) != n {
		s.t.Fatalf("%d tasks ran, want %d: %v", len(starts), n, starts)
	}
	for i := most; i < n; i++ {
		if gap := starts[i] - starts[i-most]; gap < duration {
			s.t.Errorf("starts %d and %d are %s apart, want %s", i-most, i, gap, duration)
		}
	}
	least := time.Duration((n-1)/most) * duration
	if took := starts[n-1] - starts[0]; took < least || took > least+500*time.Millisecond {
		s.t.Errorf("%d tasks took %s, want %s: %v", n, took, least, starts)
	}
}

// refusal is an answer of an API that says to come back later: BullMQ's rateLimit(ms) and RateLimitError.
type refusal time.Duration

func (r refusal) Error() string {
	return fmt.Sprintf("the API wants to be asked in %s", time.Duration(r))
}

func (r refusal) DeferBy() (wait time.Duration, known, deferred bool) {
	return time.Duration(r), true, true
}

// refuse pauses the scope for all, and puts the task off.
func (s *shop) refuse(ctx context.Context, wait time.Duration) error {
	if _, err := s.limiter.Report(ctx, "api", upstream.Hint{Limited: true, Retry: wait, RetryKnown: true}); err != nil {
		return err
	}
	return refusal(wait)
}

// once has work done by the first run of each task alone.
func once(work func(context.Context) error) func(context.Context) error {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(ctx context.Context) error {
		mu.Lock()
		again := seen[id(ctx)]
		seen[id(ctx)] = true
		mu.Unlock()
		if again {
			return nil
		}
		return work(ctx)
	}
}

func TestBullMQ(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*testing.T){
		"limited tasks wait apart": func(t *testing.T) {
			decided(t, "Where a limited task stands")
			s := newShop(t, 1, time.Second)
			s.bulk("a", 5)
			s.serve(asynq.Config{Concurrency: 5}, s.counted(lasting(200*time.Millisecond)))
			s.after(1100 * time.Millisecond) // theirs looks after 100 ms; a server of asynq's looks once a second
			info, err := s.inspector.GetQueueInfo("default")
			s.must(err)
			if held := info.Retry + info.Scheduled; len(s.ran()) == 0 || held == 0 || info.Failed != 0 || info.Archived != 0 {
				t.Errorf("after %d starts %d wait in asynq's sets: %+v", len(s.ran()), held, info)
			}
		},
		"one a second": func(t *testing.T) {
			s := newShop(t, 1, time.Second)
			s.bulk("a", 10)
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(15 * time.Second)
			s.spread(10, 1, time.Second)
		},
		"two a second": func(t *testing.T) {
			decided(t, "Windows")
			s := newShop(t, 2, time.Second)
			s.bulk("a", 10)
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(15 * time.Second)
			s.spread(10, 2, time.Second)
		},
		"a limit that is set while the queue runs": func(t *testing.T) {
			s := newShop(t, 1000, time.Second)
			s.serve(asynq.Config{}, s.counted(nil))
			s.set(limiterOf(1, 500*time.Millisecond))
			s.bulk("a", 10)
			s.after(15 * time.Second)
			s.spread(10, 1, 500*time.Millisecond)
		},
		"a limit that is removed before there are tasks": func(t *testing.T) {
			s := newShop(t, 1, 500*time.Millisecond)
			s.set(without)
			s.bulk("a", 10)
			s.serve(asynq.Config{Concurrency: 1}, s.counted(nil))
			s.after(10 * time.Second)
			if starts := s.ran(); len(starts) != 10 || starts[9]-starts[0] > 150*time.Millisecond {
				t.Errorf("ten tasks without a limit started at %v", starts)
			}
		},
		"a limit that is removed while tasks wait": func(t *testing.T) {
			s := newShop(t, 1, 10*time.Second)
			s.bulk("a", 4)
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(1500 * time.Millisecond)
			if n := len(s.ran()); n != 1 {
				t.Errorf("%d ran under the limit", n)
			}
			s.set(without)
			s.after(1500 * time.Millisecond)
			if n := len(s.ran()); n != 4 {
				t.Errorf("%d of 4 have run 1.5 s after the limit went", n)
			}
		},
		"to wait is no part of a run": func(t *testing.T) {
			s, slow := newShop(t, 4, time.Second), 0
			s.bulk("a", 40)
			s.serve(asynq.Config{Concurrency: 5}, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				began := time.Now()
				err := s.counted(lasting(4*time.Millisecond)).ProcessTask(ctx, task)
				if time.Since(began) > time.Second {
					slow++
				}
				return err
			}))
			s.after(20 * time.Second)
			s.spread(40, 4, time.Second)
			if slow > 0 {
				t.Errorf("%d runs took longer than a second", slow)
			}
		},
		"a worker closes quickly, however slow its limit": func(t *testing.T) {
			s := newShop(t, 1, time.Minute)
			s.bulk("a", 2)
			srv := s.server(asynq.Config{})
			s.must(srv.Start(s.counted(nil)))
			s.after(5 * time.Second)
			began := time.Now()
			srv.Shutdown()
			if took := time.Since(began); took > 2*time.Second { // asynq's own parts end by their intervals
				t.Errorf("it took %s", took)
			}
			if info, err := s.inspector.GetQueueInfo("default"); err != nil || info.Size != 1 || info.Archived != 0 {
				t.Errorf("%+v, %v: one task is to be left", info, err)
			}
		},
		"a run that never ends holds up no other": func(t *testing.T) {
			s, end := newShop(t, 5, time.Second), make(chan struct{})
			s.must(s.add("hangs"))
			s.bulk("a", 20)
			s.serve(asynq.Config{Concurrency: 2}, s.counted(func(ctx context.Context) error {
				if id(ctx) == "hangs" {
					<-end
				}
				return nil
			}))
			s.after(15 * time.Second)
			s.spread(21, 5, time.Second)
			close(end)
		},
		"a queue that is paused keeps what waits": func(t *testing.T) {
			s := newShop(t, 1, 2*time.Second)
			for range 4 {
				s.anew()
				s.serve(asynq.Config{}, s.counted(nil))
			}
			s.bulk("a", 4)
			s.after(1500 * time.Millisecond)
			s.must(s.inspector.PauseQueue("default"))
			s.after(20 * time.Second)
			if n := len(s.ran()); n != 1 {
				t.Errorf("%d have run, of a queue that was paused after the first", n)
			}
			s.must(s.inspector.UnpauseQueue("default"))
			s.after(20 * time.Second)
			if n := len(s.ran()); n != 4 {
				t.Errorf("%d of 4 have run", n)
			}
		},
		"an API that asks for time": func(t *testing.T) {
			s := newShop(t, 1, 100*time.Millisecond)
			s.bulk("a", 10)
			const wait = 250 * time.Millisecond
			var told []time.Duration
			s.serve(asynq.Config{}, s.counted(once(func(ctx context.Context) error {
				s.mu.Lock()
				told = append(told, time.Since(s.began))
				s.mu.Unlock()
				return s.refuse(ctx, wait)
			})))
			s.after(time.Minute)
			starts := s.ran()
			if len(starts) != 20 || len(told) != 10 {
				t.Fatalf("%d runs and %d refusals, want each task to run twice", len(starts), len(told))
			}
			for _, at := range told {
				for _, start := range starts {
					if start > at && start < at+wait-time.Microsecond { // Redis tells no shorter time
						t.Errorf("a start at %s, in the pause from %s on", start, at)
					}
				}
			}
			if took := starts[19] - starts[0]; took < 10*wait+9*100*time.Millisecond {
				t.Errorf("ten pauses and twenty starts took %s", took)
			}
			if seen := s.seen(); seen[len(seen)-1] != "processed 10, failed 0, ErrorHandler 0" {
				t.Errorf("the refusals were counted: %s", seen[len(seen)-1])
			}
		},
		"a pause that is over before it is seen": func(t *testing.T) {
			s := newShop(t, 1, 100*time.Millisecond)
			s.bulk("a", 10)
			s.serve(asynq.Config{}, s.counted(once(func(ctx context.Context) error { return s.refuse(ctx, time.Millisecond) })))
			s.after(time.Minute)
			if n := len(s.ran()); n != 20 {
				t.Errorf("%d runs, want 20", n)
			}
		},
		"how long until there is room": func(t *testing.T) {
			for most, want := range map[int64]time.Duration{2: 0, 1: 100 * time.Millisecond} {
				s := newShop(t, most, 100*time.Millisecond)
				for i, want := range []time.Duration{0, want} {
					d, err := s.limiter.Peek(t.Context(), throttle.Request{Scope: "api"})
					s.must(err)
					if d.RetryAfter != want {
						t.Errorf("of %d, after %d: %s, want %s", most, i, d.RetryAfter, want)
					}
					_, err = s.limiter.Allow(t.Context(), "api")
					s.must(err)
				}
			}
		},
		"a task that was put off fails for good when it says so": func(t *testing.T) {
			decided(t, "Attempts")
			s := newShop(t, 1, 100*time.Millisecond)
			s.must(s.add("a", asynq.MaxRetry(1)))
			var counts []int
			s.serve(asynq.Config{}, s.counted(func(ctx context.Context) error {
				n, _ := asynq.GetRetryCount(ctx)
				if counts = append(counts, n); len(counts) == 1 {
					return s.refuse(ctx, 550*time.Millisecond)
				}
				return asynq.SkipRetry
			}))
			s.after(time.Minute)
			starts := s.ran()
			if len(starts) != 2 || starts[1]-starts[0] < 550*time.Millisecond {
				t.Errorf("it ran at %v", starts)
			}
			if !slices.Equal(counts, []int{0, 0}) { // theirs says 1 and 2 attempts
				t.Errorf("its retries were counted as %v", counts)
			}
			if info, err := s.inspector.GetTaskInfo("default", "a"); err != nil || info.State != asynq.TaskStateArchived {
				t.Errorf("%+v, %v", info, err)
			}
		},
		"those who wait with one priority come in their order": func(t *testing.T) {
			s := newShop(t, 1, 100*time.Millisecond)
			s.byPriority(10, 10, 10, 10)
			if want := []string{"1", "2", "3", "4"}; !slices.Equal(s.order, want) {
				t.Errorf("they ran as %v", s.order)
			}
		},
		"those who wait with several priorities come by them": func(t *testing.T) {
			decided(t, "Priorities")
			s := newShop(t, 1, 100*time.Millisecond)
			s.byPriority(1, 2, 1, 2)
			if want := []string{"1", "3", "2", "4"}; !slices.Equal(s.order, want) {
				t.Errorf("they ran as %v", s.order)
			}
		},
		"ten tasks of four priorities": func(t *testing.T) {
			s := newShop(t, 1, 10*time.Millisecond)
			s.byPriority(1, 2, 3, 4, 1, 2, 3, 4, 1, 2)
			if want := []string{"1", "5", "9", "2", "6", "10", "3", "7", "4", "8"}; !slices.Equal(s.order, want) {
				t.Errorf("they ran as %v", s.order)
			}
		},
		"a pause that is taken back": func(t *testing.T) {
			s := newShop(t, 1, time.Second)
			_, err := s.limiter.Report(t.Context(), "api", upstream.Hint{Limited: true, Retry: 10 * time.Second, RetryKnown: true})
			s.must(err)
			s.must(s.limiter.ResetUpstream(t.Context(), "api"))
			s.bulk("a", 2)
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(5 * time.Second)
			s.spread(2, 1, time.Second)
		},
		"what is due while the limit is reached waits with the others": func(t *testing.T) {
			s := newShop(t, 1, 10*time.Second)
			s.bulk("now", 2)
			s.bulk("later", 2, asynq.ProcessIn(1500*time.Millisecond))
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(4 * time.Second)
			if n := len(s.ran()); n != 1 {
				t.Errorf("%d ran in the first window", n)
			}
			s.after(40 * time.Second)
			s.spread(4, 1, 10*time.Second)
		},
		"many at once, from the first moment": func(t *testing.T) {
			s := newShop(t, 100, time.Second)
			s.bulk("a", 400)
			s.serve(asynq.Config{Concurrency: 600}, s.counted(lasting(700*time.Millisecond)))
			s.after(15 * time.Second)
			if s.most > 100 {
				t.Errorf("%d ran at once", s.most)
			}
			s.spread(400, 100, time.Second)
		},
		"one at a time, from the first moment": func(t *testing.T) {
			s := newShop(t, 1, time.Second)
			s.bulk("a", 5)
			s.serve(asynq.Config{Concurrency: 100}, s.counted(lasting(700*time.Millisecond)))
			s.after(15 * time.Second)
			if s.most > 1 {
				t.Errorf("%d ran at once", s.most)
			}
			s.spread(5, 1, time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, do)
		})
	}
}

// byPriority runs tasks that all wait before the first may start. BullMQ's lower number goes first, and
// ours higher one: a task of its priority n has -n here.
func (s *shop) byPriority(priorities ...int) {
	s.t.Helper()
	_, err := s.limiter.Report(s.t.Context(), "api", upstream.Hint{Limited: true, Retry: 5 * time.Second, RetryKnown: true})
	s.must(err)
	for i, n := range priorities {
		_, err := s.made.Enqueue(s.t.Context(), queue.Task{Type: "work", Scope: "api", ID: fmt.Sprint(i + 1), Priority: -n})
		s.must(err)
	}
	s.serve(asynq.Config{Concurrency: 1}, s.counted(nil))
	s.after(30 * time.Second)
}
