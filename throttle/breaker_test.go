package throttle

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// changes collects what a limiter observes of APIs.
type changes struct {
	NoObserver
	mu   sync.Mutex
	list []UpstreamChange
}

func (c *changes) Upstream(change UpstreamChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, change)
}

// breakBubble is two processes under a policy of which each tenant of p has a breaker, and what they observe.
type breakBubble struct {
	t           *testing.T
	rdb         *redis.Client
	here, there *Limiter
	seen        *changes
}

func newBreakBubble(t *testing.T, breaker string) breakBubble {
	t.Helper()
	_, rdb := redistest.Miniredis(t)
	pol := parsedPolicy(t, `limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: 100000, per: 1s}], scopes: {"*": {breaker: `+breaker+`, rules: [{name: own, algorithm: sliding-window, limit: 100, per: 1s}]}}}}`)
	seen := &changes{}
	return breakBubble{t, rdb, newLimiter(t, rdb, pol, Config{Observer: seen}), newLimiter(t, rdb, pol, Config{Observer: seen}), seen}
}

// calls makes calls of a scope and reports how they ended.
func (b breakBubble) calls(l *Limiter, scope string, n int, failed bool) {
	b.t.Helper()
	for range n {
		d, err := l.Wait(b.t.Context(), Request{Scope: scope})
		noError(b.t, err)
		_, err = l.ReportCall(b.t.Context(), d.Grant, failed)
		noError(b.t, err)
	}
}

// starts is how many of 200 calls of a scope start at once.
func (b breakBubble) starts(scope string) (n int) {
	b.t.Helper()
	for range 200 {
		d, err := b.there.Allow(b.t.Context(), scope)
		noError(b.t, err)
		if !d.Allowed {
			return n
		}
		n++
	}
	return n
}

// open is the breaker of p/a that is open, nil if it is not.
func (b breakBubble) open() *UpstreamBreaker {
	b.t.Helper()
	state, err := b.here.UpstreamState(b.t.Context(), "p/a/x")
	noError(b.t, err)
	if len(state.Breakers) == 0 {
		return nil
	}
	return &state.Breakers[0]
}

func pass(d time.Duration) { <-time.After(d) }

// docs/breaker.md, "When it opens": by the part of at least so many calls within a time, and by two processes where two run.
func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	type step struct {
		there  bool
		failed bool
		n      int
		then   time.Duration
	}
	fails, succeeds := step{failed: true, n: 10}, step{n: 11}
	there, alone, long := fails, fails, fails
	there.there, alone.n, long.then = true, 20, 40*time.Second
	healthy := step{there: true, n: 5, then: 4 * time.Second}
	for name, row := range map[string]struct {
		steps []step
		opens bool
	}{
		"of both":                    {[]step{fails, there}, true},
		"of the only process":        {[]step{alone}, true},
		"of one of two":              {[]step{healthy, alone}, false},
		"of one, after the other":    {[]step{there, healthy, fails}, true},
		"fewer than half":            {[]step{succeeds, {there: true, n: 11, then: 4 * time.Second}, fails, there}, false},
		"fewer than 20":              {[]step{fails, {there: true, failed: true, n: 9}}, false},
		"10, and 10 when it is over": {[]step{long, there}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBreakBubble(t, "{failures: 50%, of: 20, in: 30s, wait: 30s}")
				for _, s := range row.steps {
					l := b.here
					if s.there {
						l = b.there
					}
					b.calls(l, "p/a", s.n, s.failed)
					pass(s.then)
				}
				pass(time.Second)
				is := b.open()
				if (is != nil) != row.opens {
					t.Fatalf("%+v", is)
				}
				if n := b.starts("p/a"); (n == 0) != row.opens {
					t.Errorf("%d calls start", n)
				}
				if n := b.starts("p/b"); n != 100 {
					t.Errorf("%d calls of another tenant start", n)
				}
				if row.opens && (is.Calls < 20 || is.Failures < 20 || is.Next.Sub(is.Since) != 30*time.Second) {
					t.Errorf("%+v", is)
				}
			})
		})
	}
}

