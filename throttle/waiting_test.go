package throttle

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// readAll reads who waits for p in parts, and counts how often each was read.
func readAll(b *bench, l *Limiter, most int) map[WaiterRef]int {
	b.t.Helper()
	got, w := map[WaiterRef]int{}, l.Waitlist().Waiting("p")
	for {
		some, err := w.Next(ctx, most)
		noError(b.t, err)
		for _, p := range some {
			got[p]++
		}
		if w.entry == "" && !w.last && len(w.open) == 0 {
			return got // it begins anew
		}
	}
}

func lineUpAll(b *bench, asks []Waiter) {
	b.t.Helper()
	placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
	noError(b.t, err)
	for i, at := range placed {
		if at.Err != nil || !at.Waits {
			b.t.Fatalf("%+v: %+v", asks[i], at)
		}
	}
}

// "Next returns about most waiters": all of them, whatever the line, the level,
// the priority, the cost, and however small the part, under a policy that knows none of them.
func TestWaitingNamesAll(t *testing.T) {
	t.Parallel()
	account := policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: 2, Per: 3600 * sec}
	tenant := policy.Rule{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 2, Per: 3600 * sec, Burst: 2}
	pol, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{account}, Scopes: map[string]policy.ScopeConfig{
		"*": {Weight: 3, Rules: []policy.Rule{tenant}}, "odd {%} *": {Weight: 2, Rules: []policy.Rule{tenant}},
	}}})
	noError(t, err)
	onBoth(t, Config{}, pol, func(b *bench) {
		b.decide(Request{Scope: "p/first", Cost: 2, ID: NewID()})
		var asks []Waiter
		for i := range 2 * waitingPart {
			asks = append(asks, Waiter{Scope: "p/many", ID: fmt.Sprint(i), Priority: i % 3 * 1000, Cost: int64(i % 2 * 2)})
		}
		for i := range 2*waitingEntries + 1 {
			for j := range 2 {
				asks = append(asks, Waiter{Scope: fmt.Sprint("p/t", i, "/below"), ID: fmt.Sprint(j), Costs: policy.Costs{policy.Requests: 1, "tokens": 7}})
			}
		}
		asks = append(asks, Waiter{Scope: "p", ID: "top"}, Waiter{Scope: "p/odd {%} *", ID: "odd: {%} *"})
		lineUpAll(b, asks)
		b.pass(sec)
		_, _ = b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p"}) // which moves seats
		other := newLimiter(b.t, b.rdb, policyOf(b.t, account), Config{Prefix: b.cfg.Prefix})
		for _, most := range []int{1, 700, 100_000} {
			got := readAll(b, other, most)
			if len(got) != len(asks) {
				b.t.Errorf("in parts of %d: %d places, want %d", most, len(got), len(asks))
			}
			for _, a := range asks {
				if n := got[a.Ref()]; n < 1 || n > 2 {
					b.t.Fatalf("in parts of %d: %+v came %d times", most, a, n)
				}
			}
		}
	})
}

// "True for one at a time", until it lets it go.
func TestClaim(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bucket(1, 1)), func(b *bench) {
		other := newLimiter(b.t, b.rdb, policyOf(b.t, bucket(1, 1)), Config{Prefix: b.cfg.Prefix})
		for i, try := range []struct {
			by          *Limiter
			again, mine bool
			goes        bool // its time is over before
		}{
			{b.Limiter, false, true, false}, {other, false, false, false}, {b.Limiter, true, true, false}, {other, false, false, false},
			{other, false, true, true}, {b.Limiter, true, false, false}, {b.Limiter, true, false, true}, {other, false, true, false},
		} {
			key := b.provider("p") + "!claim"
			if try.goes {
				b.rdb.Del(ctx, key)
			}
			mine, err := try.by.Waitlist().Claim(ctx, "p", time.Minute, try.again)
			if err != nil || mine != try.mine {
				b.t.Errorf("try %d: %v, %v", i, mine, err)
			}
			if left := b.rdb.PTTL(ctx, key).Val(); mine && (left <= 0 || left > time.Minute) {
				b.t.Errorf("try %d: it stays for %s", i, left)
			}
		}
	})
}

// What docs/operations.md lets a user do is enough for this too, and a server that refuses is an outage.
func TestWaitingAccess(t *testing.T) {
	t.Parallel()
	_, commands := documentedAccess(t)
	prefix := redistest.Prefix(t)
	for may, user := range map[bool]*redis.Client{true: redistest.User(t, []string{prefix + ":*"}, commands...), false: redistest.User(t, nil)} {
		l := newLimiter(t, user, policyOf(t, bucket(1, 1)), Config{Prefix: prefix})
		_, next := l.Waitlist().Waiting("p").Next(ctx, 10)
		_, claim := l.Waitlist().Claim(ctx, "p", time.Minute, false)
		for _, err := range []error{next, claim} {
			if may != (err == nil) || !may && !errors.Is(err, ErrUnavailable) {
				t.Errorf("may %t: %v", may, err)
			}
		}
	}
}
