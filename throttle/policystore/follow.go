package policystore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// FollowConfig configures Follow. The zero FollowConfig is ready to use.
type FollowConfig struct {
	// Logger gets a line when a version comes into force, when a version cannot be decoded, and when Redis becomes unavailable or available
	// again. Defaults to none.
	Logger *slog.Logger
	// OnVersion receives each version that comes into force, and its policy. It is called in Follow's goroutine. Defaults to none.
	OnVersion func(Version, *policy.Policy)
	// OnRefused receives the error of each version that cannot be decoded; the limiter keeps its policy. Defaults to none.
	OnRefused func(error)
	// OnNone is called at each poll that finds no limits in Redis: it was emptied. The limiter keeps its policy. Defaults to none.
	OnNone func()
	// App and Worker are the values of this process in Store.Processes.
	App    string
	Worker bool
}

// pollEvery is how often the store is asked for a new version: so often that each poll, and the time it takes, is well within Notice.
const pollEvery = 400 * time.Millisecond

// Follow keeps the limiter's policy up to date with the store until ctx ends. It puts each version in force at its moment, and removes what
// ends. If several versions are written while one is about to come into force, the last of them follows it. If Redis does not answer, or
// has no limits or ones that cannot be decoded, the limiter keeps its policy. Meanwhile Store.Processes lists this process, with the
// version that is in force here. Costs one round trip of one command each 400 ms, two each 15 seconds, and a few for each version.
func Follow(ctx context.Context, s *Store, l *throttle.Limiter, cfg FollowConfig) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := follower{store: s, limiter: l, cfg: cfg}
	self := newAnnouncer(s, Process{App: cfg.App, Worker: cfg.Worker, Follows: true})
	defer self.leave(ctx)
	for ctx.Err() == nil {
		f.enforce(ctx) // a version that comes into force makes room for the next
		f.poll(ctx)
		f.enforce(ctx)
		self.renew(ctx, f.inForce)
		wait := pollEvery
		if !f.next.IsZero() {
			wait = max(time.Millisecond, min(wait, time.Until(f.next)))
		}
		sleep(ctx, wait)
	}
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// follower is the state of Follow. Times are this process's.
type follower struct {
	store   *Store
	limiter *throttle.Limiter
	cfg     FollowConfig

	polled  time.Time
	mark    string         // of the version that was read last, decoded or not
	read    *Version       // that version, if it was decoded
	base    *policy.Policy // the policy below its live changes
	offset  time.Duration  // the server's clock less this one
	next    time.Time      // when read comes into force, or something of it ends; zero for never
	begun   bool           // read is in force
	inForce int64          // the version that came into force last
	failed  bool           // Redis did not answer
}

// poll reads the newest version, if there is another. It does not while a version is still to come into force: if changes came in quick
// succession, none ever would.
func (f *follower) poll(ctx context.Context) {
	if time.Since(f.polled) < pollEvery || f.read != nil && !f.begun {
		return
	}
	f.polled = time.Now()
	mark, err := f.store.mark(ctx, f.store.rdb)
	if err == nil && mark != "" && mark != f.mark {
		err = f.take(ctx, mark)
	}
	if err != nil {
		if !f.failed && ctx.Err() == nil {
			f.failed = true
			f.cfg.Logger.WarnContext(ctx, "cannot read the limits in Redis; keeping the current limits", "error", err)
		}
		return
	}
	if f.failed {
		f.failed = false
		f.cfg.Logger.InfoContext(ctx, "limits in Redis readable again")
	}
	if mark == "" {
		f.mark, f.read, f.next = "", nil, time.Time{}
		if f.cfg.OnNone != nil {
			f.cfg.OnNone()
		}
	}
}

// take reads a version, and notes when it comes into force. The error is that of a Redis that did not answer.
func (f *follower) take(ctx context.Context, mark string) error {
	clock := f.store.clock(ctx)
	asked := time.Now()
	now, err := serverTime(ctx, clock)
	if err != nil {
		return err
	}
	offset := now.Sub(asked.Add(time.Since(asked) / 2))
	r, err := f.store.current(ctx, f.store.rdb)
	var base *policy.Policy
	if err == nil {
		base, err = f.store.base(ctx, f.store.rdb, r.Version)
	}
	if err == nil {
		if _, _, invalid := r.policy(base, r.InForce); invalid != nil {
			err = &DamagedError{r.Number, invalid} // reported now, not when it comes into force
		}
	}
	if errors.As(err, new(*DamagedError)) {
		f.mark = mark
		f.refuse(ctx, err)
		return nil
	}
	if err != nil {
		return err
	}
	f.mark, f.read, f.base, f.begun, f.offset = markOf(r.Version), &r.Version, base, false, offset
	f.next = r.InForce.Add(-offset)
	if latest := time.Now().Add(Notice); f.next.After(latest) {
		f.next = latest // another server has taken over, whose clock is behind
	}
	return nil
}

func (f *follower) refuse(ctx context.Context, err error) {
	f.read, f.next = nil, time.Time{}
	f.cfg.Logger.ErrorContext(ctx, "invalid limits in Redis; keeping the current limits", "error", err)
	if f.cfg.OnRefused != nil {
		f.cfg.OnRefused(err)
	}
}

// enforce puts the version that was read in force, or removes what has ended of it, when that is due.
func (f *follower) enforce(ctx context.Context) {
	if f.read == nil || f.next.IsZero() || time.Now().Before(f.next) {
		return
	}
	v := *f.read
	p, next, err := v.policy(f.base, time.Now().Add(f.offset))
	if err != nil {
		f.refuse(ctx, &DamagedError{v.Number, err})
		return
	}
	f.next = time.Time{}
	if !next.IsZero() {
		f.next = next.Add(-f.offset)
	}
	if !bytes.Equal(limitsyaml.Format(f.limiter.Policy()), limitsyaml.Format(p)) {
		f.limiter.SetPolicy(p)
	}
	if f.begun {
		f.cfg.Logger.InfoContext(ctx, "temporary limits expired", "version", v.Number)
	} else {
		f.cfg.Logger.InfoContext(ctx, "limits in force", "version", v.Number, "change", v.Change, "by", v.By)
	}
	f.begun, f.inForce = true, v.Number
	if f.cfg.OnVersion != nil {
		f.cfg.OnVersion(v, p)
	}
}
