// Package outage decides while Redis does not, by the rules' failure policies: it counts this process's shares of the limits. It
// knows nothing of Redis. docs/limits.md has the policies.
package outage

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Outage is what a process knows while Redis does not decide: since when, and what it has spent of its shares meanwhile. It is
// safe for concurrent use.
//
// Redis may fail for some keys and answer for others (one shard of a cluster is down, one key holds a foreign value), so a share
// lasts until its own rule is decided by Redis again, and the outage until nothing has failed for a moment.
type Outage struct {
	logger *slog.Logger
	on     atomic.Bool

	mu     sync.Mutex
	since  time.Time // zero while Redis decides
	latest time.Time // of the failures
	shares map[string]*share
}

const (
	// calm is how long nothing may fail before an outage is over.
	calm = time.Second
	// maxShares bounds what an outage remembers. Beyond it a share is dropped. If that is asked for again, it begins anew as
	// fully spent, which is safe.
	maxShares = 10_000
)

// New returns an Outage that has not begun. It logs its begin and its end.
func New(logger *slog.Logger) *Outage { return &Outage{logger: logger, shares: map[string]*share{}} }

// Closed reports whether rules of a scope stop all requests while Redis does not decide. live is the number of processes that
// share the limits, 0 if it is not known.
func Closed(s *wire.Scope, live int64) bool {
	return s.Pool != nil || slices.ContainsFunc(s.Rules, func(b policy.MatchedRule) bool {
		return b.Rule.OnRedisError == policy.FailClosed || b.Rule.OnRedisError == policy.FailShare && live == 0
	})
}

// On reports whether there is an outage.
func (o *Outage) On() bool { return o.on.Load() }

// Failed notes that Redis did not decide, and logs the first failure.
func (o *Outage) Failed(err error) {
	o.mu.Lock()
	o.latest = time.Now()
	first := o.since.IsZero()
	if first {
		o.since = o.latest
		o.on.Store(true)
	}
	o.mu.Unlock() // a log handler may be slow, or ask the limiter
	if first {
		o.logger.Warn("redis unavailable; applying on_redis_error", "error", err)
	}
}

// Decided notes that Redis decided under the rules of a scope: their shares end, and the outage if nothing has failed for a moment.
func (o *Outage) Decided(s *wire.Scope) {
	o.mu.Lock()
	for _, b := range s.Rules {
		delete(o.shares, wire.StateKey(s.Prefix, b))
	}
	lasted := time.Since(o.since)
	over := !o.since.IsZero() && time.Since(o.latest) >= calm
	if over {
		o.since = time.Time{}
		o.on.Store(false)
		clear(o.shares)
	}
	o.mu.Unlock()
	if over {
		o.logger.Info("redis available again; on_redis_error no longer applies", "outage", lasted.Round(time.Millisecond))
	}
}

// Request is a request that Redis did not decide.
type Request struct {
	Scope *wire.Scope
	ID    string // under which its run holds places
	Cost  func(policy.Rule) int64
	Live  int64         // how many processes share the limits
	Slack time.Duration // how far ahead starts may be that Redis granted before
}

// State is the state of a rule after a decision.
type State struct {
	Open              bool // nothing is counted
	Limit, Left       int64
	RetryIn, ResetsIn time.Duration
}

// Decide grants a request from this process's shares of all rules of its scope, or from none. It returns the state of each rule.
func (o *Outage) Decide(r Request, now time.Time) (states []State, allowed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rules := r.Scope.Rules
	states, allowed = make([]State, len(rules)), true
	shares := make([]*share, len(rules))
	for i, b := range rules {
		if states[i].Open = b.Rule.OnRedisError != policy.FailShare; states[i].Open {
			continue
		}
		shares[i] = o.share(wire.StateKey(r.Scope.Prefix, b), b.Rule, r.Live, now, r.Slack)
		states[i].RetryIn = shares[i].fit(now, r.Cost(b.Rule))
		allowed = allowed && states[i].RetryIn == 0
	}
	for i, s := range shares {
		if s == nil {
			continue
		}
		if allowed {
			s.take(now, r.ID, r.Cost(rules[i].Rule))
		}
		states[i].Limit, states[i].Left, states[i].ResetsIn = s.limit, s.left(now), s.reset(now)
	}
	return states, allowed
}

func (o *Outage) share(key string, r policy.Rule, live int64, now time.Time, slack time.Duration) *share {
	if o.shares[key] == nil {
		if len(o.shares) >= maxShares {
			for other, s := range o.shares {
				if !s.runs() {
					delete(o.shares, other)
					break
				}
			}
		}
		o.shares[key] = newShare(r, live, now, slack)
	}
	return o.shares[key]
}

// Hold keeps the places of a granted request until they are given back: its holder is in this process, and ends with it.
func (o *Outage) Hold(s *wire.Scope, id string) {
	o.places(s, func(s *share) { s.hold(id) })
}

// GiveBack frees the places of a granted request; its units are few and stay spent.
func (o *Outage) GiveBack(s *wire.Scope, id string) {
	o.places(s, func(s *share) { s.giveBack(id) })
}

// places visits the shares of a scope's concurrency rules.
func (o *Outage) places(s *wire.Scope, visit func(*share)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range s.Rules {
		if sh := o.shares[wire.StateKey(s.Prefix, b)]; sh != nil && b.Rule.Algorithm == policy.Concurrency {
			visit(sh)
		}
	}
}
