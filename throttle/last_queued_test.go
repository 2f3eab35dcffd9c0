package throttle

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// queuedWorld is a state of queues whose last starts are estimated.
type queuedWorld struct {
	limits  policy.ScopeConfig
	waiting map[string]int
	refused string        // a scope whose API asks for a pause of 40 s
	most    time.Duration // by how much an estimate may be off: a queue that is blocked counts as if it took its turns
}

var shared = policy.Rule{Name: "account", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 1}

var lastWorlds = map[string]queuedWorld{
	"one queue":                      {policy.ScopeConfig{Rules: []policy.Rule{shared}}, map[string]int{"p": 50}, "", sec},
	"a small queue beside a backlog": {policy.ScopeConfig{Rules: []policy.Rule{shared}}, map[string]int{"p/a": 41, "p/b": 400}, "", sec},
	"a queue with a rule of its own": {policy.ScopeConfig{Rules: []policy.Rule{shared}, Scopes: map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{bucket(1, 1)}}}},
		map[string]int{"p/a": 30, "p/b": 60}, "", 3 * sec},
	"windows": {policy.ScopeConfig{Rules: []policy.Rule{{Name: "account", Algorithm: policy.SlidingWindow, Limit: 20, Per: 10 * sec}}},
		map[string]int{"p/a": 30, "p/b": 60}, "", 10 * sec},
	"a paused tenant": {policy.ScopeConfig{Rules: []policy.Rule{shared}, Scopes: map[string]policy.ScopeConfig{"a": {Pause: policy.PauseOn, PausedUntil: time.UnixMicro(epoch).Add(time.Minute)}}},
		map[string]int{"p/a": 300, "p/b": 10}, "", 1500 * ms},
	"a tenant whose API asks for a pause": {policy.ScopeConfig{Rules: []policy.Rule{shared}}, map[string]int{"p/a": 300, "p/b": 10}, "p/a", 1500 * ms},
}

// About when the last waiter of a queue starts is when it then does, whatever else waits, and whoever pauses it.
func TestLastStarts(t *testing.T) {
	t.Parallel()
	for name, world := range lastWorlds {
		onBothIn(t, name, Config{}, limitsOf(t, map[string]policy.ScopeConfig{"p": world.limits}), func(b *bench) {
			b.at(0)
			b.decide(Request{Scope: "p"})
			var scopes []string
			var claimed []WaiterRef
			world := queuedWorld{world.limits, maps.Clone(world.waiting), world.refused, world.most}
			for scope, n := range world.waiting {
				var asks []Waiter
				for i := range n {
					asks = append(asks, Waiter{Scope: scope, ID: fmt.Sprint(scope, i)})
				}
				placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
				noError(b.t, err)
				for i, one := range placed {
					if !one.Waits { // it starts at once
						claimed = append(claimed, asks[i].Ref())
						world.waiting[scope]--
					}
				}
				scopes = append(scopes, scope)
			}
			if world.refused != "" {
				b.heed(world.refused, upstream.Hint{Limited: true, Status: 429, Retry: 40 * sec, RetryKnown: true})
			}
			list, err := b.Waitlist().LastQueued(ctx, scopes...)
			noError(b.t, err)
			started := b.lastStarts(claimed)
			for i, scope := range scopes {
				last := b.ticketAt(scope, world.waiting[scope]-1, list[i])
				if off := (last - started[scope]).Abs(); off > world.most {
					b.t.Errorf("the last of %s is expected in %s, and started in %s", scope, last, started[scope])
				}
			}
		})
	}
}

// ticketAt is when a waiter at a place of its queue is expected, which must be the last one.
func (b *bench) ticketAt(scope string, place int, got WaiterStatus) time.Duration {
	b.t.Helper()
	if !got.Waits || got.Ahead != int64(place) {
		b.t.Errorf("the last of %s: %+v", scope, got)
	}
	return got.Expected.In
}

// lastStarts has all waiters of p start, some of which have, and returns when the last of each scope did, from now.
func (b *bench) lastStarts(claimed []WaiterRef) map[string]time.Duration {
	b.t.Helper()
	began, last := b.now.Load(), map[string]time.Duration{}
	for range 5000 {
		d := b.dispatch(DispatchRequest{Lead: 10 * ms, Max: 50, CheckAll: true, Claimed: claimed})
		claimed = claimed[:0]
		for _, g := range d.Granted {
			last[g.Scope] = max(last[g.Scope], us(b.now.Load()-began)+g.Wait)
			claimed = append(claimed, g.WaiterRef)
		}
		if !d.Waiting {
			return last
		}
		b.pass(max(20*ms, min(d.Next, sec)))
	}
	b.t.Fatalf("some wait on: %v", last)
	return nil
}
