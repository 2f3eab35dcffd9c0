package worker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

const threeKeys = `
limits:
  github:
    pool: {members: [alice, bob, ci]}
    scopes:
      "@alice": {rules: [{name: key, algorithm: sliding-window, limit: 50, per: 1s}]}
      "@bob": {paused: false, rules: [{name: key, algorithm: sliding-window, limit: 100, per: 1s}]}
      "@ci": {rules: [{name: key, algorithm: sliding-window, limit: 200, per: 1s}]}
`

// calls are when each member was called.
type calls struct {
	mu sync.Mutex
	at map[string][]time.Time
}

func (c *calls) handle(ctx context.Context, _ *asynq.Task) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string][]time.Time{}
	}
	c.at[Member(ctx)] = append(c.at[Member(ctx)], time.Now())
	return nil
}

// most is how many calls of a member are in any second.
func (c *calls) most(member string) (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.SortedFunc(slices.Values(c.at[member]), time.Time.Compare)
	for i, first := range at {
		n, _ := slices.BinarySearchFunc(at[i:], first.Add(time.Second), time.Time.Compare)
		most = max(most, n)
	}
	return most
}

func (c *calls) of(member string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.at[member])
}

func poolPolicy(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(t, err)
	return p
}

// "99 % of the members' joint quota is used by a backlog (3 members of 50/s, 100/s, 200/s; one is paused), nothing over on any, no call
// without a member, pick-ups <= 1.01."
func TestBacklogOfAPool(t *testing.T) {
	t.Parallel()
	inFakeTimeUnder(t, poolPolicy(t, threeKeys), MiddlewareConfig{}, func(s *system) {
		var made calls
		const all, alive = 350, 250 // a second, without bob
		for _, tenant := range []string{"github/a", "github/b", "github/c"} {
			s.planned(jobs(1000, tenant)...)
		}
		began := time.Now()
		s.serve(asynq.Config{Concurrency: 40}, made.handle)
		s.haveEnded(1400)
		took := time.Since(began)
		if ideal := 3 * time.Second; took > ideal*102/100+100*time.Millisecond { // the first second's quota is there at once
			t.Errorf("1400 starts took %v, want some %v", took, ideal)
		}
		s.throttle.cfg.Limiter.SetPolicy(poolPolicy(t, strings.Replace(threeKeys, "paused: false", "paused: true", 1)))
		<-time.After(time.Second) // what was granted before has started
		before, at, calledBob := made.of("alice")+made.of("ci"), time.Now(), made.of("bob")
		s.haveEnded(3000 - 1400)
		rest, rate := made.of("alice")+made.of("ci")-before, time.Since(at)
		if ideal := time.Duration(rest) * time.Second / alive; rate > ideal*102/100+time.Second {
			t.Errorf("%d starts of two members took %v, want some %v", rest, rate, ideal)
		}
		if n := made.of("bob"); n != calledBob {
			t.Errorf("bob was called %d times while paused", n-calledBob)
		}
		if n := made.of(""); n > 0 {
			t.Errorf("%d calls without a member", n)
		}
		for member, limit := range map[string]int{"alice": 50, "bob": 100, "ci": 200} {
			if most := made.most(member); most > limit {
				t.Errorf("%s was called %d times in a second", member, most)
			}
		}
		if n := s.seen.get(func(o *seen) int { return o.pickups }); n > 3000*101/100 {
			t.Errorf("%d pick-ups of 3000 tasks", n)
		}
	})
}

// "Answers to one member's call stay with that member": a task that one key is refused goes to another at once.
func TestAnAnswerStaysWithItsMember(t *testing.T) {
	t.Parallel()
	inFakeTimeUnder(t, poolPolicy(t, threeKeys), MiddlewareConfig{}, func(s *system) {
		var made calls
		var answered atomic.Int64
		s.planned(jobs(300, "github/a")...)
		began := time.Now()
		s.serve(asynq.Config{Concurrency: 10}, func(ctx context.Context, task *asynq.Task) error {
			_ = made.handle(ctx, task)
			if Member(ctx) == "bob" {
				return ReportStatus(ctx, http.StatusTooManyRequests, http.Header{"Retry-After": {"60"}}).Err()
			}
			answered.Add(1)
			return ReportStatus(ctx, http.StatusOK, nil).Err()
		})
		s.until("all are answered", func() bool { return answered.Load() == 300 })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("all waited for bob: %v", took)
		}
		if n := made.of("bob"); n > 40 {
			t.Errorf("bob was called %d times though it asked to stay away", n)
		}
	})
}

