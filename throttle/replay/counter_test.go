package replay

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/test/reference"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// Each algorithm answers as the model that was written from docs/algorithms.md alone, to the microsecond, in random histories with refunds.
func TestCountersAgainstModel(t *testing.T) {
	t.Parallel()
	const pad = 5 * time.Millisecond
	for name, draw := range map[string]func(*rand.Rand) policy.Rule{
		"token-bucket": func(r *rand.Rand) policy.Rule {
			return policy.Rule{Limit: 1 + r.Int64N(20), Per: time.Second, Burst: 1 + r.Int64N(10), Margin: time.Duration(r.Int64N(2)) * 10 * time.Millisecond}
		},
		"sliding-window": func(r *rand.Rand) policy.Rule { return policy.Rule{Limit: 1 + r.Int64N(300), Per: time.Second} },
		"fixed-window": func(r *rand.Rand) policy.Rule {
			return policy.Rule{Limit: 1 + r.Int64N(20), Per: time.Second, OpensOnUse: r.IntN(2) == 0}
		},
		"calendar": func(r *rand.Rand) policy.Rule {
			return policy.Rule{Limit: 1 + r.Int64N(20), Resets: wallclock.MustParse("* * * * *", ""), Rollover: r.Int64N(10), Spread: r.IntN(2) == 0}
		},
		"concurrency": func(r *rand.Rand) policy.Rule { return policy.Rule{Limit: 1 + r.Int64N(5), Lease: 24 * time.Hour} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				random := rand.New(rand.NewPCG(seed, 5))
				rule := draw(random)
				rule.Name, rule.Algorithm = "r", policy.Algorithm(name)
				against(t, rule, random, pad, fmt.Sprint("seed ", seed))
			}
		})
	}
}

// against drives a counter and the model through 100 steps.
func against(t *testing.T, rule policy.Rule, random *rand.Rand, pad time.Duration, what string) {
	t.Helper()
	mine := newCounter(policy.MatchedRule{Rule: rule}, pad)
	world := reference.NewWorld(pad.Microseconds())
	charge := reference.Charge{Place: "r", Units: 1, Rule: reference.Rule{
		Algorithm: reference.Algorithm(rule.Algorithm), Limit: rule.Limit, Per: rule.Per.Microseconds(), Burst: rule.Burst, Margin: rule.Margin.Microseconds(),
		Lease: rule.Lease.Microseconds(), Rollover: rule.Rollover, Spread: rule.Spread, OnUse: rule.OpensOnUse,
		Begins: func(at int64) (from, to int64) { return at - at%60e6, at - at%60e6 + 60e6 },
	}}
	now, step := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC).UnixMicro(), int64(200_000)
	if rule.Algorithm == policy.Calendar {
		step = 10_000_000
	}
	last, start, units := "", int64(0), int64(0)
	for i := range 100 {
		now += 1 + random.Int64N(step)
		charge.Units = 1 + random.Int64N(rule.Capacity())
		if rule.Algorithm == policy.Concurrency {
			charge.Units = 1
		}
		path := []reference.Charge{charge}
		if last != "" && random.IntN(4) == 0 { // what was charged last comes back whole
			mine.settle(now, start, -units)
			world.Refund(now, last, path)
			last = ""
		}
		a := world.Decide(now, 0, fmt.Sprint(i), path, true)
		want := a.Rules[0].Start
		got := mine.fit(now, charge.Units)
		if rule.Algorithm == policy.Concurrency && want > now {
			want = never // a lease is renewed
		}
		if got != want && (rule.Algorithm != policy.Calendar || !ahead(got, want, now)) {
			t.Fatalf("%s, step %d: %+v admits %d at %d, the model says %d, now is %d", what, i, rule, charge.Units, got, want, now)
		}
		if a.Allowed {
			mine.charge(now, charge.Units)
			last, start, units = fmt.Sprint(i), now, charge.Units
		}
	}
}

// ahead says that a calendar's answer is the next period or a moment in this one, and the model's lies beyond it: a replay asks again then.
func ahead(got, want, now int64) bool { return got > now && want > got && got%60e6 == 0 }
