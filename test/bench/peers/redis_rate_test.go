package peers

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// redisRate is redis_rate v10, on a Redis whose TIME the test sets.
type redisRate struct {
	server  *miniredis.Miniredis
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func newRedisRate(t *testing.T, rule policy.Rule) limiter {
	t.Helper()
	server, rdb := redistest.Miniredis(t)
	return &redisRate{server, redis_rate.NewLimiter(rdb), redis_rate.Limit{Rate: int(rule.Limit), Burst: int(rule.Burst), Period: rule.Per}}
}

func (r *redisRate) do(t *testing.T, _ int, st step) answer {
	t.Helper()
	r.server.SetTime(began.Add(st.at))
	if st.kind == reset {
		must(t, r.limiter.Reset(t.Context(), "key"))
		return answer{}
	}
	n := st.n
	if st.kind == look {
		n = 0
	}
	res, err := r.limiter.AllowN(t.Context(), "key", r.limit, int(n))
	must(t, err)
	granted := int64(res.Allowed) == n
	if st.kind == look {
		granted = res.Remaining > 0 // it says nothing of that to n = 0
	}
	return answer{granted: granted, remaining: int64(res.Remaining), retry: max(0, res.RetryAfter), resetsIn: res.ResetAfter}
}

// rate_test.go of go-redis/redis_rate v10.
func TestRedisRate(t *testing.T) {
	t.Parallel()
	ten := bucket(10, s, 10)
	run(t, []table{
		{"ten a second, one by one and several at once", ten, []step{
			{kind: take, n: 1, want: yes(9, 100*ms)},
			{kind: reset},
			{kind: take, n: 1, want: yes(9, 100*ms)},
			{kind: take, n: 2, want: yes(7, 300*ms)},
			{kind: take, n: 7, want: yes(0, s)},
			{kind: take, n: 1000, want: no(0, 100*s, s), ours: &refused, differs: "A cost that can never pass"},
			{kind: take, n: 1, want: no(0, 100*ms, s)},
			{at: 100*ms - µs, kind: take, n: 1, want: no(0, µs, 900*ms+µs)},
			{at: 100 * ms, kind: take, n: 1, want: yes(0, s)},
		}},
		{"looking takes nothing", ten, []step{
			{kind: look, want: yes(10, 0)},
			{kind: take, n: 1, want: yes(9, 100*ms)},
			{kind: look, want: yes(9, 100*ms)},
			{kind: look, want: yes(9, 100*ms)},
		}},
		{"a wait is never longer than the time of a unit", bucket(1, ms, 1), []step{
			{kind: take, n: 1, want: yes(0, ms)},
			{kind: take, n: 1, want: no(0, ms, ms)},
			{at: 400 * µs, kind: take, n: 1, want: no(0, 600*µs, 600*µs)},
			{at: ms, kind: take, n: 1, want: yes(0, ms)},
		}},
	}, newRedisRate, exactly{times: 2 * µs, remaining: 1}) // it counts seconds in floating point, and rounds down
}

// AllowAtMost takes what is left, up to n, and so does ours.
func TestRedisRateTakesWhatIsLeft(t *testing.T) {
	t.Parallel()
	decided(t, "All of a cost, or nothing")
	rule := bucket(10, s, 10)
	peer, own := newRedisRate(t, rule).(*redisRate), newOurs(t, rule)
	peer.server.SetTime(began)
	for i, c := range []struct{ n, takes int64 }{{1, 1}, {2, 2}, {10, 7}, {1000, 0}} {
		res, err := peer.limiter.AllowAtMost(t.Context(), "key", peer.limit, int(c.n))
		if n := int64(res.Allowed); err != nil || n != c.takes && n != c.takes-1 { // in floating point
			t.Errorf("step %d: the peer takes %d, %v; the table says %d", i, res.Allowed, err, c.takes)
		}
		if d, got, err := own.limiter.AllowAtMost(t.Context(), own.scope, c.n); err != nil || got != c.takes || d.Allowed != (got > 0) {
			t.Errorf("step %d: took %d, %+v, %v, want %d", i, got, d, err, c.takes)
		}
	}
}

// "By default a rule is slower by the pad, the start tolerance of 5 ms: 10 a second are 10 in 1.005 s", as against redis_rate.
func TestPadIsTheDifference(t *testing.T) {
	t.Parallel()
	decided(t, "The pad")
	own := newOurs(t, bucket(10, s, 10))
	limiter, err := throttle.New(redistest.Client(t), own.limiter.Policy(), throttle.Config{})
	must(t, err)
	d, err := limiter.Decide(t.Context(), throttle.Request{Scope: own.scope, Cost: 10})
	if err != nil || d.Rules[0].ResetAfter != 1005*time.Millisecond {
		t.Errorf("ten of ten a second are back in %s, %v, want 1.005s", d.Rules[0].ResetAfter, err)
	}
}
