package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

func retryAfterMS(ms int) http.Header { return http.Header{"Retry-After-Ms": {fmt.Sprint(ms)}} }

// "Nobody starts in the task's scope, or below it, until that is over", others go on; the task "burns no attempt", "goes back to the front
// of its line and comes when the API wants to be called again".
func TestToldPausesTheScope(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perHour(1000), func(s *system) {
		const pause = 1500 * time.Millisecond
		var mu sync.Mutex
		var order []string
		var refusedAt, early time.Time
		refused := false
		s.serve(asynq.Config{Concurrency: 1}, func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if retried, _ := asynq.GetRetryCount(ctx); retried != 0 {
				t.Errorf("%s: attempt %d", id, retried)
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, id)
			switch {
			case id == "first" && !refused:
				refused, refusedAt = true, time.Now()
				return fmt.Errorf("call: %w", ReportStatus(ctx, http.StatusTooManyRequests, retryAfterMS(int(pause.Milliseconds()))).Err())
			case id != "other" && refused && time.Since(refusedAt) < pause-20*time.Millisecond:
				early = time.Now()
			}
			return ReportStatus(ctx, http.StatusOK, http.Header{}).Err()
		})
		s.add(queue.Task{ID: "first", MaxRetry: queue.Retries(0)})
		s.until("it is refused", func() bool { mu.Lock(); defer mu.Unlock(); return refused })
		for i := range 5 {
			s.add(queue.Task{ID: fmt.Sprint("more", i), MaxRetry: queue.Retries(0)})
		}
		s.add(queue.Task{ID: "below", Scope: "p/a/x"})
		s.add(queue.Task{ID: "other", Scope: "p/b"})
		s.until("all have run", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 9 })
		if !early.IsZero() {
			t.Errorf("one ran %v after the refusal: %v", early.Sub(refusedAt), order)
		}
		if order[1] != "other" {
			t.Errorf("another scope's task is held up: %v", order)
		}
		first, more := slices.Index(order[2:], "first"), slices.Index(order[2:], "more0")
		if first < 0 || first > more {
			t.Errorf("the one that was refused does not go first: %v", order)
		}
		if took := time.Since(refusedAt); took > 10*time.Second {
			t.Errorf("they came %v after the refusal", took)
		}
		if n := s.seen.get(func(o *seen) int { return strings.Count(fmt.Sprint(o.outcomes), "deferred") }); n != 1 {
			t.Errorf("%d runs were deferred", n)
		}
		if n := s.seen.get(func(o *seen) int { return len(o.faults) }); n != 0 {
			t.Errorf("faults: %v", s.seen.faults)
		}
	})
}

// "Any start where this process has told of an API's pause": a task that holds for a start that it
// was granted goes back to its line at once, and does not begin.
func TestToldTakesHeldStartsBack(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 20 * time.Second}
	s := newSystem(t, []policy.Rule{rule}, MiddlewareConfig{Hold: time.Minute})
	holding := func(n int) func() bool {
		return func() bool { return s.seen.get(func(o *seen) int { return o.holding }) == n }
	}
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "held" {
			return nil
		}
		redistest.WaitFor(t, "the other to hold", bound, holding(1))
		return ReportStatus(ctx, http.StatusTooManyRequests, retryAfterMS(3_600_000)).Err()
	})
	s.add(queue.Task{ID: "refused", MaxRetry: queue.Retries(0)})
	s.until("it runs", func() bool { return s.ran("refused") == 1 })
	s.add(queue.Task{ID: "held", MaxRetry: queue.Retries(0)})
	<-s.ended
	s.until("both are in their line", func() bool {
		in, err := inspect.Of(s.throttle.cfg.Limiter.Waitlist()).Scope(t.Context(), "p/a")
		return err == nil && in.Waiting == 2 && in.Paused && holding(0)() || s.ran("held") > 0
	})
	if n := s.ran("held"); n != 0 {
		t.Fatalf("it has run %d times", n)
	}
	if d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"}); err != nil || d.Rules[0].ResetAfter > 21*time.Second {
		t.Errorf("its unit is not back: %+v, %v", d, err)
	}
}

