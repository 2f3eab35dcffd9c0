package policystore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// FollowConfig configures Follow. The zero FollowConfig is ready to use.
type FollowConfig struct {
	// Logger gets a line when a version comes into force, when a version cannot be decoded, and when
	// Redis becomes unavailable or available again. Defaults to none.
	Logger *slog.Logger
	// OnVersion receives each version that comes into force, and its policy. It is called in Follow's
	// goroutine. Defaults to none.
	OnVersion func(Version, *policy.Policy)
	// OnRefused receives the error of each version that cannot be decoded; the limiter keeps its policy.
	// Defaults to none.
	OnRefused func(error)
	// OnNone is called at each poll that finds no limits in Redis: it was emptied. The limiter keeps its
	// policy. Defaults to none.
	OnNone func()
	// App and Worker are the values of this process in Store.Processes.
	App    string
	Worker bool
}

// look is how often the store is looked at: so often that each look, and the time it
// takes, is well within Notice.
const look = 400 * time.Millisecond

// renewEvery is how often what is followed is made to stand for longer, and renewAgain when
// that failed: of fileStays little is over by then.
const (
	renewEvery = time.Hour
	renewAgain = time.Minute
)

// expiryNotice is how long before the limits expire a warning is logged that no process renews them,
// or half of their time, if that is less.
const expiryNotice = 30 * 24 * time.Hour

