package throttletest

import (
	"github.com/alicebob/miniredis/v2"

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

// New returns a limiter over a Redis of its own, in memory, which ends with t.
// Both go by the clock of the time package, so that in a bubble of
// testing/synctest, given that bubble's own t, they go by the bubble's. A cfg of
// the caller's may be given; at most one.
//
//	synctest.Test(t, func(t *testing.T) {
//		limiter := throttletest.New(t, policy)
//		…
//	})
//
// Whatever the limiter still does when the test function returns must come to
// an end by itself: release leases, and end the contexts of Wait and Join.
func New(t TB, policy *policy.Policy, cfg ...throttle.Config) *throttle.Limiter {
	t.Helper()
	limiter, _ := NewWithRedis(t, policy, cfg...)
	return limiter
}

// NewWithRedis is New that also returns the Redis, for tests that break it or
// move its clock.
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
