package throttle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/reference"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// raising is a policy whose answers correct its rules so far.
func raising(t testing.TB, c policy.Corrects, rules ...policy.Rule) *policy.Policy {
	t.Helper()
	return limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules, Corrects: c}})
}

// counts is what counts in the place of a rule's limit.
func (b *bench) counts(scope, rule string, limit int64) int64 {
	b.t.Helper()
	told, err := b.UpstreamState(ctx, scope)
	noError(b.t, err)
	for _, c := range told.Corrections {
		if c.Bound.Rule.Name == rule {
			limit = c.Limit
		}
	}
	return limit
}

// wantCounts wants so much to count in the place of a rule's limit.
func (b *bench) wantCounts(what, scope, rule string, limit, want int64) {
	b.t.Helper()
	if n := b.counts(scope, rule, limit); n != want {
		b.t.Errorf("%s: of %s's %d %d count, want %d", what, rule, limit, n, want)
	}
}

// "An API's own limit that is larger is adopted up to most of the configured one", for each
// algorithm that has windows, and what the policy lets is in force at once.
func TestLargerLimitIsAdopted(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"token bucket": {Algorithm: policy.TokenBucket, Burst: 3}, "sliding window": {Algorithm: policy.SlidingWindow}, "fixed window": {Algorithm: policy.FixedWindow},
		"window on use": {Algorithm: policy.FixedWindow, OpensOnUse: true}, "window on use, margin": {Algorithm: policy.FixedWindow, OpensOnUse: true, Margin: 100 * ms},
	} {
		rule.Name, rule.Limit, rule.Per = "r", 20, time.Minute
		onBothIn(t, name, Config{StartTolerance: -1}, raising(t, policy.Corrects{Most: 150}, rule), func(b *bench) {
			minute := func() (n int) {
				b.pass(time.Minute - us(b.now.Load()%60_000_000))
				if rule.OpensOnUse { // its windows begin with no minute: with this one, all are over
					b.pass(2 * time.Minute)
				}
				for range 59 {
					b.pass(sec)
					if b.decide(Request{Scope: "p", ID: NewID()}).Allowed {
						n++
					}
				}
				return n
			}
			least := func(n, want int) {
				b.t.Helper()
				if n > want || n < want-1 {
					b.t.Errorf("%d were admitted in a minute, of %d", n, want)
				}
			}
			b.hear("p", owns(26, time.Minute))
			b.wantCounts("the API has 26", "p", "r", 20, 26)
			minute() // the first one ends where another begins
			least(minute(), 26)
			b.hear("p", owns(200, time.Minute))
			b.wantCounts("the API has 200", "p", "r", 20, 30)
			least(minute(), 30)
			noError(b.t, b.ResetUpstream(ctx, "p"))
			minute()
			least(minute(), 20)
		})
	}
}

// "It goes on to grow above the configured limit while calls go through", by the same steps, up to most; a refusal cuts what
// it is by then. When nobody has called for an hour the configured one counts again.
func TestLimitGrows(t *testing.T) {
	t.Parallel()
	corrects := policy.Corrects{Cut: 50, Grow: 10, Least: 40, Most: 150}
	policy := raising(t, corrects, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 100, Per: 10 * sec},
		policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: 1000, Per: 24 * time.Hour})
	onBoth(t, Config{}, policy, func(b *bench) {
		for i, step := range []struct {
			after  time.Duration
			answer upstream.Hint
			counts int64
		}{
			{0, upstream.Hint{}, 100}, {10 * sec, upstream.Hint{Unread: true}, 100}, // who does not read answers may not report refusals either
			{0, upstream.Hint{Failed: true, Status: 502}, 100}, {0, upstream.Hint{Failed: true}, 100}, // an API that fails has let nothing through
			{0, upstream.Hint{}, 110}, {5 * sec, upstream.Hint{}, 115}, {60 * sec, upstream.Hint{}, 150},
			{0, turnedDown(ms), 75}, {sec, upstream.Hint{}, 76}, {34 * sec, upstream.Hint{}, 100},
			{0, turnedDown(ms), 50}, {10 * sec, turnedDown(ms), 40}, {10 * sec, turnedDown(ms), 40}, {50 * sec, upstream.Hint{}, 90},
			{0, owns(100, 10*sec), 90}, {time.Minute, upstream.Hint{}, 100}, // it has told its limit: no further than that
			{0, turnedDown(ms), 50}, {0, owns(120, 10*sec), 60}, {time.Minute, upstream.Hint{}, 120}, {0, turnedDown(ms), 60},
		} {
			b.pass(step.after)
			b.hear("p", step.answer)
			b.wantCounts(fmt.Sprint("step ", i), "p", "r", 100, step.counts)
			b.wantCounts(fmt.Sprint("step ", i), "p", "day", 1000, 1000)
		}
		noError(b.t, b.ResetUpstream(ctx, "p"))
		b.hear("p", upstream.Hint{})
		for range 3 {
			b.pass(50 * time.Minute)
			b.hear("p", upstream.Hint{})
			b.wantCounts("while calls go through", "p", "r", 100, 150)
		}
		b.pass(61 * time.Minute)
		b.wantCounts("nobody has called for an hour", "p", "r", 100, 100)
		b.admits("nobody has called for an hour", "p", 200, 100)
		b.hear("p", upstream.Hint{})
		b.wantCounts("the first call goes through", "p", "r", 100, 100)
		b.hear("p", owns(100, 10*sec)) // and it grows on when it was not told for an hour
		for _, step := range []struct {
			after time.Duration
			want  int64
		}{{30 * time.Minute, 100}, {29 * time.Minute, 100}, {time.Minute + 10*sec, 150}} {
			b.pass(step.after)
			b.hear("p", upstream.Hint{})
			b.wantCounts(step.after.String(), "p", "r", 100, step.want)
		}
	})
}

