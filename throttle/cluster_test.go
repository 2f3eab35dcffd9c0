package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// reply is an error that a server answers with.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// tryAgain has the next scripts, so many, refused as by a node whose slot is half moved.
func tryAgain(rdb redis.UniversalClient) (left *atomic.Int64) {
	left = new(atomic.Int64)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if !runsScript(cmd) || left.Add(-1) < 0 {
			return send()
		}
		return reply("TRYAGAIN Multiple keys request during rehashing of slot")
	}))
	return left
}

// "A decision that meets a slot on the move is made when the move is over, if that takes less
// than a second." No rule's failure policy is asked, though this one would let it start.
func TestDecisionWaitsForAMove(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec, OnRedisError: policy.FailOpen}
	bubble(t, Config{}, policyOf(t, rule), nil, func(t *testing.T, _ *cable, l *Limiter) {
		left := tryAgain(l.rdb)
		left.Store(5)
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Allowed || d.Degraded || left.Load() >= 0 {
			t.Errorf("%d refusals are left: %+v, %v", left.Load(), d, err)
		}
		left.Store(1)
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || d.Allowed {
			t.Errorf("the first was not counted: %+v, %v", d, err)
		}
	})
}

// "Where it takes longer, on_redis_error decides" within a second, and a caller who goes is not kept.
func TestLongMoveIsAnOutage(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec}), nil, func(t *testing.T, _ *cable, l *Limiter) {
		left := tryAgain(l.rdb)
		left.Store(1 << 30)
		began := time.Now()
		_, err := l.Allow(t.Context(), "p/x")
		if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took < sec*9/10 || took > sec {
			t.Errorf("got %v after %v", err, took)
		}
		if n := 1<<30 - left.Load(); n > 16 {
			t.Errorf("it was sent %d times", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), sec/4)
		defer cancel()
		began = time.Now()
		if _, err := l.Allow(ctx, "p/x"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != sec/4 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		<-time.After(2 * sec) // what it may have taken is given back
	})
}

// "A limiter renews the map of its own client whenever a call fails", whatever its ClusterStateReloadInterval: here it would be a
// minute.
func TestFollowsAFailover(t *testing.T) {
	t.Parallel()
	first, second := redistest.NewServer(t), redistest.NewServer(t)
	var over atomic.Bool
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		DialerRetries: 1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			node := map[bool]string{false: first.Addr(), true: second.Addr()}[over.Load()]
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: node}}}}, nil
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLimiter(t, rdb, policy.PerSecond("p", 1000), Config{})
	grantedBy(t, l)
	first.Kill9()
	if _, err := l.Allow(t.Context(), "p/x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("with its master gone: %v", err)
	}
	over.Store(true)
	redistest.WaitAsking(t, "a decision of the new master", 20*time.Second, func() bool { return allowed(l, "p/x") == nil })
}

// "Works on a redis.UniversalClient": alone and many at once, with tasks that wait, and processes that count each other.
func TestClients(t *testing.T) {
	t.Parallel()
	clients := map[string]redis.UniversalClient{
		"single": redistest.Client(t), "Cluster": redistest.Cluster(t), "Sentinel": redistest.NewSentinel(t).Client(t),
		"Ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.NewServer(t).Addr(), "b": redistest.NewServer(t).Addr()}}),
	}
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { _ = rdb.Close() })
			b := newBench(t, rdb, Config{}, policyOf(t, window10(), runs10()))
			d := b.decide(Request{Scope: "p/x", ID: "one"})
			b.settled(d.Grant, policy.Costs{policy.Requests: 2})
			noError(t, b.SaveGrant(ctx, d.Grant, "one", time.Hour))
			b.giveBack(b.kept("one"))
			b.queued("p/x", "a", "b")
			if got := b.dispatched(0); len(got) != 2 {
				t.Errorf("%+v", got)
			}
			together(t, b.Limiter, 5, nil, func(int) error { return allowed(b.Limiter, "p/x") })
			for others, id := range []string{"one", "two"} {
				if n, err := b.countMembers(ctx, id, time.Minute); err != nil || n != int64(others)+1 {
					t.Errorf("%s: %d processes, %v", id, n, err)
				}
			}
		})
	}
}
