package policies

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/headway-go/headway/throttle"
)

// FollowConfig is how Follow works. The zero FollowConfig is ready to use.
type FollowConfig struct {
	// Logger gets a line when a version comes into force, when one is not understood, and
	// when Redis does not answer and answers again. Defaults to none.
	Logger *slog.Logger
	// OnVersion is told of each version that is in force, in Follow's goroutine, what it
	// was made of, and what it comes to. Defaults to none.
	OnVersion func(Version, *throttle.Policy)
	// OnRefused is told of each version that is not understood: the limiter keeps what it
	// has. Defaults to none.
	OnRefused func(error)
	// OnNone is told, with each look, that there is nothing in Redis: it was emptied.
	// Defaults to none: the limiter keeps what it has.
	OnNone func()
}

// look is how often the store is looked at: so often that each look, and the time it
// takes, is well within Notice.
const look = 400 * time.Millisecond

// Follow keeps the limiter's policy what the store says, until ctx ends: it puts each
// version in force at its moment, and takes away what ends. Where Redis does not answer, or
// what stands there is not understood, or is nothing, the limiter keeps the policy that it
// has. Costs one round trip of one command each 400 ms, and a few for each version.
func Follow(ctx context.Context, s *Store, l *throttle.Limiter, cfg FollowConfig) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := follower{store: s, limiter: l, cfg: cfg}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		f.look(ctx)
		wait := time.Until(f.next)
		if f.next.IsZero() || wait > look {
			wait = look
		}
		change := time.NewTimer(max(0, wait))
		select {
		case <-ctx.Done():
			change.Stop()
			return
		case <-change.C:
		case <-tick.C:
		}
		change.Stop()
		f.turn(ctx)
	}
}

// follower is what Follow knows. Times are this process's: the server's clock is set
// against them with each version.
type follower struct {
	store   *Store
	limiter *throttle.Limiter
	cfg     FollowConfig

	known  int64         // the version that was read last, understood or not
	read   *Version      // the same, if it was understood
	off    time.Duration // the server's clock less this one
	next   time.Time     // when read comes into force, or something of it ends
	begun  bool          // read is in force
	failed bool          // Redis did not answer
}

// look looks whether there is another version, and reads it.
func (f *follower) look(ctx context.Context) {
	n, err := f.store.current(ctx)
	if err != nil && !errors.As(err, new(*DamagedError)) {
		f.silent(ctx, err)
		return
	}
	if f.failed {
		f.failed = false
		f.cfg.Logger.InfoContext(ctx, "the limits in Redis can be asked for again")
	}
	switch {
	case err != nil && f.known != -1:
		f.known = -1
		f.refuse(ctx, err)
	case err != nil:
	case n == 0 && f.cfg.OnNone != nil:
		f.cfg.OnNone()
	case n != f.known && n > 0:
		f.take(ctx, n)
	}
}

func (f *follower) silent(ctx context.Context, err error) {
	if !f.failed && ctx.Err() == nil {
		f.failed = true
		f.cfg.Logger.WarnContext(ctx, "the limits in Redis cannot be asked for; those in force stay", "error", err)
	}
}

func (f *follower) refuse(ctx context.Context, err error) {
	f.cfg.Logger.ErrorContext(ctx, "the limits in Redis are not understood; those in force stay", "error", err)
	if f.cfg.OnRefused != nil {
		f.cfg.OnRefused(err)
	}
}

// take reads a version, and notes when it comes into force.
func (f *follower) take(ctx context.Context, n int64) {
	v, err := f.store.Version(ctx, n)
	asked := time.Now()
	now, timeErr := f.store.now(ctx)
	if err == nil {
		err = timeErr
	}
	if err == nil {
		f.off = now.Sub(asked.Add(time.Since(asked) / 2))
		_, _, err = f.store.Policy(ctx, v, v.InForce) // what is not understood is told now
	}
	switch {
	case errors.As(err, new(*DamagedError)):
		f.known, f.read = n, nil
		f.refuse(ctx, err)
	case err != nil:
		f.silent(ctx, err)
	default:
		f.known, f.read, f.begun = n, &v, false
		f.next = v.InForce.Add(-f.off)
		f.turn(ctx)
	}
}

// turn puts what has been read in force, or what it is by now, if its moment has come.
func (f *follower) turn(ctx context.Context) {
	if f.read == nil || f.next.IsZero() || time.Now().Before(f.next) {
		return
	}
	v := *f.read
	p, next, err := f.store.Policy(ctx, v, time.Now().Add(f.off))
	if errors.As(err, new(*DamagedError)) {
		f.read = nil
		f.refuse(ctx, err)
		return
	} else if err != nil {
		f.silent(ctx, err)
		return
	}
	f.next = time.Time{}
	if !next.IsZero() {
		f.next = next.Add(-f.off)
	}
	if !same(f.limiter.Policy(), p) {
		f.limiter.SetPolicy(p)
	}
	ended := f.begun
	f.begun = true
	if ended {
		f.cfg.Logger.InfoContext(ctx, "limits that were set for a time have ended", "version", v.Number)
	} else {
		f.cfg.Logger.InfoContext(ctx, "limits in force", "version", v.Number, "change", v.Change, "by", v.By)
	}
	if f.cfg.OnVersion != nil {
		f.cfg.OnVersion(v, p)
	}
}
