package throttle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

const leaseTime = 30 * sec

func oneRun() policy.Rule {
	return policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: leaseTime}
}

// granted is a decision that was allowed.
func grantedBy(t *testing.T, l *Limiter) Decision {
	t.Helper()
	d, err := l.Allow(t.Context(), "p/x")
	if err != nil || !d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	return d
}

func places(t *testing.T, l *Limiter) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), Request{Scope: "p/x"})
	noError(t, err)
	return d.Rules[0].Remaining
}

// "a concurrency rule counts runs … renewed while it runs, freed by its release or its expiry". (trap I18)
func TestLease(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, oneRun()), nil, func(t *testing.T, _ *cable, l *Limiter) {
		ctx, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
		<-time.After(time.Hour)
		if ctx.Err() != nil || places(t, l) != 0 {
			t.Fatalf("after an hour: %v, %d places free", context.Cause(ctx), places(t, l))
		}
		for range 2 {
			noError(t, lease.Release(t.Context()))
		}
		if places(t, l) != 1 || !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("after the release: %d places free, the context ended by %v", places(t, l), context.Cause(ctx))
		}
		synctest.Wait() // what the release sets off has its replies
		trips := gated(l.rdb)
		<-time.After(time.Hour)
		if n := trips.trips.Load(); n != 0 {
			t.Errorf("%d round trips after the release", n)
		}
	})
}

// A run keeps its place whatever the limits become, and when a period of another rule has ended.
func TestLeaseUnderOtherLimits(t *testing.T) {
	t.Parallel()
	minutes := policy.Rule{Name: "m", Algorithm: policy.Calendar, Limit: 100, Resets: wallclock.MustParse("* * * * *", "UTC")}
	shorter := oneRun()
	shorter.Lease = leaseTime / 10
	for name, row := range map[string]struct{ before, then []policy.Rule }{
		"a period ends":           {[]policy.Rule{oneRun(), minutes}, []policy.Rule{oneRun(), minutes}},
		"a shorter lease":         {[]policy.Rule{oneRun()}, []policy.Rule{shorter}},
		"no such rule for a time": {[]policy.Rule{oneRun()}, []policy.Rule{minutes}},
	} {
		bubbleIn(t, name, Config{}, policyOf(t, row.before...), nil, func(t *testing.T, _ *cable, l *Limiter) {
			ctx, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
			l.SetPolicy(policyOf(t, row.then...))
			<-time.After(10 * leaseTime)
			l.SetPolicy(policyOf(t, row.before...))
			if ctx.Err() != nil || places(t, l) != 0 {
				t.Errorf("under other limits: %v, %d places free", context.Cause(ctx), places(t, l))
			}
			<-time.After(10 * leaseTime)
			if ctx.Err() != nil || places(t, l) != 0 {
				t.Errorf("under the former limits again: %v, %d places free", context.Cause(ctx), places(t, l))
			}
			noError(t, lease.Release(t.Context()))
		})
	}
}

// "A run that cannot renew is cancelled", with ErrLeaseLost, when its place runs out and not before, whatever Redis does.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*redis.Options)
		lose   func(t *testing.T, w *cable, l *Limiter)
		want   time.Duration
	}{
		"the key is deleted": {nil, func(t *testing.T, _ *cable, l *Limiter) {
			t.Helper()
			l.rdb.Del(t.Context(), keyOf(t, l, "p/x", 0))
		}, leaseTime / 3},
		"Redis is gone": {nil, func(_ *testing.T, w *cable, _ *Limiter) { w.down.Store(true) }, leaseTime},
		"Redis hangs":   {nil, func(_ *testing.T, w *cable, _ *Limiter) { w.hung.Store(true) }, leaseTime},
		"Redis hangs, with ContextTimeoutEnabled": {contextTimeout, func(_ *testing.T, w *cable, _ *Limiter) { w.hung.Store(true) }, leaseTime},
		"Redis hangs for longer than leases last": {func(o *redis.Options) { o.ReadTimeout = time.Hour }, func(_ *testing.T, w *cable, _ *Limiter) { w.hung.Store(true) }, leaseTime},
		"held late": {nil, func(_ *testing.T, w *cable, _ *Limiter) { w.down.Store(true) }, leaseTime / 3},
		"every reply is lost, and nothing renewed": {nil, func(_ *testing.T, w *cable, _ *Limiter) { w.down.Store(true); w.lose.Store(1 << 30) }, leaseTime},
	} {
		bubbleIn(t, name, Config{}, policyOf(t, oneRun()), test.change, func(t *testing.T, w *cable, l *Limiter) {
			d := grantedBy(t, l)
			if name == "held late" { // the lease runs from the grant
				<-time.After(leaseTime * 2 / 3)
			}
			ctx, lease := l.Lease(t.Context(), d.Grant)
			began := time.Now()
			test.lose(t, w, l)
			<-ctx.Done()
			if took := time.Since(began); took != test.want || !errors.Is(context.Cause(ctx), ErrLeaseLost) || !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("it ended after %s by %v, %v; want %s", took, context.Cause(ctx), ctx.Err(), test.want)
			}
			w.down.Store(false)
			w.hung.Store(false)
			w.lose.Store(0)
			<-time.After(2 * time.Hour) // for what hangs to time out
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("releasing what is lost: %v", err)
			}
		})
	}
}

// "Release … with a context that has ended": places are freed all the same, and what the run's own context says is kept.
func TestReleaseWithDeadContext(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, oneRun()), nil, func(t *testing.T, _ *cable, l *Limiter) {
		parent, cancel := context.WithCancelCause(t.Context())
		ctx, lease := l.Lease(parent, grantedBy(t, l).Grant)
		reason := errors.New("stopped")
		cancel(reason)
		<-time.After(time.Hour)
		if places(t, l) != 0 {
			t.Error("the place of a run whose context has ended is not kept until its release")
		}
		noError(t, lease.Release(ctx))
		if places(t, l) != 1 || !errors.Is(context.Cause(ctx), reason) {
			t.Errorf("%d places free; the context ended by %v", places(t, l), context.Cause(ctx))
		}
	})
}

// "The error wraps ErrUnavailable if Redis did not take the release. It is then sent again in the background": the place is free soon after Redis is back, however long its lease.
func TestReleaseIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w *cable, on bool){
		"refused": func(w *cable, on bool) { w.down.Store(on) },
		"hung":    func(w *cable, on bool) { w.hung.Store(on) },
	} {
		rule := oneRun()
		rule.Lease = time.Hour
		bubbleIn(t, name, Config{}, policyOf(t, rule), contextTimeout, func(t *testing.T, w *cable, l *Limiter) {
			_, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
			fault(w, true)
			if err := lease.Release(t.Context()); !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			<-time.After(10 * time.Minute)
			fault(w, false)
			<-time.After(lastRelease + 2*defaultTimeout) // one may be on its way, and hang
			if n := places(t, l); n != 1 {
				t.Errorf("%d places are free", n)
			}
		})
	}
}

// "… until Redis takes it or the lease has run out and the places are free anyway"
func TestReleaseGivesUp(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, oneRun()), nil, func(t *testing.T, w *cable, l *Limiter) {
		_, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
		w.down.Store(true)
		sent := gated(l.rdb)
		_ = lease.Release(t.Context())
		<-time.After(leaseTime)
		tried := sent.trips.Load()
		<-time.After(10 * leaseTime)
		if late := sent.trips.Load() - tried; late != 0 || tried < 10 {
			t.Errorf("it was sent %d times, and %d times after the lease", tried, late)
		}
		w.down.Store(false)
		<-time.After(2 * sec) // for the client's pool to have dialled
	})
}