// Follow keeps the limiter's policy up to date with the store until ctx ends. It puts each version in
// force at its moment, and removes what ends. If several versions are written while one is about to
// come into force, the last of them follows it. If Redis does not answer, or has no limits or ones
// that cannot be decoded, the limiter keeps its policy. Follow renews the expiry of the limits in
// Redis, if its Redis user may change them. With a read-only user it leaves that to other processes,
// and logs if none has renewed them for long. Meanwhile Store.Processes lists this process, with the
// version that is in force here. Costs one round trip of one command each 400 ms, two each 15 seconds,
// one or two each hour, and a few for each version.
func Follow(ctx context.Context, s *Store, l *throttle.Limiter, cfg FollowConfig) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := follower{store: s, limiter: l, cfg: cfg}
	self := newAnnouncer(s, Process{App: cfg.App, Worker: cfg.Worker, Follows: true})
	defer self.leave(ctx)
	for ctx.Err() == nil {
		f.turn(ctx) // what has come into force makes room for what was written since
		f.look(ctx)
		f.turn(ctx)
		self.renew(ctx, f.version)
		wait := look
		if !f.next.IsZero() {
			wait = max(time.Millisecond, min(wait, time.Until(f.next)))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// follower is what Follow knows. Times are this process's: the server's clock is set
// against them with each version.
type follower struct {
	store   *Store
	limiter *throttle.Limiter
	cfg     FollowConfig

	looked  time.Time
	known   string         // what stands for the version that was read last, understood or not
	read    *Version       // the same, if it was understood
	base    *policy.Policy // what it lies over
	off     time.Duration  // the server's clock less this one
	next    time.Time      // when read comes into force, or something of it ends; zero for never
	begun   bool           // read is in force
	version int64          // the one that came into force last
	failed  bool           // Redis did not answer
	renew   time.Time      // when it is to be renewed
	stale   bool           // it could not be
	ends    bool           // nobody has renewed it for long, and this user may not
}

// look looks whether there is another version, and reads it. One that is still to come
// into force is not given up for the next: changes that come quicker would never be.
func (f *follower) look(ctx context.Context) {
	if time.Since(f.looked) < look || f.read != nil && !f.begun {
		return
	}
	f.looked = time.Now()
	mark, err := f.store.mark(ctx, f.store.rdb)
	switch {
	case err != nil:
		f.silent(ctx, err)
		return
	case mark == "":
		f.known, f.read, f.next = "", nil, time.Time{}
		if f.cfg.OnNone != nil {
			f.cfg.OnNone()
		}
	case mark != f.known:
		if !f.take(ctx, mark) {
			return
		}
	}
	if f.failed {
		f.failed = false
		f.cfg.Logger.InfoContext(ctx, "limits in Redis readable again")
	}
	f.keep(ctx)
}

// keep makes what was read stand for longer: its workers may be gone. A version is renewed
// when it is new, too: who renewed the one before may have been late.
func (f *follower) keep(ctx context.Context) {
	if f.read == nil || time.Now().Before(f.renew) {
		return
	}
	err := f.store.renew(ctx, *f.read)
	f.renew = time.Now().Add(renewEvery)
	switch {
	case errors.Is(err, ErrNotPermitted):
		f.expiring(ctx)
		return
	case err != nil:
		f.renew = time.Now().Add(renewAgain)
		if !f.stale && ctx.Err() == nil {
			f.cfg.Logger.WarnContext(ctx, "cannot renew the limits in Redis, and they may expire; retrying each minute", "error", err)
		}
	case f.stale:
		f.cfg.Logger.InfoContext(ctx, "limits in Redis renewed again")
	}
	f.stale = err != nil
}

// expiring is for a read-only user: other processes renew the limits, and it logs once if none of them
// has for long.
func (f *follower) expiring(ctx context.Context) {
	left, err := f.store.left(ctx)
	ends := err == nil && left > 0 && left < min(f.read.stays()/2, expiryNotice)
	if ends && !f.ends {
		f.cfg.Logger.WarnContext(ctx, "limits in Redis expire soon, and this Redis user may not renew them; "+
			"to renew them, run worker limits list as a user that may change limits", "expire_in", left.Round(time.Second))
	}
	f.ends = ends
}

func (f *follower) silent(ctx context.Context, err error) {
	if !f.failed && ctx.Err() == nil {
		f.failed = true
		f.cfg.Logger.WarnContext(ctx, "cannot read the limits in Redis; keeping the current limits", "error", err)
	}
}

func (f *follower) refuse(ctx context.Context, err error) {
	f.read, f.next = nil, time.Time{}
	f.cfg.Logger.ErrorContext(ctx, "invalid limits in Redis; keeping the current limits", "error", err)
	if f.cfg.OnRefused != nil {
		f.cfg.OnRefused(err)
	}
}

// take reads a version, and notes when it comes into force. It returns false where Redis
// has to be asked again.
func (f *follower) take(ctx context.Context, mark string) bool {
	v, err := f.store.marked(ctx, f.store.rdb, mark)
	var base *policy.Policy
	if err == nil {
		base, err = f.store.base(ctx, f.store.rdb, v)
	}
	clock := f.store.clock(ctx)
	asked := time.Now()
	now, clockErr := f.store.now(ctx, clock)
	took := time.Since(asked)
	if err == nil {
		if _, _, bad := v.policy(base, v.InForce); bad != nil {
			err = &DamagedError{v.Number, bad} // a version that cannot be decoded is reported now
		}
	}
	switch {
	case errors.As(err, new(*DamagedError)):
		f.known = mark
		f.refuse(ctx, err)
		return true
	case err != nil || clockErr != nil:
		f.silent(ctx, errors.Join(err, clockErr))
		return false
	}
	f.off = now.Sub(asked.Add(took / 2))
	f.known, f.read, f.base, f.begun, f.renew = mark, &v, base, false, time.Time{}
	f.next = v.InForce.Add(-f.off)
	if latest := time.Now().Add(Notice); f.next.After(latest) {
		f.next = latest // the server's clock has stepped back since it was written
	}
	return true
}

// turn puts what has been read in force, or what it is by now, if its moment has come.
func (f *follower) turn(ctx context.Context) {
	if f.read == nil || f.next.IsZero() || time.Now().Before(f.next) {
		return
	}
	v := *f.read
	p, next, err := v.policy(f.base, time.Now().Add(f.off))
	if err != nil {
		f.refuse(ctx, &DamagedError{v.Number, err})
		return
	}
	f.next = time.Time{}
	if !next.IsZero() {
		f.next = next.Add(-f.off)
	}
	if !same(f.limiter.Policy(), p) {
		f.limiter.SetPolicy(p)
	}
	if f.begun {
		f.cfg.Logger.InfoContext(ctx, "temporary limits expired", "version", v.Number)
	} else {
		f.cfg.Logger.InfoContext(ctx, "limits in force", "version", v.Number, "change", v.Change, "by", v.By)
	}
	f.begun, f.version = true, v.Number
	if f.cfg.OnVersion != nil {
		f.cfg.OnVersion(v, p)
	}
}