// What Told makes of answers, where no task runs: it only reads them.
func TestToldReads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		header http.Header
		want   string
	}{
		{200, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, ""},
		{403, http.Header{"X-Ratelimit-Remaining": {"12"}, "X-Ratelimit-Reset": {"30"}}, ""},
		{403, http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, "headway: the API answered 403 and asks to come back in 30s"},
		{418, http.Header{"Retry-After": {"120"}}, "headway: the API answered 418 and asks to come back in 2m0s"},
		{503, nil, "headway: the API answered 503"},
		{404, nil, ""},
		{429, nil, "headway: the API answered 429 and does not say when to come back"},
	} {
		err := ReportStatus(t.Context(), test.status, test.header).Err()
		if got := fmt.Sprint(err); err == nil && test.want != "" || err != nil && got != test.want {
			t.Errorf("%d, %v: %v", test.status, test.header, err)
		}
		var asks Deferrer
		if errors.As(err, &asks) != strings.Contains(test.want, "come back") {
			t.Errorf("%d, %v: is %v a Deferrer?", test.status, test.header, err)
		}
	}
}

// "ReportResponse also says which host answered, so that a host that limits.yaml does not name changes
// no limit": the task waits all the same, and others go on.
func TestReportResponse(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1000), MiddlewareConfig{})
	s.limits(map[string]policy.ScopeConfig{"p": {Rules: perHour(1000), Hosts: []string{"api.example.com"}}})
	s.serve(asynq.Config{Concurrency: 1}, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		host, _, _ := strings.Cut(id, "#")
		resp := &http.Response{StatusCode: http.StatusTooManyRequests, Header: retryAfterMS(3_600_000), Request: &http.Request{URL: &url.URL{Scheme: "https", Host: host}}}
		return ReportResponse(ctx, resp).Err()
	})
	paused := func() int {
		told, err := s.throttle.cfg.Limiter.UpstreamState(t.Context(), "p/a")
		must(t, err)
		return len(told.Pauses)
	}
	s.add(queue.Task{ID: "other.example.com#1"})
	s.add(queue.Task{ID: "other.example.com#2"})
	s.until("both have run", func() bool { return s.ran("other.example.com#1") == 1 && s.ran("other.example.com#2") == 1 })
	if paused() > 0 {
		t.Error("another host's answer has paused the scope")
	}
	s.add(queue.Task{ID: "api.example.com#1"})
	s.until("the scope is paused", func() bool { return paused() == 1 })
	if err := ReportResponse(t.Context(), &http.Response{StatusCode: http.StatusOK}).Err(); err != nil {
		t.Errorf("an answer without a request: %v", err)
	}
}

// "After a pause without a time one call goes first": of a backlog one call is refused after each guessed pause, and all run when one
// was not, also where the handler reports refusals alone: long before the probe would count as lost.
func TestProbeOfSilentHandler(t *testing.T) {
	t.Parallel()
	inFakeTime(t, perHour(1000), func(s *system) {
		var began time.Time
		var late, done atomic.Int64
		first := sync.OnceFunc(func() { began = time.Now() })
		s.serve(asynq.Config{Concurrency: 8}, func(ctx context.Context, _ *asynq.Task) error {
			first()
			if after := time.Since(began); after < 1500*time.Millisecond {
				if after > 500*time.Millisecond {
					late.Add(1)
				}
				return ReportStatus(ctx, http.StatusTooManyRequests, nil).Err()
			}
			done.Add(1)
			return nil
		})
		for range 30 {
			s.add(queue.Task{MaxRetry: queue.Retries(0)})
		}
		<-time.After(10 * time.Second)
		if n := done.Load(); n != 30 {
			s.t.Errorf("%d of 30 have run", n)
		}
		if n := late.Load(); n > 1 {
			s.t.Errorf("%d calls were refused after the first pause", n)
		}
	})
}

// What ends a task that waits for its API's pause names that, and no rule: neither the one whose max_wait it is, nor an empty one.
func TestAPIPauseIsNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		maxWait time.Duration // of the rule
		task    queue.Task
		within  time.Duration // its deadline, from when it is added
		says    string
	}{
		"patience of a task": {0, queue.Task{MaxWait: time.Minute}, 0, "can't start in time, since the API of p/a is not called now; its max_wait is 1m0s"},
		"patience of a rule": {time.Minute, queue.Task{}, 0, "can't start in time, since the API of p/a is not called now; its max_wait is 1m0s"},
		"a deadline":         {0, queue.Task{}, 5 * time.Minute, "headway: the API of p/a is not called for another "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := perHour(1000)
			rules[0].MaxWait = test.maxWait
			s := newSystem(t, rules, MiddlewareConfig{OnMaxWait: Fail()})
			_, err := s.throttle.cfg.Limiter.Report(t.Context(), "p/a", upstream.Hint{Limited: true, RetryKnown: true, Retry: time.Hour})
			must(t, err)
			s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { return nil })
			test.task.ID = "t"
			if test.within > 0 {
				test.task.Deadline = time.Now().Add(test.within)
			}
			s.add(test.task)
			if why := s.archived("t"); !strings.Contains(why, test.says) || strings.Contains(why, "rule") {
				t.Errorf("it failed with %q", why)
			}
		})
	}
}

