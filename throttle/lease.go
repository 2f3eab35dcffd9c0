package throttle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// Lease holds a run's places under the concurrency rules of its scope. It is safe for concurrent use.
type Lease struct {
	limiter *Limiter
	grant   Grant
	lost    context.CancelCauseFunc
	shadow  *shadow     // of the grant
	again   atomic.Bool // the release is being sent again

	mu    sync.Mutex
	over  bool        // released or lost: nothing is renewed any more
	until time.Time   // when the last of the places runs out unrenewed
	ends  *time.Timer // cancels the run when the places run out
	renew *time.Timer
}

// Lease holds the places of an allowed decision while a run lasts. It renews them every third of the shortest lease. The returned
// context ends with cause ErrLeaseLost when the places have expired without a renewal. A handler that ignores its context may
// then overlap with the next run that got the place.
//
// The Lease must be released, which also ends the context. For a grant without concurrency rules there is nothing to hold: the
// context is ctx itself, and Release does nothing. Lease costs no round trip, and each renewal costs one. No goroutine runs
// between renewals.
func (l *Limiter) Lease(ctx context.Context, g Grant) (context.Context, *Lease) {
	held, lease := l.hold(ctx, g)
	lease.shadow = g.shadow
	g.shadow.to(shadowHeld)
	return held, lease
}

func (l *Limiter) hold(ctx context.Context, g Grant) (context.Context, *Lease) {
	if g.plan == nil { // it took nothing
		return ctx, &Lease{}
	}
	shortest, longest, some := g.leases()
	if !some {
		return ctx, &Lease{}
	}
	s := &Lease{limiter: l, grant: g}
	if g.local {
		l.outage.Hold(g.plan.Scope, g.id)
		return ctx, s
	}
	held, lost := context.WithCancelCause(ctx)
	s.lost = lost
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = g.from.Add(longest)
	since := time.Since(g.from)
	s.ends = time.AfterFunc(shortest-since, func() { s.end(ErrLeaseLost) })
	s.renew = time.AfterFunc(g.renewed(shortest)/3-since, func() { s.beat(shortest, longest) })
	return held, s
}

// probeLease is for how long the probe of a breaker holds its place unrenewed, as lua/include/pause.lua has it.
const probeLease = 30 * time.Second

// neverLost is the lease of a run that holds nothing without which it ends.
const neverLost = 365 * 24 * time.Hour

// probes reports whether a grant may be the probe of a breaker, which holds a place as under a concurrency rule. But a run that has
// lost that place goes on.
func (g Grant) probes() bool { return g.probe && len(g.plan.Breakers) > 0 }

// leases returns the shortest lease with which a run ends, the longest of what it holds, and false if it holds nothing.
func (g Grant) leases() (shortest, longest time.Duration, some bool) {
	shortest, longest, some = g.plan.leases()
	if g.probes() && !some {
		return neverLost, probeLease, true
	}
	return shortest, longest, some
}

// renewed returns in what time all leases have to be renewed, given the shortest with which the run ends.
func (g Grant) renewed(shortest time.Duration) time.Duration {
	if g.probes() {
		return min(shortest, probeLease)
	}
	return shortest
}

// beat renews once, and schedules the next renewal: in a third of the lease, or sooner after a failure.
func (s *Lease) beat(lease, longest time.Duration) {
	sent := time.Now()
	p, rules, err := s.limiter.report(context.Background(), s.grant, "kept", 0, nil, false)
	if err == nil && p != nil {
		if len(rules) < len(p.Rules) {
			s.end(ErrLeaseLost)
			return
		}
		g := s.grant
		g.plan = p
		if shortest, most, some := g.leases(); some { // others if a period had ended and the limits are new
			lease, longest = shortest, most
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case err != nil:
		s.renew.Reset(s.grant.renewed(lease) / 12)
	default:
		s.until = sent.Add(longest)
		s.ends.Reset(lease - time.Since(sent))
		s.renew.Reset(s.grant.renewed(lease) / 3)
	}
}

// end stops the renewals and ends the run's context, once.
func (s *Lease) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.ends == nil {
		return
	}
	s.over = true
	s.ends.Stop()
	s.renew.Stop()
	s.lost(cause)
}

// Release ends the lease and its context, and frees its places for other runs. It may be called more than once, and with a
// context that has ended: it has its own time-out. The error wraps ErrUnavailable if Redis did not take the release. It is then
// sent again in the background, until Redis takes it or the lease has expired, which frees the places anyway. Costs one round
// trip.
func (s *Lease) Release(ctx context.Context) error {
	s.shadow.to(shadowReleased)
	switch {
	case s.limiter == nil:
		return nil
	case s.grant.local:
		s.limiter.freeLocal(s.grant)
		return nil
	}
	s.end(context.Canceled)
	ctx = context.WithoutCancel(ctx)
	took := max(0, time.Since(s.grant.from))
	if err := s.release(ctx, took); err != nil {
		if !s.again.Swap(true) {
			s.releaseLater(firstRelease, took)
		}
		return wire.Unavailable(ctx, "release a lease of", s.grant.scope, err)
	}
	return nil
}

func (s *Lease) release(ctx context.Context, took time.Duration) error {
	_, _, err := s.limiter.report(ctx, s.grant, "ended", took.Microseconds(), nil, true)
	return err
}

// A release that Redis did not take is sent again after a pause that doubles, up to lastRelease.
const (
	firstRelease = 250 * time.Millisecond
	lastRelease  = 2 * time.Second
)

// releaseLater sends a release again after a pause, and again, while its places are taken.
func (s *Lease) releaseLater(pause, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Add(pause).After(s.until) {
		return
	}
	time.AfterFunc(pause, func() {
		if err := s.release(context.Background(), took); err != nil && !errors.Is(err, redis.ErrClosed) {
			s.releaseLater(min(2*pause, lastRelease), took)
		}
	})
}
