package peers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/throttled/throttled/v2"

	"github.com/headway-go/headway/throttle/policy"
)

// gcraStore is a store for throttled, with a clock that the test sets.
type gcraStore struct {
	values map[string]int64
	now    time.Time
}

func (g *gcraStore) GetWithTime(_ context.Context, key string) (int64, time.Time, error) {
	if v, ok := g.values[key]; ok {
		return v, g.now, nil
	}
	return -1, g.now, nil
}

func (g *gcraStore) SetIfNotExistsWithTTL(_ context.Context, key string, value int64, _ time.Duration) (bool, error) {
	if _, ok := g.values[key]; ok {
		return false, nil
	}
	g.values[key] = value
	return true, nil
}

func (g *gcraStore) CompareAndSwapWithTTL(_ context.Context, key string, before, value int64, _ time.Duration) (bool, error) {
	if v, ok := g.values[key]; !ok || v != before {
		return false, nil
	}
	g.values[key] = value
	return true, nil
}

type gcra struct {
	store   *gcraStore
	limiter *throttled.GCRARateLimiterCtx
}

func newThrottled(t *testing.T, rule policy.Rule) limiter {
	t.Helper()
	g := &gcra{store: &gcraStore{values: map[string]int64{}}}
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(int(rule.Limit), rule.Per), MaxBurst: int(rule.Burst) - 1}
	var err error
	g.limiter, err = throttled.NewGCRARateLimiterCtx(g.store, quota)
	must(t, err)
	return g
}

func (g *gcra) do(t *testing.T, _ int, st step) answer {
	t.Helper()
	g.store.now = began.Add(st.at)
	limited, res, err := g.limiter.RateLimitCtx(t.Context(), "key", int(st.n))
	must(t, err)
	return answer{granted: !limited, remaining: int64(res.Remaining), retry: max(0, res.RetryAfter), resetsIn: res.ResetAfter}
}

// rate_test.go of throttled/throttled v2. Its MaxBurst is one less than our burst.
func TestThrottled(t *testing.T) {
	t.Parallel()
	run(t, []table{
		{"one a second with a burst of five", bucket(1, s, 5), []step{
			{kind: take, n: 6, want: no(5, 0, 0), ours: &refused, differs: "A cost that can never pass"},
			{kind: take, n: 1, want: yes(4, s)},
			{kind: take, n: 1, want: yes(3, 2*s)},
			{kind: take, n: 1, want: yes(2, 3*s)},
			{kind: take, n: 1, want: yes(1, 4*s)},
			{kind: take, n: 1, want: yes(0, 5*s)},
			{kind: take, n: 1, want: no(0, s, 5*s)},
			{at: 3000 * ms, kind: take, n: 1, want: yes(2, 3*s)},
			{at: 3100 * ms, kind: take, n: 1, want: yes(1, 3900*ms)},
			{at: 4000 * ms, kind: take, n: 1, want: yes(1, 4*s)},
			{at: 8000 * ms, kind: take, n: 1, want: yes(4, s)},
			{at: 9500 * ms, kind: take, n: 1, want: yes(4, s)},
			{at: 9500 * ms, kind: look, want: yes(4, s)},
			{at: 9500 * ms, kind: take, n: 2, want: yes(2, 3*s)},
			{at: 9500 * ms, kind: take, n: 5, want: no(2, 3*s, 3*s)},
			{at: 15 * s, kind: take, n: 6, want: no(5, 0, 0), ours: &refused, differs: "A cost that can never pass"},
		}},
		{"three in ten milliseconds, one at a time", bucket(3, 10*ms, 1), []step{
			{kind: take, n: 1, want: yes(0, 3333333), ours: but(yes(0, 3334*µs)), differs: "Whole microseconds"},
			{kind: take, n: 1, want: no(0, 3333333, 3333333), ours: but(no(0, 3334*µs, 3334*µs)), differs: "Whole microseconds"},
			{at: 3333 * µs, kind: take, n: 1, want: no(0, 333, 333), ours: but(no(0, µs, µs)), differs: "Whole microseconds"},
			{at: 3334 * µs, kind: take, n: 1, want: yes(0, 3333333), ours: but(yes(0, 3334*µs)), differs: "Whole microseconds"},
			{at: 10 * ms, kind: take, n: 1, want: yes(0, 3333333), ours: but(yes(0, 3334*µs)), differs: "Whole microseconds"},
		}},
		{"a look at what is used up has the wait too", bucket(3, s, 1), []step{
			{kind: take, n: 1, want: answer{granted: true, retry: 0, resetsIn: 333333333}, ours: but(yes(0, 333334*µs)), differs: "Whole microseconds"},
			{kind: take, n: 1, want: no(0, 333333333, 333333333), ours: but(no(0, 333334*µs, 333334*µs)), differs: "Whole microseconds"},
			{kind: look, want: answer{granted: true, retry: 333333333, resetsIn: 333333333}, ours: but(no(0, 333334*µs, 333334*µs)), differs: "Looking"},
		}},
	}, newThrottled, exactly{})
}

// http_test.go: what a client of a handler is told. Both tell the wait in whole seconds, rounded up;
// ours has the names of the IETF's draft for the rest.
func TestThrottledTellsHTTPClients(t *testing.T) {
	t.Parallel()
	decided(t, "Header fields")
	rule := bucket(1, 30*s, 1)
	peer := newThrottled(t, rule).(*gcra)
	peer.store.now = began
	guard := throttled.HTTPRateLimiterCtx{RateLimiter: peer.limiter, VaryBy: &throttled.VaryBy{Path: true}}
	handler := guard.RateLimit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	own := newOurs(t, rule)
	for i, c := range []struct {
		status       int
		retry        string
		theirs, ours [3]string // limit, remaining and reset
	}{
		{http.StatusOK, "", [3]string{"1", "0", "30"}, [3]string{"1", "0", "30"}},
		{http.StatusTooManyRequests, "30", [3]string{"1", "0", "30"}, [3]string{"1", "0", "30"}},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		got := [3]string{w.Header().Get("X-RateLimit-Limit"), w.Header().Get("X-RateLimit-Remaining"), w.Header().Get("X-RateLimit-Reset")}
		if w.Code != c.status || w.Header().Get("Retry-After") != c.retry || got != c.theirs {
			t.Errorf("step %d: the peer answers %d with %v; the table says %v", i, w.Code, w.Header(), c)
		}
		d, err := own.limiter.Allow(t.Context(), own.scope)
		must(t, err)
		h := d.Header()
		if d.Allowed != (c.status == http.StatusOK) || h.Get("Retry-After") != c.retry {
			t.Errorf("step %d: granted %v with %v, want %v", i, d.Allowed, h, c)
		}
		want := `"` + own.scope + `:rule";r=` + c.ours[1] + `;t=` + c.ours[2]
		if got := h.Get("RateLimit"); got != want {
			t.Errorf("step %d: RateLimit is %q, want %q", i, got, want)
		}
	}
}