// busy is what a handler says whose API is limited itself.
type busy struct {
	wait  time.Duration
	known bool
}

func (busy) Error() string { return "the API is limited" }
func (b busy) DeferBy() (wait time.Duration, known, deferred bool) {
	return b.wait, b.known, b != busy{}
}

// "It burns no attempt by it, at any max retry": tasks of our own and of other programs,
// on their last attempt too, come back after the wait, and are no failures.
func TestDeferredByTheAPI(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.addForeign("foreign", asynq.MaxRetry(0))
	s.addForeign("more", asynq.MaxRetry(5))
	var told atomic.Int64
	s.serve(asynq.Config{
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told.Add(1) }),
	}, func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if retried, _ := asynq.GetRetryCount(ctx); retried != 0 {
			t.Errorf("%s: attempt %d", id, retried)
		}
		if s.ran(id) <= 2 {
			return fmt.Errorf("call: %w", busy{wait: 300 * time.Millisecond, known: true})
		}
		return nil
	})
	s.haveEnded(9)
	if s.ran("own") != 3 || s.ran("foreign") != 3 || s.ran("more") != 3 || told.Load() != 0 {
		t.Errorf("runs: %v; %d failures told", s.runs, told.Load())
	}
}

// An error that says that it is not deferred is a failure, and one that does not say for how long comes back in some ten seconds.
func TestDeferredByWhat(t *testing.T) {
	t.Parallel()
	if _, deferred := deferredBy(busy{}); deferred {
		t.Error("an error that is not deferred was taken for one that is")
	}
	for range 50 {
		wait, deferred := deferredBy(busy{wait: 1})
		if !deferred || wait < deferPause || wait > deferPause+deferPause/10 {
			t.Fatalf("%v, %t", wait, deferred)
		}
	}
}

// "MaxDeferrals is how often the API of a task may put it off within one attempt": what comes after that
// is a failure as any other, so that no API keeps a task for ever; each attempt begins to count anew.
func TestDeferralsEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{MaxDeferrals: 2})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "again", MaxRetry: queue.Retries(1)})
	s.addForeign("foreign", asynq.MaxRetry(1))
	cfg := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}
	s.serve(cfg, func(context.Context, *asynq.Task) error { return busy{wait: 10 * time.Millisecond, known: true} })
	for id, want := range map[string]int{"own": 3, "again": 6, "foreign": 6} {
		if why := s.archived(id); !strings.Contains(why, "the API is limited") {
			t.Errorf("%s failed with %q", id, why)
		}
		if n := s.ran(id); n != want {
			t.Errorf("%s ran %d times, want %d", id, n, want)
		}
	}
}

// "Where OnMaxWait is set a max_wait bounds it too": the time counts in which the API puts a task off.
func TestDeferralsEndByMaxWait(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: time.Second, Burst: 100, MaxWait: time.Second}
	s := newSystem(t, []policy.Rule{rule}, MiddlewareConfig{OnMaxWait: Fail(), MaxDeferrals: -1})
	s.add(queue.Task{ID: "own", MaxRetry: queue.Retries(3)})
	s.addForeign("foreign", asynq.MaxRetry(3))
	s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { return busy{wait: 100 * time.Millisecond, known: true} })
	for _, id := range []string{"own", "foreign"} {
		if why := s.archived(id); !strings.Contains(why, "its max_wait is 1s") {
			t.Errorf("%s failed with %q", id, why)
		}
		if info := s.info(id); info.Retried != 0 || s.ran(id) < 1 {
			t.Errorf("%s: %d retries, %d runs", id, info.Retried, s.ran(id))
		}
	}
}

// tokensPerHour is a limit that comes back no sooner than a test ends.
func tokensPerHour(limit int64) []policy.Rule {
	return []policy.Rule{
		{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Hour},
		{Name: "tokens", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Hour, Unit: "tokens"},
	}
}

