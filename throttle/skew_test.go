package throttle

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "If n replies come anywhere within 2 lags after the quickest possible one, the quickest of them comes within 8 lags / n of
// that but for one case in e⁴ = 55; in 25, since the lag is an estimate."
func TestUnsure(t *testing.T) {
	t.Parallel()
	const cases, varies = 20_000, 25 * ms
	const quickest = 30 * ms
	base := time.Unix(1_800_000_000, 0)
	r := rand.New(rand.NewPCG(1, 2))
	for _, replies := range []int{1, 32, 48, 500} {
		missed := 0
		for range cases * 48 / max(48, replies) {
			var s clockOffset
			for range replies {
				there, back := quickest+time.Duration(r.Int64N(int64(varies))), quickest+time.Duration(r.Int64N(int64(varies)))
				s.observe(base, base.Add(there+back), base.Add(there))
			}
			unsure := s.unsure()
			if s.least()-quickest > unsure {
				missed++
			}
			if unsure > 2*(quickest+varies) || replies == 500 && unsure > ms {
				t.Fatalf("unsure by %s after %d replies within %s", unsure, replies, varies)
			}
		}
		if most := cases * 48 / max(48, replies) / 25; missed > most {
			t.Errorf("after %d replies, %d times in %d the quickest was unsure by more", replies, missed, cases)
		}
	}
}

// What may show by later replies counts as late already: at most half the pad, and no more than a round trip.
func TestInTimeWhileUnsure(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
	for name, test := range map[string]struct {
		trip   time.Duration
		allows time.Duration
	}{
		"far":  {60 * ms, 2500 * time.Microsecond},
		"near": {200 * time.Microsecond, 4800 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Config{StartTolerance: 5 * ms}, policyOf(t, window), nil, func(t *testing.T, _ *wire, l *Limiter) {
				<-time.After(time.Hour) // what has been seen of the clock is forgotten
				p, err := l.scopes.of("p/x")
				if err != nil {
					t.Fatal(err)
				}
				now := time.Now()
				p.clock(&l.skews).observe(now.Add(-test.trip), now, now.Add(-test.trip/2))
				d := Decision{begins: now, under: p, Grant: Grant{start: now.UnixMicro()}}
				<-time.After(test.allows)
				if !l.inTime(&d) {
					t.Errorf("late %s after %s", test.allows, d.begins)
				}
				<-time.After(time.Microsecond)
				if l.inTime(&d) {
					t.Errorf("in time %s later", time.Since(now))
				}
			})
		})
	}
}