// "quarantined by an answer (401, 402 …) with an event, and returned by hand or after a time": no task uses up an attempt by a key that
// is not accepted, and the others have its part of the work.
func TestMemberInQuarantine(t *testing.T) {
	t.Parallel()
	inFakeTimeUnder(t, poolPolicy(t, threeKeys), MiddlewareConfig{}, func(s *system) {
		var made calls
		var good atomic.Bool
		limiter := s.throttle.cfg.Limiter
		work := func(n int) {
			t.Helper()
			before, began := made.of(""), time.Now()
			s.planned(jobs(n, "github/a")...)
			s.haveEnded(n)
			synctest.Wait() // asynq has deleted them, and their ids are free
			if took := time.Since(began); took > time.Duration(n)*time.Second/150+2*time.Second || made.of("") > before {
				t.Errorf("%d tasks took %s, %d without a member", n, took, made.of("")-before)
			}
		}
		s.serve(asynq.Config{Concurrency: 20}, func(ctx context.Context, task *asynq.Task) error {
			_ = made.handle(ctx, task)
			status := http.StatusOK
			if Member(ctx) == "bob" && !good.Load() {
				status = http.StatusUnauthorized
			}
			return ReportStatus(ctx, status, nil).Err()
		})
		work(600)
		refused := made.of("bob")
		if refused == 0 || refused > 40 {
			t.Errorf("bob was called %d times with a key that is not accepted", refused)
		}
		events, err := limiter.UpstreamEvents(s.t.Context(), "github/@bob")
		if i := slices.IndexFunc(events, func(e throttle.UpstreamEvent) bool { return e.What == "pause" }); err != nil || i < 0 ||
			events[i].Status != http.StatusUnauthorized || events[i].Scope != "github/@bob" {
			t.Errorf("events %+v, %v", events, err)
		}
		good.Store(true)
		work(300)
		if n := made.of("bob"); n != refused {
			t.Errorf("bob was called %d times in quarantine", n-refused)
		}
		must(t, limiter.CloseBreaker(s.t.Context(), "github/@bob"))
		work(600)
		if n := made.of("bob") - refused; n < 100 {
			t.Errorf("bob was called %d times after it was returned by hand", n)
		}
		good.Store(false)
		work(300)
		good.Store(true)
		<-time.After(70 * time.Minute) // up to a tenth longer than an hour
		before := made.of("bob")
		work(600)
		if n := made.of("bob") - before; n < 100 {
			t.Errorf("bob was called %d times after its quarantine", n)
		}
		if _, failed := s.counters(); failed > 0 {
			t.Errorf("%d attempts were used up", failed)
		}
	})
}

// "one dies": the breaker of a member opens for its calls alone.
func TestMemberThatDies(t *testing.T) {
	t.Parallel()
	text := strings.Replace(threeKeys, "scopes:\n", "scopes:\n      \"@*\": {breaker: {failures: 50%, of: 20, in: 10s, wait: 30s, retry: false}}\n", 1)
	var used spendings
	inFakeTimeUnder(t, poolPolicy(t, text), MiddlewareConfig{Usage: &used}, func(s *system) {
		var made calls
		var done atomic.Int64
		s.planned(jobs(2000, "github/a")...)
		began := time.Now()
		s.serve(asynq.Config{Concurrency: 20}, func(ctx context.Context, task *asynq.Task) error {
			_ = made.handle(ctx, task)
			if Member(ctx) == "bob" {
				ReportHint(ctx, upstream.Hint{Failed: true})
				return errors.New("no answer")
			}
			done.Add(1)
			return ReportStatus(ctx, http.StatusOK, nil).Err()
		})
		s.until("all are done", func() bool { return done.Load() == 2000 })
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("2000 tasks of two keys of 250 a second took %s", took)
		}
		used.mu.Lock()
		defer used.mu.Unlock()
		for _, want := range []string{`github/agithub/@ci "" default work 1`, "ended github/agithub/@bob {Failed:0 Refused:1}"} {
			if !slices.Contains(used.all, want) {
				t.Errorf("%s is not in the usage: %q", want, used.all[:4])
			}
		}
		if n := made.of("bob"); n > 130 { // 100 are on their way before it opens
			t.Errorf("bob was called %d times, and answered none", n)
		}
	})
}
