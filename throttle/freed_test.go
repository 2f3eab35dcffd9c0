package throttle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "What comes free, by this Limiter, that tasks wait for: places that a run gives back, units that are settled or given
// back, a rule that is reset", and nothing else.
func TestFreedIsTold(t *testing.T) {
	t.Parallel()
	calls, tokens := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 4, Per: time.Hour}, policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 2, Lease: leaseTime}
	onBoth(t, Config{}, policyOf(t, calls, tokens), func(b *bench) {
		told := 0
		end := b.Waitlist().OnCapacityFreed(func(provider string) {
			if provider != "p" {
				b.t.Errorf("%q came free", provider)
			}
			told++
		})
		want := func(n int, after string) {
			b.t.Helper()
			if told != n {
				b.t.Errorf("after %s: told %d times, want %d", after, told, n)
			}
			told = 0
		}
		run := func() (Grant, *Lease) {
			d := b.decide(Request{Scope: "p"})
			if !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
			_, lease := b.Lease(ctx, d.Grant)
			return d.Grant, lease
		}
		release := func(lease *Lease) {
			noError(b.t, lease.Release(ctx))
		}
		first, lease := run()
		release(lease)
		b.giveBack(first)
		want(0, "a run ended that nobody waited for")

		one, lease := run()
		two, other := run()
		b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "a"}})
		release(lease)
		want(1, "a place was given back")
		release(lease)
		want(1, "that was sent again, as where its reply is lost")
		if _, err := b.Settle(ctx, one, policy.Costs{"requests": 2}); err != nil {
			b.t.Fatal(err)
		}
		want(0, "more was spent")
		if _, err := b.Settle(ctx, one, policy.Costs{"requests": 0}); err != nil {
			b.t.Fatal(err)
		}
		want(1, "less was spent")
		for range 2 { // as where its reply is lost
			b.giveBack(two)
			want(1, "a grant was given back")
		}
		if _, err := b.Reset(ctx, "p", ""); err != nil {
			b.t.Fatal(err)
		}
		want(1, "the rules were reset")
		end()
		release(other)
		want(0, "nobody listens")
	})
}

// "A Limiter without such an f announces the provider instead, as PublishActive does, at most four times a second."
func TestFreedIsAnnounced(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, policyOf(t, policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1, Lease: leaseTime}), nil, func(t *testing.T, _ *wire, l *Limiter) {
		announced := func() time.Time {
			synctest.Wait()
			turns, err := l.Waitlist().ActiveProviders(t.Context(), time.Time{})
			noError(t, err)
			return turns["p"]
		}
		_, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
		if d, err := l.Waitlist().Queue(t.Context(), Request{Scope: "p/x", Turn: Turn{WaiterID: "waits"}}); err != nil || d.Allowed || !announced().IsZero() {
			t.Fatalf("%+v, %v", d, err)
		}
		noError(t, lease.Release(t.Context()))
		if at := announced(); at.UnixMicro() != time.Now().UnixMicro() {
			t.Errorf("announced at %v, and a place came free at %v", at, time.Now())
		}
		began, seen := time.Now(), map[time.Time]bool{}
		for range 40 {
			<-time.After(25 * time.Millisecond)
			l.tellFreed("p")
			seen[announced()] = true
		}
		<-time.After(announcedEach)
		if last := announced(); len(seen) > 5 || last.Before(began.Add(time.Second)) {
			t.Errorf("%d announcements in a second, the last after %s", len(seen), last.Sub(began))
		}
	})
}