// docs/breaker.md, "Probes": one call goes, however long it hangs; a crash frees its place, a failure doubles the wait, and a success
// closes the breaker in a ramp.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreakBubble(t, "{of: 4, wait: 30s}")
		b.calls(b.here, "p/a", 4, true)
		pass(time.Second)
		if b.open() == nil || b.starts("p/a/x") > 0 {
			t.Fatal("it is not open")
		}
		pass(30 * time.Second)
		probe, err := b.here.Allow(t.Context(), "p/a")
		if err != nil || !probe.Allowed {
			t.Fatalf("%+v, %v", probe, err)
		}
		_, lease := b.here.Lease(t.Context(), probe.Grant)
		for range 10 { // it hangs
			pass(20 * time.Second)
			if n := b.starts("p/a"); n > 0 {
				t.Fatalf("%d calls go beside the probe", n)
			}
		}
		if is := b.open(); is.Probing != 1 {
			t.Errorf("%+v", is)
		}
		noError(t, lease.Release(t.Context())) // without a word of the call
		if n := b.starts("p/a"); n != 1 {
			t.Fatalf("%d probes follow", n)
		}
		pass(30 * time.Second) // it has crashed
		probe, err = b.there.Allow(t.Context(), "p/a")
		if err != nil || !probe.Allowed {
			t.Fatalf("%+v, %v", probe, err)
		}
		if out, err := b.there.ReportCall(t.Context(), probe.Grant, true); err != nil || !out.Until.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("%+v, %v", out, err)
		}
		if pass(59 * time.Second); b.starts("p/a") > 0 {
			t.Error("the wait has not doubled")
		}
		pass(time.Second)
		b.calls(b.here, "p/a", 1, false)
		for _, want := range []int{9, 20, 40, 80, 100, 100} { // the probe was one of the first ten
			if n := b.starts("p/a"); n != want {
				t.Errorf("%d calls start in a second, want %d", n, want)
			}
			pass(3 * time.Second)
		}
		if keys := b.rdb.Exists(t.Context(), "hw:{p}:api").Val(); keys > 0 {
			t.Error("each decision still reads what APIs have said")
		}
	})
}

// docs/breaker.md, "Costs": nothing without a breaker, and for calls that succeed one command in a tenth of `in` for all scopes.
func TestBreakerCosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreakBubble(t, "{in: 30s}")
		var reports atomic.Int64
		b.rdb.AddHook(redistest.Around{Before: func(cmd redis.Cmder) {
			if strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any("calls")) {
				reports.Add(1)
			}
		}})
		for range 30 {
			for _, scope := range []string{"p/a", "p/b", "p/c/x", "p"} {
				b.calls(b.here, scope, 3, false)
			}
			pass(time.Second)
		}
		if n := reports.Swap(0); n < 5 || n > 11 {
			t.Errorf("%d reports of calls that succeed in 30 s", n)
		}
		for range 50 {
			b.calls(b.here, "p", 1, true)
			pass(100 * time.Millisecond)
		}
		pass(5 * time.Second)
		if n := reports.Swap(0); n > 1 {
			t.Errorf("%d reports of a scope without a breaker", n)
		}
		for range 200 {
			b.calls(b.here, "p/a", 1, true)
			if b.open() != nil {
				break
			}
			pass(10 * time.Millisecond)
		}
		if n := reports.Load(); n > 11 {
			t.Errorf("%d reports of failures within 2 s", n)
		}
	})
}

