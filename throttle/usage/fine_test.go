package usage

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func fineSeries(t *testing.T, rdb redis.UniversalClient, prefix, scope string) []Point {
	t.Helper()
	now := time.Now()
	points, err := Series(t.Context(), rdb, Config{Prefix: prefix}, scope, now.Add(-15*time.Minute), now, 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return points
}

// Steady spending is as much in each slot of 15 seconds, whenever the processes flush; no unit and no task is lost, and the keys are
// gone soon.
func TestFine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		pass(7*time.Minute + 3*time.Second) // begin within a slot
		one, stopOne := running(t, rdb, Config{})
		pass(4 * time.Second) // the other flushes at other moments
		two, stopTwo := running(t, rdb, Config{})
		const seconds = 12 * 60
		for range seconds {
			one.SpentCosts("p/x", By{Type: "a"}, policy.Costs{"requests": 6})
			two.Spent("p/y", By{Type: "a"}, 1)
			two.Spent("p/y", By{Type: "b"}, 1)
			pass(time.Second)
		}
		stopOne()
		stopTwo()
		for scope, want := range map[string]Sum{"p": {8, 3}, "p/x": {6, 1}, "p/y": {2, 2}, "p/z": {}} {
			var all Sum
			points := fineSeries(t, rdb, "", scope)
			if n := len(points); n < 60 || n > 61 {
				t.Errorf("%s: %d points", scope, n)
			}
			for _, p := range points {
				all.add(p.Sum)
			}
			if all != (Sum{seconds * want.Units, seconds * want.Tasks}) {
				t.Errorf("%s: %+v in all", scope, all)
			}
			for _, p := range points[len(points)-40 : len(points)-2] { // the others begin or end within
				if off := p.Units - 15*want.Units; off < -8 || off > 8 {
					t.Errorf("%s at %s: %+v, want 15 s of %+v", scope, p.At, p.Sum, want)
				}
				if off := p.Tasks - 15*want.Tasks; off < -8 || off > 8 {
					t.Errorf("%s at %s: %+v, want 15 s of %+v", scope, p.At, p.Sum, want)
				}
			}
		}
		pass(chunk + fine.reach + spare)
		for _, key := range m.Keys() {
			if strings.Contains(key, "!spent:") {
				t.Errorf("%s is still there, for %s", key, m.TTL(key))
			}
		}
	})
}

// A part of a sum is what its time is of the period, and the parts are the sum.
func TestSpread(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		to := time.Unix(1_700_000_000, random.Int64N(1e9))
		from := to.Add(-time.Duration(random.Int64N(int64(2 * longestPeriod))))
		n := random.Int64N(2*mostUnits) - mostUnits
		parts := partsOf(from, to)
		shares, sum := spread(n, parts), int64(0)
		for i, p := range parts {
			sum += shares[i]
			begins := time.Unix(p.start, 0)
			in := minTime(begins.Add(fine.every), to).Sub(maxTime(begins, maxTime(from, to.Add(-longestPeriod))))
			if in < 0 || in > fine.every || len(parts) > 5 {
				t.Fatalf("%s to %s: %+v", from, to, parts)
			}
			if whole := min(to.Sub(from), longestPeriod); whole > 0 {
				if want := float64(n) * float64(in) / float64(whole); float64(shares[i])-want > 2 || want-float64(shares[i]) > 2 {
					t.Fatalf("%d of %d, want %f", shares[i], n, want)
				}
			}
		}
		if sum != n {
			t.Fatalf("%v are %d, want %d", shares, sum, n)
		}
	}
	now := time.Unix(1_700_000_000, 0)
	if parts := partsOf(now.Add(time.Hour), now); len(parts) != 1 || parts[0].start != now.Unix()/15*15 {
		t.Errorf("with a clock that has stepped back: %+v", parts)
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
