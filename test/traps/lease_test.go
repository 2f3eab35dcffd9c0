package traps

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Whoever asks again under its id keeps its place, full or not,
// and whoever is refused takes none away.
func TestTheHolderStays(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(places(2, 60*sec))
		ask := func(id string) bool { return l.decide(throttle.Request{ID: id}).Allowed }
		if !ask("a") || !ask("b") {
			w.Fatal("two places are not two")
		}
		for range 5 {
			if ask("c") {
				w.Error("a third run")
			}
			if !ask("a") || !ask("b") {
				w.Error("a holder was refused")
			}
		}
		low := w.limiter(places(1, 60*sec))
		if !low.decide(throttle.Request{ID: "a"}).Allowed || low.decide(throttle.Request{ID: "c"}).Allowed {
			w.Error("under a lowered limit")
		}
	})
}

// The place of a run that crashed is free when its lease ends, by
// Redis's clock; the task that comes back takes a place of its own.
func TestCrashedHolder(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(places(1, 30*sec))
		l.take(1)
		w.at(30*sec - us)
		if l.take(1).Allowed {
			w.Error("the place was free before its lease had ended")
		}
		w.at(30 * sec)
		if !l.take(1).Allowed {
			w.Error("the place was not free when its lease had ended")
		}
	})
}

// A run keeps its place for longer than a lease, gives it back
// at once when it ends, and also when its context has ended before.
func TestHeldWhileItRuns(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(places(1, sec))
		ctx, cancel := context.WithCancel(context.Background())
		d := l.take(1)
		held, lease := l.Lease(ctx, d.Grant)
		start := time.Now()
		redistest.WaitFor(w, "longer than a lease", bound, func() bool {
			if l.take(1).Allowed {
				w.Fatalf("a second run after %v", time.Since(start))
			}
			if err := held.Err(); err != nil {
				w.Fatalf("the run was told to stop: %v", context.Cause(held))
			}
			return time.Since(start) > 1700*ms
		})
		cancel()
		if err := lease.Release(ctx); err != nil {
			w.Errorf("release with a context that has ended: %v", err)
		}
		if !l.take(1).Allowed {
			w.Error("the place was not free when the run had ended")
		}
	})
}

// A run whose place somebody else may have is told so.
func TestToldOfTheLoss(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		ctx := context.Background()
		l := w.limiter(places(1, sec))
		held, lease := l.Lease(ctx, l.take(1).Grant)
		w.rdb.Del(ctx, w.keys()...)
		if !l.take(1).Allowed {
			w.Error("the place was not free")
		}
		redistest.WaitFor(w, "the run to be told", bound, func() bool { return held.Err() != nil })
		if !errors.Is(context.Cause(held), throttle.ErrLeaseLost) {
			w.Errorf("it was told %v", context.Cause(held))
		}
		if err := lease.Release(ctx); err != nil {
			w.Error(err)
		}
		if l.take(1).Allowed {
			w.Error("whoever lost its place freed the place of another")
		}
	})
}

// A place that is granted for a start ahead is held until
// then, and its lease counts from the start.
func TestHeldUntilItStarts(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(bucket(1, 20*sec, 1), places(1, 5*sec))
		l.giveBack(l.take(1))
		w.at(20 * sec)
		l = w.limiter(bucket(1, 20*sec, 1), places(2, 5*sec))
		l.take(1)
		d := l.decide(throttle.Request{MaxDelay: 30 * sec})
		if !d.Allowed || d.Wait != 20*sec {
			w.Fatalf("%+v", d)
		}
		one := w.limiter(places(1, 5*sec))
		for _, at := range []time.Duration{26 * sec, 39 * sec, 40 * sec, 45*sec - us} {
			w.at(at)
			if one.take(1).Allowed {
				w.Errorf("the place was free at %v", at)
			}
		}
		w.at(45 * sec)
		if !one.take(1).Allowed {
			w.Error("the place was not free when the lease had ended")
		}
	})
}