// The numbers of the level at which a rule counts decide, whoever is told below it.
func TestCorrectsOfTheRulesLevel(t *testing.T) {
	t.Parallel()
	rule := func(name string) []policy.Rule {
		return []policy.Rule{{Name: name, Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Minute}}
	}
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {
		Rules: rule("all"), Corrects: policy.Corrects{Cut: 40},
		Scopes: map[string]policy.ScopeConfig{"a": {Corrects: policy.Corrects{Cut: 60, Most: 200}, Scopes: map[string]policy.ScopeConfig{"own": {Rules: rule("own")}}}},
	}})
	onBoth(t, Config{}, policy, func(b *bench) {
		b.hear("p/a", turnedDown(ms))
		b.hear("p/a/own", turnedDown(ms))
		b.wantCounts("refused", "p/a/own", "all", 100, 60)
		b.wantCounts("refused", "p/a/own", "own", 100, 40)
		b.hear("p/a", upstream.Hint{})
		b.hear("p/a/own", upstream.Hint{})
		for range 2 { // it has grown back, and grows on
			b.pass(35 * time.Minute)
			b.hear("p/a", upstream.Hint{})
			b.hear("p/a/own", upstream.Hint{})
		}
		if all, own := b.counts("p/a/own", "all", 100), b.counts("p/a/own", "own", 100); all != 100 || own < 169 {
			b.t.Errorf("%d and %d are left", all, own)
		}
	})
}

// Whatever an API says, and whenever it ends: "never more in a window than the larger of the two", the configured limit and
// the most that may come of it, by each algorithm, with starts granted ahead.
func TestNeverMoreThanTheLarger(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		rule := policy.Rule{Name: "r", Algorithm: []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow}[seed%3], Limit: 1 + r.Int64N(20), Per: 10 * sec}
		if rule.Algorithm == policy.TokenBucket {
			rule.Burst = 1 + r.Int64N(10)
		}
		onBothIn(t, fmt.Sprint(seed), Config{StartTolerance: -1, Unbatched: true}, raising(t, policy.Corrects{Most: 300, Grow: 30, Cut: 50}, rule), func(b *bench) {
			r := rand.New(rand.NewPCG(seed, 8))
			most := reference.Rule{Algorithm: reference.Algorithm(rule.Algorithm), Limit: 3 * rule.Limit, Per: rule.Per.Microseconds(), Burst: 3 * rule.Burst}
			var starts []reference.Spent
			for range 300 {
				b.pass(us(r.Int64N(3_000_000)))
				switch r.IntN(12) {
				case 0:
					b.hear("p", upstream.Hint{})
				case 1:
					b.hear("p", owns(1+r.Int64N(4*rule.Limit), rule.Per))
				case 2:
					b.hear("p", turnedDown(ms))
				case 3:
					noError(b.t, b.ResetUpstream(ctx, "p"))
				}
				now := b.now.Load()
				d := b.decide(Request{Scope: "p", ID: NewID(), Cost: 1 + r.Int64N(min(3, b.plan("p").Most)), MaxDelay: us(r.Int64N(2) * 5_000_000)})
				if !d.Allowed {
					continue
				}
				start := now + d.Wait.Microseconds()
				starts = append(starts, reference.Spent{Start: start, End: start, Units: d.Grant.price.each})
			}
			if broken := reference.Over(most, starts); broken != "" {
				b.t.Fatal(broken)
			}
		})
	}
}

// The pad slows a bucket that keeps to its API's limit as it slows any other; a margin leaves the rate alone.
func TestAdoptedRateIsPadded(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		margin     time.Duration
		told, want int64 // in a second, and in 400 ms
	}{{0, 800, 318}, {0, 1000, 398}, {0, 1200, 477}, {0, 9000, 597}, {ms, 1000, 400}, {ms, 1200, 480}} {
		rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000, Margin: one.margin}
		onBothIn(t, fmt.Sprint(one.told, one.margin), Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: 150}, rule), func(b *bench) {
			b.decide(Request{Scope: "p", Cost: 700})
			b.hear("p", owns(one.told, sec))
			was := b.peek().Rules[0].Remaining
			b.pass(400 * ms)
			if n := b.peek().Rules[0].Remaining - was; n < one.want || n > one.want+1 {
				b.t.Errorf("%d units came back in 400ms, want %d", n, one.want)
			}
			b.wantCounts("adopted", "p", "r", 1000, min(one.told, 1500))
		})
	}
}

// A bucket comes to what the policy lets whatever its numbers are, and UpstreamState says so.
func TestBucketsOfLargeNumbersAreRaised(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ limit, most, want int64 }{
		{44_003, 1000, 440_030}, {7_000_003, 300, 21_000_009}, {30_000_001, 150, 45_000_001}, {40_000_001, 150, 60_000_001},
	} {
		rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: one.limit, Per: time.Minute, Burst: one.limit}
		onBothIn(t, fmt.Sprint(one.limit, one.most), Config{StartTolerance: 5 * ms}, raising(t, policy.Corrects{Most: one.most}, rule), func(b *bench) {
			b.hear("p", owns(1<<40, time.Minute))
			b.decide(Request{Scope: "p", Cost: one.limit})
			b.pass(3 * sec)
			per := int64(60_005)
			if wire.ManyFit(rule, 5*ms, 1) {
				per += 5
			}
			back, want, counts := b.peek().Rules[0].Remaining, one.want*3000/per, b.counts("p", "r", one.limit)
			if back < want-want/1000-1 || back > want || counts < one.want-one.want/1000 || counts > one.want {
				b.t.Errorf("%d units came back in 3s, want %d; %d counts, want %d", back, want, counts, one.want)
			}
		})
	}
}
