package outage

import (
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

const (
	sec, ms = time.Second, time.Millisecond
	epoch   = 1_800_057_600_000_000 // a whole day
)

// "Share gives each process limit / live workers last seen, rounded down", and it begins as spent.
func TestShareSteps(t *testing.T) {
	t.Parallel()
	type ask struct {
		at   time.Duration
		cost int64
		want time.Duration // until it fits, 0 when it was taken
		left int64
	}
	for name, test := range map[string]struct {
		rule  policy.Rule
		live  int64
		slack time.Duration
		asks  []ask
	}{
		"sliding window": {policy.Rule{Algorithm: policy.SlidingWindow, Limit: 11, Per: 10 * sec}, 3, 0, []ask{
			0: {0, 1, 10 * sec, 0},
			1: {10 * sec, 2, 0, 1},
			2: {12 * sec, 1, 0, 0},
			3: {12 * sec, 1, 8 * sec, 0},
			4: {12 * sec, 3, 10 * sec, 0},
			5: {20 * sec, 2, 0, 0},
			6: {20 * sec, 4, wire.Forever, 0},
		}},
		"fixed window": {policy.Rule{Algorithm: policy.FixedWindow, Limit: 4, Per: 7 * sec}, 2, 0, []ask{
			0: {3 * sec, 1, 4 * sec, 0},
			1: {7 * sec, 1, 0, 1},
			2: {8 * sec, 1, 0, 0},
			3: {8 * sec, 1, 6 * sec, 0},
			4: {14 * sec, 2, 0, 0},
		}},
		"window on use": {policy.Rule{Algorithm: policy.FixedWindow, Limit: 4, Per: 7 * sec, OpensOnUse: true}, 2, 0, []ask{
			0: {3 * sec, 1, 4 * sec, 0},
			1: {8 * sec, 1, 0, 1},
			2: {9 * sec, 1, 0, 0},
			3: {9 * sec, 1, 6 * sec, 0},
			4: {14 * sec, 1, sec, 0},
			5: {15 * sec, 1, 0, 0},
		}},
		"calendar": {policy.Rule{Algorithm: policy.Calendar, Limit: 9, Resets: wallclock.MustParse("* * * * *", "UTC"), Rollover: 9}, 2, 500 * ms, []ask{
			0: {0, 1, 5 * sec, 0}, // the minute ends then
			1: {5 * sec, 3, 0, 1},
			2: {64 * sec, 1, 0, 0},
			3: {64 * sec, 1, sec, 0},
			4: {64 * sec, 5, wire.Forever, 0},
			5: {65 * sec, 4, 0, 0},
		}},
		"token bucket": {policy.Rule{Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 5}, 2, 0, []ask{
			0: {0, 1, 400 * ms, 0},
			1: {400 * ms, 1, 0, 1},
			2: {500 * ms, 2, 300 * ms, 1},
			3: {10 * sec, 2, 0, 0},
			4: {10 * sec, 3, wire.Forever, 0},
		}},
		"suspended": {policy.Rule{Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}, 1, 0, []ask{0: {time.Hour, 1, wire.Forever, 0}}},
		"concurrency": {policy.Rule{Algorithm: policy.Concurrency, Limit: 5, Lease: 10 * sec}, 2, 0, []ask{
			0: {0, 9, 10 * sec, 0},
			1: {10 * sec, 9, 0, 1},
			2: {11 * sec, 9, 0, 0},
			3: {12 * sec, 9, 8 * sec, 0},
			4: {20 * sec, 9, 0, 0},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.UnixMicro(epoch - int64(epoch)%7e6)
			s := newShare(test.rule, test.live, start, test.slack)
			for i, a := range test.asks {
				now := start.Add(a.at)
				fits := s.fit(now, a.cost)
				if fits != a.want {
					t.Errorf("ask %d: fits in %s, want %s", i, fits, a.want)
				}
				if fits == 0 {
					s.take(now, string(rune('a'+i)), a.cost)
				}
				if left := s.left(now); left != a.left {
					t.Errorf("ask %d: %d left, want %d", i, left, a.left)
				}
			}
		})
	}
}

// "maxShares bounds what an outage remembers", and never at the cost of a run.
func TestSharesAreBounded(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
	o := New(nil)
	now := time.UnixMicro(epoch)
	runs := policy.Rule{Algorithm: policy.Concurrency, Limit: 1, Lease: sec}
	busy := o.share("busy", runs, 1, now.Add(-sec), 0)
	busy.take(now, "run", 1)
	for i := range maxShares + 100 {
		o.share(string(rune(i)), window, 1, now, 0)
	}
	if len(o.shares) != maxShares || o.shares["busy"] != busy {
		t.Errorf("%d shares are remembered, want %d with the one that is in use", len(o.shares), maxShares)
	}
	busy.hold("run")
	if got := busy.reset(now); got != wire.Forever {
		t.Errorf("a place that is held is free after %s", got)
	}
	busy.giveBack("run")
	if busy.runs() {
		t.Error("a run that has ended holds a place")
	}
}
