package wire

import (
	"math/rand/v2"
	"testing"
	"time"
)

const ms, sec = time.Millisecond, time.Second

// A start waits for its moment by the fastest reply of late, not by its own; a server's clock that is set is heeded at once.
func TestClock(t *testing.T) {
	t.Parallel()
	base := time.Unix(1_800_000_000, 0)
	server := base.Add(-time.Hour) // the server's clock is an hour behind
	var s Clock
	for i, step := range []struct {
		at, there, back time.Duration // asked, and how long the ways took
		set             time.Duration // of the server's clock, before
		want            time.Duration // how late a start is by it
	}{
		0:  {0, 3 * ms, 2 * ms, 0, 2 * ms},
		1:  {100 * ms, 20 * ms, 30 * ms, 0, 2 * ms}, // a slow reply makes no start late
		2:  {200 * ms, 1 * ms, 1 * ms, 0, 1 * ms},
		3:  {300 * ms, 0, 9 * ms, 0, 1 * ms},
		4:  {400 * ms, 5 * ms, 5 * ms, -time.Second, 5 * ms}, // set back
		5:  {500 * ms, 5 * ms, 7 * ms, time.Minute, 7 * ms},  // and forward
		6:  {600 * ms, 5 * ms, 6 * ms, 0, 6 * ms},
		7:  {clockSpan + 700*ms, 5 * ms, 9 * ms, 0, 6 * ms},
		8:  {2*clockSpan + 800*ms, 5 * ms, 9 * ms, 0, 6 * ms},
		9:  {9 * clockSpan, 5 * ms, 30 * ms, 0, 6 * ms},
		10: {20 * clockSpan, 5 * ms, 30 * ms, 0, 30 * ms}, // what is old has been forgotten
	} {
		server = server.Add(step.set)
		asked := base.Add(step.at)
		there := server.Add(step.at + step.there)
		s.Observe(asked, asked.Add(step.there+step.back), there)
		start := there.Add(sec)
		if got := s.ToLocal(start).Sub(asked.Add(step.there + sec)); got != step.want {
			t.Errorf("step %d: a start is late by %s, want %s", i, got, step.want)
		}
	}
}

// "If n replies come anywhere within 2 lags after the quickest possible one, the quickest of them comes within 8 lags / n of
// that in 24 of 25 cases."
func TestUncertainty(t *testing.T) {
	t.Parallel()
	const quickest, varies = 30 * ms, 25 * ms
	base := time.Unix(1_800_000_000, 0)
	r := rand.New(rand.NewPCG(1, 2))
	way := func() time.Duration { return quickest + time.Duration(r.Int64N(int64(varies))) }
	for replies, cases := range map[int]int{1: 20_000, 32: 20_000, 48: 20_000, 500: 2000} {
		missed := 0
		for range cases {
			var s Clock
			for range replies {
				there, back := way(), way()
				s.Observe(base, base.Add(there+back), base.Add(there))
			}
			uncertainty := s.Uncertainty()
			if s.least()-quickest > uncertainty {
				missed++
			}
			if uncertainty > 2*(quickest+varies) || replies == 500 && uncertainty > ms {
				t.Fatalf("uncertain by %s after %d replies", uncertainty, replies)
			}
		}
		if 25*missed > cases {
			t.Errorf("after %d replies, the quickest possible was further off in %d of %d cases", replies, missed, cases)
		}
	}
}