// What another rule makes wait holds no place meanwhile.
func TestNoPlaceWhileItWaits(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		policy := w.parsed(`limits: {p: {rules: [{name: places, algorithm: concurrency, limit: 1}],
			scopes: {slow: {rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h}]}, quick: {rules: []}}}}`)
		l := w.limiterOn(w.rdb, policy)
		for range 20 {
			if l.decide(throttle.Request{Scope: "p/slow"}).Allowed {
				w.Fatal("a suspended scope was admitted")
			}
		}
		d := l.decide(throttle.Request{Scope: "p/quick"})
		if !d.Allowed {
			w.Errorf("a waiting task holds the place: %+v", d)
		}
	})
}

// What is given back or released is there for the next who asks;
// nothing remembers the refusal.
func TestFreedAtOnce(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(1, hour), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		for i := range 20 {
			w.at(time.Duration(i) * ms)
			d := l.take(1)
			if !d.Allowed {
				w.Fatalf("round %d: refused, %+v", i, d)
			}
			if l.take(1).Allowed {
				w.Fatalf("round %d: two of one", i)
			}
			l.giveBack(d)
		}
	})
}

// Nothing is lost or won by giving grants back, first or
// last first, and none is given back twice.
func TestGivenBackInAnyOrder(t *testing.T) {
	t.Parallel()
	const most = 300
	forEach(t, kinds(most, hour), func(w *world, rule policy.Rule) {
		n := w.size(most)
		orders := map[string]func(i int) int{
			"first first": func(i int) int { return i },
			"last first":  func(i int) int { return n - 1 - i },
			"middle out":  func(i int) int { return (n/2 + i*7) % n },
		}
		for name, order := range orders {
			w.anew()
			l := w.limiter(rule)
			grants := make([]throttle.Decision, n)
			for i := range grants {
				w.at(time.Duration(i) * ms)
				grants[i] = l.take(1)
			}
			for i := range n {
				l.giveBack(grants[order(i)])
				l.giveBack(grants[order(i)])
			}
			left := int(l.left())
			if left > most || rule.Algorithm != policy.TokenBucket && left != most {
				w.Errorf("%s: %d of %d are left after all were given back", name, left, most)
			}
			if got := l.admitted(n); got != min(n, left) {
				w.Errorf("%s: %d of %d that are left", name, got, left)
			}
		}
	})
}

// Cancelled starts ahead leave no hole that stays, and make no
// room that was not there.
func TestGivenBackAhead(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(bucket(60, sec, 1))
		w.at(0)
		var ahead []throttle.Decision
		for range 300 {
			d := l.decide(throttle.Request{MaxDelay: 30 * sec})
			if !d.Allowed {
				w.Fatalf("%+v", d)
			}
			ahead = append(ahead, d)
		}
		for i := range ahead {
			l.giveBack(ahead[len(ahead)-1-i])
		}
		got := 0
		for at := time.Duration(0); at <= sec; at += 5 * ms {
			w.at(at)
			got += l.admitted(3)
		}
		if got > 61 {
			w.Errorf("%d in a second after 300 were cancelled, want 61 at most", got)
		}
		w.at(6 * sec)
		if got := l.admitted(3); got != 1 {
			w.Errorf("%d at once when all had passed, want 1", got)
		}
	})
}

// Those who are refused keep nobody else out: with five
// callers asking each millisecond, every unit is used when it comes.
func TestRefusedManyTimes(t *testing.T) {
	t.Parallel()
	forEach(t, []policy.Rule{bucket(100, sec, 1), sliding(1, 10*ms)}, func(w *world, rule policy.Rule) {
		l, got := w.limiter(rule), 0
		for at := time.Duration(0); at < 200*ms; at += ms {
			w.at(at)
			got += l.admitted(5)
		}
		if got != 20 {
			w.Errorf("%d of 20", got)
		}
	})
}
