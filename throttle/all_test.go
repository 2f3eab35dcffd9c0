package throttle

import (
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// "All rules pass and all are charged, at one start moment, or none is."
func TestAllOrNone(t *testing.T) {
	t.Parallel()
	policy := policyOf(t,
		policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: 5, Per: sec},
		policy.Rule{Name: "bucket", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 2},
		policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: 100, Per: 60 * sec},
		policy.Rule{Name: "parallel", Algorithm: policy.Concurrency, Limit: 3},
	)
	onBoth(t, Config{}, policy, func(b *bench) {
		first := b.decide(Request{Scope: "p/x", Cost: 2, ID: "a"})
		if !first.Allowed || first.Binding != 1 {
			b.t.Fatalf("got %+v", first)
		}
		denied := b.decide(Request{Scope: "p/x", ID: "b"})
		if denied.Allowed || denied.Binding != 1 || denied.RetryAfter != 100*ms {
			b.t.Fatalf("got %+v", denied)
		}
		for i, want := range []int64{3, 0, 98, 2} {
			if got := denied.Rules[i].Remaining; got != want {
				b.t.Errorf("rule %d has %d left after a denial, want %d", i, got, want)
			}
		}
		again := b.decide(Request{Scope: "p/x", Cost: 2, ID: "a"})
		if !again.Allowed || again.Rules[2].Remaining != 98 {
			b.t.Errorf("the same attempt was charged again: %+v", again)
		}
		ahead := b.decide(Request{Scope: "p/x", ID: "c", MaxDelay: sec})
		if !ahead.Allowed || ahead.Wait != 100*ms || ahead.Rules[2].Remaining != 97 {
			b.t.Errorf("got %+v, want a start in 100ms", ahead)
		}
		b.giveBack(ahead.Grant)
		b.giveBack(ahead.Grant)
		b.giveBack(first.Grant)
		clean := b.decide(Request{Scope: "p/x", ID: "d"})
		if !clean.Allowed || clean.Rules[0].Remaining != 4 || clean.Rules[2].Remaining != 99 || clean.Rules[3].Remaining != 2 {
			b.t.Errorf("after giving all back: %+v", clean)
		}
	})
}