// A person opens and closes a breaker, shadow counts alone, and each change is observed and kept.
func TestBreakerByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreakBubble(t, "{of: 4, wait: 10s, retry: false}")
		noError(t, b.here.OpenBreaker(t.Context(), "p/a", 0))
		if is := b.open(); is == nil || is.Failures != 0 || b.starts("p/a") > 0 || b.starts("p/b") != 100 {
			t.Errorf("%+v", is)
		}
		noError(t, b.here.CloseBreaker(t.Context(), "p/a"))
		if n := b.starts("p/a"); n != 10 || b.open() != nil {
			t.Errorf("%d calls start", n)
		}
		noError(t, b.here.OpenBreaker(t.Context(), "p/a", 0))
		noError(t, b.here.ResetUpstream(t.Context(), "p/a"))
		if pass(2 * time.Second); b.starts("p/a") != 100 {
			t.Error("a reset does not close it at once")
		}
		b.seen.list = b.seen.list[:2]
		pass(12 * time.Second)
		b.calls(b.here, "p/a", 1, true)
		pass(time.Second)
		b.calls(b.here, "p/a", 2, true)
		pass(time.Second)
		d, err := b.here.Allow(t.Context(), "p/a")
		noError(t, err)
		if out, err := b.here.ReportCall(t.Context(), d.Grant, true); err != nil || !out.KeepsAttempt || !out.Until.Equal(time.Now().Add(10*time.Second)) {
			t.Errorf("%+v, %v", out, err)
		}
		var said []string
		for _, c := range b.seen.list {
			said = append(said, c.What+" "+c.Scope+" "+c.Pattern)
		}
		if want := []string{"open p/a p/*", "closed p/a p/*", "open p/a p/*"}; !slices.Equal(said, want) || b.seen.list[2].Calls != 4 || b.seen.list[2].Failures != 4 {
			t.Errorf("%v: %+v", said, b.seen.list)
		}
		events, err := b.here.UpstreamEvents(t.Context(), "p/a")
		if err != nil || len(events) != 3 || events[0].What != "open" || events[0].Failures != 4 {
			t.Errorf("%+v, %v", events, err)
		}
	})
}

// "shadow: true counts and reports, and stops nothing", and reports once in a wait.
func TestBreakerInShadow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreakBubble(t, "{of: 4, wait: 10s, shadow: true}")
		for range 5 {
			b.calls(b.here, "p/a", 10, true)
			pass(time.Second)
		}
		if pass(time.Second); b.starts("p/a") != 100 || b.open() != nil {
			t.Error("something is stopped")
		}
		if len(b.seen.list) != 1 || b.seen.list[0].What != "open" || !b.seen.list[0].Shadow {
			t.Errorf("%+v", b.seen.list)
		}
	})
}

// Waiting tasks keep their places, and go as probes from the front of the line.
func TestBreakerOfWaiters(t *testing.T) {
	t.Parallel()
	pol := parsedPolicy(t, `limits: {p: {breaker: {of: 2, probe: 2, wait: 10s}, rules: [{name: r, algorithm: token-bucket, limit: 1000, per: 1s, burst: 1000}]}}`)
	onBoth(t, Config{}, pol, func(b *bench) {
		noError(b.t, b.OpenBreaker(context.Background(), "p", 0))
		b.queued("p", "a", "b", "c", "d", "e")
		if got := b.dispatched(0); len(got) > 0 {
			b.t.Fatalf("while it is open: %+v", got)
		}
		b.pass(10 * sec)
		got := b.dispatched(0)
		if len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" || !got[0].Probe || len(b.dispatched(0)) > 0 {
			b.t.Fatalf("two go first: %+v", got)
		}
		d := b.decide(Request{Scope: "p", Waiter: waiter("a")})
		if !d.Allowed || !d.Grant.probe {
			b.t.Fatalf("%+v", d)
		}
		noError(b.t, second(b.ReportCall(ctx, d.Grant, false)))
		if got := b.dispatched(0); len(got) != 3 {
			b.t.Errorf("%d follow, want 3", len(got))
		}
	})
}

func second[T any](_ T, err error) error { return err }
