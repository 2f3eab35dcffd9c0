package usage

import (
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
	must(t, err)
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
