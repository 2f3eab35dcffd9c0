// Package throttletest supports tests of programs that use package throttle.
//
// [Limiter] is a fake with scripted answers. Use it to test what a program does when it is limited, has to wait, or Redis is
// unavailable.
//
// [New] is a real limiter over a Redis in memory, without a network, that works in bubbles of testing/synctest: there an hour of
// limits takes no time and durations are exact. Use it to test that limits are correct. [NewWithRedis] also returns that Redis,
// to take it down ([Redis.Close]) or, outside of a bubble, to move its clock ([Redis.Advance], [Redis.SetTime]).
package throttletest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// TB is the part of a *testing.T, *testing.B or *testing.F that this package uses.
type TB interface {
	Helper()
	Cleanup(f func())
	Fatalf(format string, args ...any)
}

// New returns a limiter over a Redis of its own, in memory, which ends with t. In a bubble of testing/synctest, given that
// bubble's own t, both use the bubble's clock. It takes one cfg at most.
//
//	synctest.Test(t, func(t *testing.T) {
//		limiter := throttletest.New(t, policy)
//		…
//	})
//
// Before the test function returns, release leases and end the contexts of Wait and Join.
func New(t TB, policy *policy.Policy, cfg ...throttle.Config) *throttle.Limiter {
	t.Helper()
	limiter, _ := NewWithRedis(t, policy, cfg...)
	return limiter
}

// NewWithRedis is New that also returns the Redis, for tests that break it or move its clock.
func NewWithRedis(t TB, policy *policy.Policy, cfg ...throttle.Config) (*throttle.Limiter, *Redis) {
	t.Helper()
	if len(cfg) > 1 {
		t.Fatalf("throttletest: New takes at most one Config, got %d", len(cfg))
	}
	server := &Redis{Miniredis: miniredis.NewMiniRedis(), t: t}
	server.ClockTTL(true)
	t.Cleanup(server.Close)
	limiter, err := throttle.New(server.Client(), policy, append(cfg, throttle.Config{})[0])
	if err != nil {
		t.Fatalf("throttletest: %v", err)
	}
	return limiter, server
}

// Policy parses limits as limits.yaml has them, and fails t if they are invalid.
func Policy(t TB, limits string) *policy.Policy {
	t.Helper()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	if err != nil {
		t.Fatalf("throttletest: %v", err)
	}
	return policy
}

// Redis is the in-memory server of a limiter of [NewWithRedis]. It has the methods of a miniredis too: SetError, Keys.
type Redis struct {
	*miniredis.Miniredis
	t TB

	mu   sync.RWMutex
	down bool
	now  time.Time // zero until Advance or SetTime stops the clock
}

var errDown = errors.New("throttletest: connection refused, until Restart")

// Close cuts all connections and refuses new ones, like a server that is down.
func (r *Redis) Close() {
	r.mu.Lock()
	r.down = true
	r.mu.Unlock()
	r.Miniredis.Close()
}

// Restart undoes Close, with all data that the server held. The client needs up to a second to notice.
func (r *Redis) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Advance moves the server's clock without waiting. From the first call on the clock moves by Advance and SetTime alone. It is
// for tests of Allow, Decide, Peek and Refund: waits and leases use the clock of this process too, and need a bubble.
func (r *Redis) Advance(d time.Duration) {
	r.mu.RLock()
	now := r.now
	r.mu.RUnlock()
	if now.IsZero() {
		now = time.Now()
	}
	r.SetTime(now.Add(d))
}

// SetTime sets the server's clock to a date, for tests of calendars and of rules that hold in certain hours. Begin with the
// earliest date. From then on the clock moves by SetTime and Advance alone, as described there.
func (r *Redis) SetTime(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = t
	r.Miniredis.SetTime(t)
}

// Client returns a new client of the server, which the test's end closes. It dials no socket, so it works in a bubble.
func (r *Redis) Client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "miniredis:0", // never dialled
		Dialer:                   r.dial,
		DialerRetries:            1, // what is down stays so
		ContextTimeoutEnabled:    true,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, // it looks up a host
	})
	r.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func (r *Redis) dial(context.Context, string, string) (net.Conn, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.down {
		return nil, errDown
	}
	return r.Dial()
}
