package traps

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// After every grant each key stays for as long as it
// counts, and not for ever; a minute after the window nothing is left.
func TestKeysOutlastTheirMeaning(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(10, 60*sec), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		for i, cost := range []int64{3, 1, 2} {
			w.at(time.Duration(i) * sec)
			d := l.take(cost)
			if i == 1 {
				l.giveBack(d)
				d, _ = l.Peek(context.Background(), throttle.Request{Scope: "p/x"})
			}
			for _, key := range w.keys() {
				ttl := w.rdb.PTTL(context.Background(), key).Val()
				least := d.Rules[0].ResetAfter
				if strings.Contains(key, "@") {
					least = 25 * sec
				}
				if ttl < least || ttl > 122*sec {
					w.Errorf("%s expires in %v, and counts for %v", key, ttl, least)
				}
			}
		}
		if w.mini != nil {
			w.at(123 * sec)
			if keys := w.keys(); len(keys) != 0 {
				w.Errorf("a window and a minute later there are %q", keys)
			}
		}
	})
}

// A key that expires while it is used comes back with a TTL.
func TestAtTheEdgeOfExpiry(t *testing.T) {
	t.Parallel()
	forEach(t, rates(3, 20*ms), func(w *world, rule policy.Rule) {
		ctx := context.Background()
		l := w.limiter(rule)
		first := l.take(1).At
		redistest.WaitFor(w, "many windows", bound, func() bool {
			last := l.take(1).At
			for _, key := range w.keys() {
				if strings.Contains(key, "@") {
					w.rdb.Del(ctx, key)
				} else if w.rdb.PTTL(ctx, key).Val() == -1 {
					w.Fatalf("%s would stay for ever", key)
				}
			}
			return last.Sub(first) > 1200*ms
		})
	})
}

// A key that somebody made PERSIST gets its TTL back, and what it says
// counts for no longer than it would have.
func TestLostTTL(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(3, 60*sec), func(w *world, rule policy.Rule) {
		ctx := context.Background()
		w.at(0)
		l := w.limiter(rule)
		l.admitted(3)
		persist := func() {
			for _, key := range w.keys() {
				w.rdb.Persist(ctx, key)
			}
		}
		persist()
		if d := l.take(1); d.Allowed {
			w.Errorf("%+v", d)
		}
		for _, key := range w.keys() {
			if ttl := w.rdb.PTTL(ctx, key).Val(); !strings.Contains(key, "@") && ttl < 0 {
				w.Errorf("a refusal left %s without a TTL", key)
			}
		}
		persist()
		w.at(60 * sec)
		if got := l.admitted(9); got != 3 {
			w.Errorf("%d of 3 after the window", got)
		}
	})
}

// The time until a rule is whole again is counted from its window,
// is never below zero and 0 for a rule that nothing was taken from.
func TestResetsInTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(40 * sec)
		l := w.limiter(fixed(5, 60*sec))
		if d := l.take(1); d.Rules[0].ResetAfter != 20*sec {
			w.Errorf("40s into a minute it is whole in %v", d.Rules[0].ResetAfter)
		}
		other := policy.Rule{Name: "unused", Algorithm: policy.SlidingWindow, Limit: 5, Per: hour}
		both := w.limiter(fixed(1, 60*sec), other)
		d := both.take(1)
		if r := d.Rules[1]; d.Allowed || r.ResetAfter != 0 || r.RetryAfter != 0 || r.Remaining != 5 ||
			r.Tuple() != (throttle.Tuple{0, 5, 5, -1, 0}) {
			w.Errorf("a rule that nothing was taken from: %+v", r)
		}
	})
}
