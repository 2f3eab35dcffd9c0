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
		s.mu.Unlock()
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
		"two a second": func(t *testing.T) {
			decided(t, "Windows")
			s := newShop(t, 2, time.Second)
			s.bulk("a", 10)
			s.serve(asynq.Config{}, s.counted(nil))
			s.after(15 * time.Second)
			s.spread(10, 2, time.Second)
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
			if len(starts) != 2 || starts[1]-starts[0] < 550*time.Millisecond || !slices.Equal(counts, []int{0, 0}) { // theirs says 1 and 2 attempts
				t.Errorf("it ran at %v, and its retries were counted as %v", starts, counts)
			}
			if info, err := s.inspector.GetTaskInfo("default", "a"); err != nil || info.State != asynq.TaskStateArchived {
				t.Errorf("%+v, %v", info, err)
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
