package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// The pad slows a bucket that keeps to its API's limit as it slows any other; a margin leaves
// the rate alone.
func TestAdoptedRateIsPadded(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		margin     time.Duration
		told, want int64 // in a second, and in 400 ms
	}{{0, 800, 318}, {0, 1000, 398}, {0, 1200, 477}, {0, 9000, 597}, {ms, 1000, 400}, {ms, 1200, 480}} {
		rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000, Margin: one.margin}
		onBothIn(t, fmt.Sprint(one.told, one.margin), Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: 150}, rule), func(b *bench) {
			b.decide(Request{Scope: "p", Cost: 700})
			b.heed("p", owns(one.told, sec))
			was := b.peek().Rules[0].Remaining
			b.pass(400 * ms)
			if n := b.peek().Rules[0].Remaining - was; n < one.want || n > one.want+1 {
				b.t.Errorf("%d units came back in 400ms, want %d", n, one.want)
			}
			if n, want := b.counts("p", "r", 1000), min(one.told, 1500); n != want {
				b.t.Errorf("%d counts, want %d", n, want)
			}
		})
	}
}

// A bucket comes to what the policy lets whatever its numbers are, as far as these reach, and
// Told says so far.
func TestBucketsOfLargeNumbersAreRaised(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ limit, most, want int64 }{
		{44_003, 1000, 440_030}, {7_000_003, 300, 21_000_009}, {30_000_001, 150, 33_554_432}, {40_000_001, 150, 40_000_001},
	} {
		rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: one.limit, Per: time.Minute, Burst: one.limit}
		onBothIn(t, fmt.Sprint(one.limit, one.most), Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: one.most}, rule), func(b *bench) {
			b.heed("p", owns(1<<40, time.Minute))
			b.decide(Request{Scope: "p", Cost: one.limit})
			b.pass(3 * sec)
			per := int64(60_005)
			if manyFit(rule, 5*ms, 1) {
				per += 5
			}
			if n, want := b.peek().Rules[0].Remaining, one.want*3000/per; n < want-want/100_000-1 || n > want {
				b.t.Errorf("%d units came back in 3s, want %d", n, want)
			}
			if n := b.counts("p", "r", one.limit); n < one.want-1 || n > one.want {
				b.t.Errorf("%d counts, want %d", n, one.want)
			}
		})
	}
}