// tokensLeft returns what is left of calls and tokens.
func (s *system) tokensLeft() (calls, tokens int64) {
	s.t.Helper()
	d, err := s.throttle.cfg.Limiter.Peek(s.t.Context(), throttle.Request{Scope: "p/a"})
	must(s.t, err)
	return d.Rules[0].Remaining, d.Rules[1].Remaining
}

// Each estimate takes all of the limit; since each run settles what it spent, the next one
// starts when it has ended. Tasks that asynq itself enqueued cost by unit too.
func TestSettle(t *testing.T) {
	t.Parallel()
	if got, err := Settle(t.Context(), policy.Costs{"tokens": 1}); err != nil || len(got.Rules) > 0 {
		t.Errorf("outside of a limited task's run: %v %v", got, err)
	}
	s := newSystem(t, tokensPerHour(1000), MiddlewareConfig{
		Spends: func(*asynq.Task) (string, int64) { return "p/a", 0 },
		Costs:  func(*asynq.Task) policy.Costs { return policy.Costs{"tokens": 700} },
	})
	for _, id := range []string{"a", "b", "c"} {
		s.add(queue.Task{ID: id, Costs: policy.Costs{"requests": 1, "tokens": 700}})
	}
	_, err := s.client.EnqueueContext(t.Context(), asynq.NewTask("told", nil), asynq.TaskID("told"))
	must(t, err)
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		for _, spent := range []int64{50, 90, 100} { // as the answer streams
			got, err := Settle(ctx, policy.Costs{"tokens": spent})
			if err != nil || len(got.Rules) != 1 || got.Rules[0].Spent != spent {
				t.Errorf("%v %v", got, err)
			}
		}
		return nil
	})
	s.haveEnded(4)
	if calls, tokens := s.tokensLeft(); calls != 96 || tokens != 600 {
		t.Errorf("%d calls and %d tokens are left", calls, tokens)
	}
}

// "Each attempt of a task is charged anew, and settled by itself. What a handler never settles stays charged as it was estimated." What
// it saves is settled from elsewhere when it has ended.
func TestSettleEachAttempt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, tokensPerHour(10_000), MiddlewareConfig{})
	s.add(queue.Task{ID: "a", MaxRetry: queue.Retries(1), Costs: policy.Costs{"tokens": 1000}})
	runs := 0
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }}, func(ctx context.Context, _ *asynq.Task) error {
		if runs++; runs == 1 {
			_, err := Settle(ctx, policy.Costs{"tokens": 300})
			return errors.Join(err, errors.New("cut off"))
		}
		return SaveGrant(ctx, time.Hour)
	})
	s.haveEnded(2)
	if calls, tokens := s.tokensLeft(); calls != 98 || tokens != 8700 {
		t.Errorf("%d calls and %d tokens are left", calls, tokens)
	}
	limiter := s.throttle.cfg.Limiter
	g, err := limiter.LoadGrant(t.Context(), "p/a", "a")
	must(t, err)
	if got, err := limiter.Settle(t.Context(), g, policy.Costs{"tokens": 120}); err != nil || got.Rules[0].Back != 880 {
		t.Errorf("%v %v", got, err)
	}
}

// "A day of 10 calls still has all 10 after six refusals": of an http task, where the policy does not say that they count. The
// run of another task stays charged.
func TestRefusalsKeepTheDay(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int64{queue.TypeHTTP: 9, "work": 3} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			day := policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: 10, Per: 24 * time.Hour}
			s := newSystem(t, []policy.Rule{day}, MiddlewareConfig{})
			var runs, done atomic.Int32
			s.serve(asynq.Config{Concurrency: 1}, func(context.Context, *asynq.Task) error {
				if runs.Add(1) <= 6 {
					return &RefusedError{Status: http.StatusTooManyRequests, RetryAfter: 20 * time.Millisecond, known: true}
				}
				done.Add(1)
				return nil
			})
			task := queue.Task{Type: kind}
			if kind == queue.TypeHTTP {
				task.HTTP = &queue.HTTP{URL: "http://127.0.0.1:1"}
			}
			s.add(task)
			s.until("it has run", func() bool { return done.Load() == 1 })
			d, err := s.throttle.cfg.Limiter.Peek(t.Context(), throttle.Request{Scope: "p/a"})
			if err != nil || d.Rules[0].Remaining != want {
				t.Errorf("%d are left, want %d: %v", d.Rules[0].Remaining, want, err)
			}
		})
	}
}
