package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// envelope is what a rule admits in any time t at most: its burst, and so much a second. A fixed window forgets at its end,
// which may come right after a change: edge is what it admits then.
type envelope struct{ burst, rate, edge float64 }

func envelopeOf(r policy.Rule) envelope {
	rate := float64(r.Limit) / r.Per.Seconds()
	switch r.Algorithm {
	case policy.Calendar: // of whole minutes: the first number of resets is how many
		most, minutes := float64(r.Limit+r.Rollover), 1.0
		if r.Rollover > 0 {
			minutes = 2
		}
		return envelope{2 * most, most / (60 * minutes), most}
	case policy.TokenBucket:
		return envelope{float64(max(r.Burst, 1)), rate, 0}
	case policy.FixedWindow:
		return envelope{2 * float64(r.Limit), rate, float64(r.Limit)}
	default:
		return envelope{float64(r.Limit), rate, 0}
	}
}

func changing(r policy.Rule) *policy.Policy {
	r.Name = "r"
	p, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{r}}})
	if err != nil {
		panic(err)
	}
	return p
}

var changes = []policy.Rule{
	{Algorithm: policy.TokenBucket, Limit: 10, Per: time.Second},
	{Algorithm: policy.TokenBucket, Limit: 3, Per: time.Second, Burst: 40},
	{Algorithm: policy.TokenBucket, Limit: 100, Per: time.Minute, Burst: 7},
	{Algorithm: policy.TokenBucket, Limit: 10, Per: time.Second, Burst: 100},
	{Algorithm: policy.TokenBucket, Limit: 100, Per: time.Minute, Burst: 100},
	{Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Second},
	{Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Second},
	{Algorithm: policy.SlidingWindow, Limit: 200, Per: time.Minute},
	{Algorithm: policy.SlidingWindow, Limit: 7, Per: 700 * time.Millisecond},
	{Algorithm: policy.FixedWindow, Limit: 10, Per: time.Second},
	{Algorithm: policy.FixedWindow, Limit: 90, Per: 20 * time.Second},
	{Algorithm: policy.FixedWindow, Limit: 0, Per: time.Second},
	{Algorithm: policy.FixedWindow, Limit: 10, Per: time.Second, OpensOnUse: true},
	{Algorithm: policy.FixedWindow, Limit: 40, Per: 7 * time.Second, OpensOnUse: true},
	{Algorithm: policy.Calendar, Limit: 60, Resets: wallclock.MustParse("* * * * *", "UTC")},
	{Algorithm: policy.Calendar, Limit: 100, Resets: wallclock.MustParse("*/2 * * * *", "Asia/Kathmandu"), Rollover: 20},
}

// docs/algorithms.md: "Never more than a rule would admit that had the larger burst of the two, and
// the larger rate", whatever a rule is changed to, in any time that spans the change.
func TestChangesAddNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, changing(changes[0]), func(b *bench) {
		seeds := changeSeeds
		if testing.Short() {
			seeds = 2
		}
		for seed := range uint64(seeds) {
			b.changeHistory(seed)
		}
	})
}

const (
	changeSeeds = 8
	changeAhead = 250 * time.Millisecond
)

// started is one start.
type started struct{ at, cost int64 }

// span is a time in which a rule decided. Its last starts may be a hold later, and
// what they took drains under the next rule while they are still to come.
type span struct {
	from, until int64
	envelope
}

func (b *bench) changeHistory(seed uint64) {
	b.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	b.now.Store(epoch + int64(seed)*time.Hour.Microseconds())
	var starts []started
	var spans []span
	for range 12 {
		rule := changes[rng.IntN(len(changes))]
		b.now.Add(rng.Int64N(2) * rng.Int64N(2) * rng.Int64N(20*time.Second.Microseconds())) // idle, now and then
		b.SetPolicy(changing(rule))
		from := b.now.Load()
		busy := int64(1 + rng.IntN(60))
		for range 100 {
			b.now.Add(rng.Int64N(2 * time.Second.Microseconds() / busy))
			cost := int64(1 + rng.IntN(3)*rng.IntN(2))
			d, err := b.Decide(b.t.Context(), Request{Scope: "p", Cost: cost, MaxDelay: changeAhead * time.Duration(rng.IntN(2))})
			if err != nil {
				continue // it can never pass, just now
			}
			if d.Allowed && rng.IntN(8) == 0 {
				noError(b.t, b.Refund(b.t.Context(), d.Grant))
			} else if d.Allowed {
				starts = append(starts, started{b.now.Load() + d.Wait.Microseconds(), cost})
			}
		}
		if n := len(spans); n > 0 {
			spans[n-1].until = from + changeAhead.Microseconds()
		}
		spans = append(spans, span{from, b.now.Load() + changeAhead.Microseconds(), envelopeOf(rule)})
	}
	slices.SortStableFunc(starts, func(x, y started) int { return int(x.at - y.at) })
	if err := addedUp(starts, spans); err != nil {
		b.t.Errorf("seed %d: %v", seed, err)
	}
}

// addedUp holds every interval that begins and ends with a start, and in which no more
// than one change was made, against the rules that held in it.
func addedUp(starts []started, spans []span) error {
	for i := range starts {
		units := int64(0)
		for _, s := range starts[i:] {
			in := spansIn(starts[i].at, s.at, spans)
			if len(in) > 2 {
				break
			}
			units += s.cost
			if most := mostIn(starts[i].at, s.at, in); float64(units) > most+1e-6 {
				return fmt.Errorf("%d units in %d µs from %d; the most is %.3f, under %v", units, s.at-starts[i].at, starts[i].at, most, in)
			}
		}
	}
	return nil
}

func spansIn(from, until int64, spans []span) (in []span) {
	for _, s := range spans {
		if s.from <= until && s.until >= from {
			in = append(in, s)
		}
	}
	return in
}

func mostIn(from, until int64, in []span) float64 {
	burst, rate, edge := 0.0, 0.0, 0.0
	for i, s := range in {
		burst, rate = max(burst, s.burst), max(rate, s.rate)
		if i > 0 {
			edge += s.edge
		}
	}
	t := float64(until-from) / 1e6
	if len(in) > 1 {
		t += changeAhead.Seconds()
	}
	return burst + rate*t + edge
}
