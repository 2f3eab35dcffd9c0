package throttle

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// TestPace holds that what Forecast says of a rule is how fast it goes on, to a thousandth. What a margin
// costs of it is at most what it and the start tolerance are of per, as docs/algorithms.md says.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"bucket":             {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec},
		"bucket, burst":      {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Burst: 7},
		"bucket, margin":     {Name: "r", Algorithm: policy.TokenBucket, Limit: 30, Per: sec, Margin: 20 * ms},
		"bucket, unpaid":     {Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Margin: 10 * ms},
		"bucket, paid":       {Name: "r", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 3, Margin: 10 * ms},
		"sliding, cells":     {Name: "r", Algorithm: policy.SlidingWindow, Limit: 250, Per: sec, Margin: 7 * ms},
		"fixed":              {Name: "r", Algorithm: policy.FixedWindow, Limit: 40, Per: sec},
		"on use, and margin": {Name: "r", Algorithm: policy.FixedWindow, Limit: 40, Per: sec, Margin: 100 * ms, OpensOnUse: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Client(t), Config{StartTolerance: 5 * ms}, policyOf(t, rule))
			const many = 1000
			b.at(0)
			first, last := int64(0), int64(0)
			at := int64(0)
			for i := range many {
				b.at(at)
				for d := b.decide(Request{Scope: "p"}); !d.Allowed; d = b.decide(Request{Scope: "p"}) {
					at += d.RetryAfter.Microseconds()
					b.at(at)
				}
				if i == many/2 {
					first = at
				}
				last = at
			}
			o, err := b.Forecast(ctx, "p")
			noError(t, err)
			r := o.Rules[0]
			late := 5*ms + rule.Margin
			if bound := int64(many/2-1) * (rule.Per + late).Microseconds() / rule.Limit; rule.Algorithm == policy.TokenBucket && last-first > bound+many {
				t.Errorf("%d units took %d µs: %v of lateness may make that %d at most", many/2-1, last-first, late, bound)
			}
			want := float64(many/2-1) / float64(r.Units) * float64(r.Per.Microseconds())
			most := want / 1000
			if r.Algorithm != policy.TokenBucket { // a window gives all of its units at once
				most += float64(r.Per.Microseconds())
			}
			if off := float64(last-first) - want; off > most || -off > most {
				t.Errorf("%d units took %d µs, and should take %.0f", many/2-1, last-first, want)
			}
		})
	}
}
