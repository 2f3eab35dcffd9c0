package throttle

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Lease is the places that a run holds under the concurrency rules of its scope.
// It is safe for concurrent use.
type Lease struct {
	limiter *Limiter
	grant   Grant
	keys    []string
	leases  []any
	stop    context.CancelFunc
	ended   chan struct{}
}

// Hold keeps the places of an allowed decision while a run lasts: it renews them
// every third of the shortest lease, and the context it returns ends with cause
// ErrLeaseLost when they could not be renewed before they ran out. A handler
// that ignores its context may then overlap with whoever got the place.
//
// The Lease must be released. For a grant without concurrency rules there is
// nothing to hold: the context is ctx itself and Release does nothing.
func (l *Limiter) Hold(ctx context.Context, g Grant) (context.Context, *Lease) {
	none := &Lease{}
	if g.Zero() || g.local {
		return ctx, none
	}
	p, err := l.plans.of(g.scope)
	if err != nil || len(p.leases) == 0 {
		return ctx, none
	}
	keys, leases, shortest := p.leaseKeys()
	held, lost := context.WithCancelCause(ctx)
	beat, stop := context.WithCancel(context.WithoutCancel(ctx))
	lease := &Lease{limiter: l, grant: g, keys: keys, leases: leases, stop: stop, ended: make(chan struct{})}
	go lease.keep(beat, shortest, lost)
	return held, lease
}

// keep renews until it is stopped or the lease has run out.
func (s *Lease) keep(ctx context.Context, lease time.Duration, lost context.CancelCauseFunc) {
	defer close(s.ended)
	ends := time.Now().Add(lease)
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		sent := time.Now()
		held, err := s.renew(ctx, ends)
		switch {
		case err == nil && held:
			ends = sent.Add(lease)
		case ctx.Err() != nil:
			return
		case err == nil || !time.Now().Before(ends):
			lost(ErrLeaseLost)
			return
		default:
			ticker.Reset(min(lease/3, max(time.Until(ends)/4, time.Millisecond)))
			continue
		}
		ticker.Reset(lease / 3)
	}
}

func (s *Lease) renew(ctx context.Context, ends time.Time) (held bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	args := append([]any{s.limiter.clock(), s.grant.id}, s.leases...)
	reply, err := s.limiter.runner.run(ctx, call{script: scriptOf(lua.Renew, ""), keys: s.keys, args: args})
	return err == nil && reply[0] == 1, err
}

// Release ends the lease and frees its places for whoever waits. It may be
// called more than once, and with a context that has ended: it has its own
// time-out. The error wraps ErrUnavailable when Redis could not be told; the
// places are then free when the lease runs out. Costs one round trip.
func (s *Lease) Release(ctx context.Context) error {
	if s.limiter == nil {
		return nil
	}
	s.stop()
	<-s.ended
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limiter.cfg.Timeout)
	defer cancel()
	err := scriptOf(lua.Release, "").Run(ctx, s.limiter.runner.rdb, s.keys, s.grant.id).Err()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns Nil itself
		return unavailable(ctx, "release a lease of", s.grant.scope, err)
	}
	return nil
}
