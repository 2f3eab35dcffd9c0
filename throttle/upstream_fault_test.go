package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// The pad slows a bucket that keeps to its API's limit as it slows any other; a margin leaves
// the rate alone.
func TestAdoptedRateIsPadded(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		margin     time.Duration
		told, want int64 // in a second, and in 400 ms
	}{{0, 800, 318}, {0, 1000, 398}, {0, 1200, 477}, {0, 9000, 597}, {ms, 1000, 400}, {ms, 1200, 480}} {
		t.Run(fmt.Sprint(one.told, one.margin), func(t *testing.T) {
			t.Parallel()
			rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000, Margin: one.margin}
			onBoth(t, Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: 150}, rule), func(b *bench) {
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
		})
	}
}

// A bucket comes to what the policy lets whatever its numbers are, as far as these reach, and
// Told says so far.
func TestBucketsOfLargeNumbersAreRaised(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ limit, most, want int64 }{
		{44_003, 150, 66_004}, {44_003, 1000, 440_030}, {7_000_003, 300, 21_000_009},
		{30_000_001, 150, 33_554_432}, {40_000_001, 150, 40_000_001},
	} {
		t.Run(fmt.Sprint(one.limit, one.most), func(t *testing.T) {
			t.Parallel()
			rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: one.limit, Per: time.Minute, Burst: one.limit}
			onBoth(t, Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: one.most}, rule), func(b *bench) {
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
		})
	}
}

// A limit that its API tells no more grows on from the whole, or from what refusals have left.
func TestUntoldLimitGrowsOn(t *testing.T) {
	t.Parallel()
	const told, calls, refused = 1, 2, 3
	type step struct {
		after time.Duration
		what  int
		want  int64
	}
	for name, steps := range map[string][]step{
		"calls go through": {
			{0, calls, 100}, {10 * sec, told, 100}, {30 * time.Minute, calls, 100}, {29 * time.Minute, calls, 100},
			{time.Minute - us(1), 0, 100}, {us(1), 0, 100}, {10 * sec, 0, 110}, {10 * sec, calls, 120}, {10 * sec, 0, 130}, {time.Hour, calls, 100},
		},
		"it had grown":   {{0, calls, 100}, {30 * sec, calls, 130}, {0, told, 100}, {59 * time.Minute, calls, 100}, {time.Minute, 0, 100}, {sec, 0, 101}},
		"it was refused": {{0, told, 100}, {59 * time.Minute, calls, 100}, {50 * sec, refused, 50}, {10 * sec, 0, 60}, {10 * sec, calls, 70}, {40 * sec, 0, 110}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 100, Per: 10 * sec}
			onBoth(t, Config{StartTolerance: -1}, raising(t, policy.Corrects{Cut: 50, Grow: 10, Most: 150}, rule), func(b *bench) {
				for i, step := range steps {
					b.pass(step.after)
					switch step.what {
					case told:
						b.heed("p", owns(100, 10*sec))
					case calls:
						b.heed("p", upstream.Hint{})
					case refused:
						b.heed("p", turnedDown(ms))
						b.pass(ms)
					}
					if n := b.counts("p", "r", 100); n != step.want {
						b.t.Fatalf("step %d: %d counts, want %d", i, n, step.want)
					}
				}
				n := steps[len(steps)-1].want
				if d := b.peek().Rules[0].Remaining; d != n {
					b.t.Errorf("%d may start, want %d", d, n)
				}
			})
		})
	}
}

// A bucket keeps to the rate that its API told when the policy gives it another window, and
// Told tells what that is there.
func TestToldOfABucketsOtherWindow(t *testing.T) {
	t.Parallel()
	for _, pad := range []time.Duration{-1, 5 * ms} {
		for _, one := range []struct {
			limit int64
			per   time.Duration
			want  int64 // what counts
		}{{100, time.Minute, 100}, {90, time.Second, 60}, {500, 10 * sec, 500}, {900, 10 * sec, 600}, {30, 100 * ms, 6}, {30, 10 * ms, 1}} {
			t.Run(fmt.Sprint(pad, one.limit, one.per), func(t *testing.T) {
				t.Parallel()
				onBoth(t, Config{StartTolerance: pad}, policyOf(t, bucket(100, 60)), func(b *bench) {
					b.heed("p", owns(60, sec))
					rule := bucket(one.limit, 60)
					rule.Per = one.per
					b.SetPolicy(policyOf(b.t, rule))
					// What is counted in a window is a fraction more or less of it with the pad.
					if n := b.counts("p", "r", one.limit); n < one.want-one.want/100 || n > one.want+one.want/100 {
						b.t.Errorf("%d counts, want %d", n, one.want)
					}
				})
			})
		}
	}
}
