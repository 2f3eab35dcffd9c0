package throttle

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/upstream"
)

// docs/limits.md: a pause stands while Redis does not answer, whatever the rules say of that.
func TestPausedWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	p := parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1s, on_redis_error: open}], scopes: {a: {paused: true}}}}`)
	l := newLimiter(t, server.Client(t), p, Config{Timeout: time.Second})
	server.Kill9()
	if d, err := l.Allow(t.Context(), "p/b"); err != nil || !d.Allowed || !d.Degraded {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Allow(t.Context(), "p/a"); d.Allowed || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
}

// A start that was granted for long ahead is given back when its scope is paused meanwhile,
// and one that is near is not: it comes within the second that a change takes.
func TestPauseTakesStartsBack(t *testing.T) {
	t.Parallel()
	const rules = "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s}]}}"
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			task   string
			into   time.Duration // the wait of a second
			starts bool
		}{{"", 800 * time.Millisecond, false}, {"one", 100 * time.Millisecond, false}, {"", 0, true}} {
			_, rdb := redistest.Miniredis(t)
			l := newLimiter(t, rdb, parsedPolicy(t, rules), Config{Prefix: "pause"})
			noError(t, allowed(l, "p"))
			if row.starts {
				<-time.After(900 * time.Millisecond)
			}
			time.AfterFunc(row.into, func() { l.SetPolicy(parsedPolicy(t, strings.Replace(rules, "{p: {", "{p: {paused: true, ", 1))) })
			d, err := l.Start(t.Context(), Request{Scope: "p", MaxDelay: 2 * time.Second, Waiter: Waiter{Queue: "default", ID: row.task, MaxDelay: 2 * time.Second}})
			if err != nil || d.Allowed != row.starts || d.Joins != (row.task != "") {
				t.Errorf("%+v: %+v, %v", row, d, err)
			}
			l.SetPolicy(parsedPolicy(t, rules))
			if d, err := l.Peek(t.Context(), Request{Scope: "p"}); err != nil || d.Allowed == row.starts {
				t.Errorf("%+v: %+v, %v: its unit is not back", row, d, err)
			}
		}
	})
}

// pacedBubble is a limiter that starts one a second in a scope, one of which has started, and another process's.
func pacedBubble(t *testing.T) (here, there *Limiter) {
	t.Helper()
	_, rdb := redistest.Miniredis(t)
	policy := parsedPolicy(t, `limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: 1000, per: 1s}], scopes: {"*": {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s, burst: 1}]}}}}`)
	here, there = newLimiter(t, rdb, policy, Config{}), newLimiter(t, rdb, policy, Config{})
	noError(t, allowed(here, "p/a"))
	return here, there
}

func refusedFor(wait time.Duration) upstream.Hint {
	return upstream.Hint{Limited: true, RetryKnown: true, Retry: wait}
}

// "If the scope is paused during the wait": docs/vendor.md says how soon, and of whose starts.
func TestAPIPauseTakesStartsBack(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	for name, row := range map[string]struct {
		at    time.Duration // into a wait of a second
		scope string        // of the answer
		wait  time.Duration // that it asks for
		other bool          // another process hears it
		asks  time.Duration // when this process asks for another start there, and is denied; never
		takes time.Duration // how long the start is waited for
	}{
		"told here":                               {at: 300 * ms, scope: "p/a", wait: time.Minute, takes: 300 * ms, asks: never},
		"told here of the level above":            {at: 300 * ms, scope: "p", wait: time.Minute, takes: 300 * ms, asks: never},
		"told here of another scope":              {at: 300 * ms, scope: "p/b", wait: time.Minute, takes: time.Second, asks: never},
		"told here of a scope below":              {at: 300 * ms, scope: "p/a/x", wait: time.Minute, takes: time.Second, asks: never},
		"told elsewhere":                          {at: 300 * ms, scope: "p/a", wait: time.Minute, other: true, takes: 900 * ms, asks: never},
		"told elsewhere, 150 ms before":           {at: 849 * ms, scope: "p/a", wait: time.Minute, other: true, takes: 900 * ms, asks: never},
		"told elsewhere, and over by then":        {at: 300 * ms, scope: "p/a", wait: 600 * ms, other: true, takes: time.Second, asks: never},
		"told elsewhere, and known by a denial":   {at: 300 * ms, scope: "p/a", wait: time.Minute, other: true, asks: 400 * ms, takes: 400 * ms},
		"told elsewhere of all, known by another": {at: 300 * ms, scope: "p", wait: time.Minute, other: true, asks: 400 * ms, takes: 400 * ms},
	} {
		for _, task := range []string{"", "one"} {
			t.Run(name+" "+task, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					here, there := pacedBubble(t)
					began := time.Now()
					time.AfterFunc(row.at, func() {
						tells := here
						if row.other {
							tells = there
						}
						if _, err := tells.Report(t.Context(), row.scope, refusedFor(row.wait)); err != nil {
							t.Error(err)
						}
					})
					if row.asks < never {
						time.AfterFunc(row.asks, func() { _, _ = here.Allow(t.Context(), "p/a") })
					}
					req := Request{Scope: "p/a", MaxDelay: 5 * time.Second, Waiter: Waiter{Queue: "default", ID: task, MaxDelay: 5 * time.Second}}
					d, err := here.Start(t.Context(), req)
					took, starts := time.Since(began), row.takes == time.Second
					if err != nil || d.Allowed != starts || took < row.takes || took > row.takes+20*ms || d.Joins != (task != "" && !starts) {
						t.Fatalf("after %v, %v: %+v", took, err, d)
					}
					if starts {
						return
					}
					<-time.After(row.wait) // its unit is back, and its turn comes
					req.MaxDelay, req.Waiter.MaxDelay = time.Second, time.Second
					if d, err := here.Start(t.Context(), req); err != nil || !d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
				})
			})
		}
	}
}

// Wait comes when the pause is over, whoever told it.
func TestWaitOutlastsAnAPIPause(t *testing.T) {
	t.Parallel()
	for _, other := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			here, there := pacedBubble(t)
			tells := here
			if other {
				tells = there
			}
			began := time.Now()
			time.AfterFunc(300*ms, func() { _, _ = tells.Report(t.Context(), "p/a", refusedFor(30*time.Second)) })
			d, err := here.Wait(t.Context(), Request{Scope: "p/a", ID: "mine", MaxDelay: 5 * time.Second})
			if took := time.Since(began); err != nil || !d.Allowed || took < 30300*ms || took > 30400*ms {
				t.Errorf("after %v: %+v, %v", took, d, err)
			}
		})
	}
}

// What a look costs: none for starts that were granted for 250 ms ahead or less, and one command
// for all of a scope that start in the same moment.
func TestLooksAtPausesAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		looks := counting(rdb, func(cmd redis.Cmder) bool { return cmd.Name() == "hmget" })
		l := newLimiter(t, rdb, parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 1}]}}`), Config{})
		for _, row := range []struct {
			n           int
			least, most int64
		}{{20, 0, 0}, {120, 1, 20}} {
			looks.Store(0)
			var starts sync.WaitGroup
			for range row.n {
				starts.Go(func() {
					if d, err := l.Start(t.Context(), Request{Scope: "p", MaxDelay: 5 * time.Second}); err != nil || !d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
				})
			}
			starts.Wait()
			if n := looks.Load(); n < row.least || n > row.most {
				t.Errorf("%d looks for %d starts", n, row.n)
			}
		}
	})
}
