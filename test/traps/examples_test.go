package traps

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// The article's example of a fixed window allows 2 per 3 s and calls three times,
// waits 3 s, calls twice, waits 2 s and calls once more: it prints true true
// false true true false. What each algorithm says to the same six calls:
func TestSixResults(t *testing.T) {
	t.Parallel()
	calls := []time.Duration{0, 0, 0, 3 * sec, 3 * sec, 5 * sec}
	for name, test := range map[string]struct {
		start time.Duration
		rule  policy.Rule
		want  string
	}{
		// Any 3 s that end before the third second hold the first two, and those
		// that hold the sixth call hold both of the second pair.
		"sliding window": {0, sliding(2, 3*sec), "TTFTTF"},
		// Aligned to the epoch: begun with a window, the article's own results.
		"fixed window": {0, fixed(2, 3*sec), "TTFTTF"},
		// Begun in the middle of a window, the sixth call, 5 s later, is in the
		// third window and not the second.
		"fixed window, begun late": {1500 * ms, fixed(2, 3*sec), "TTFTTT"},
		// Empty at 0, full again at 3 s; by 5 s one unit and a third have come back.
		"token bucket": {0, bucket(2, 3*sec, 2), "TTFTTT"},
		// With room for one unit only, one call at a time.
		"token bucket, burst 1": {0, bucket(2, 3*sec, 1), "TFFTFT"},
		// Runs that never end give their places back with their leases.
		"concurrency": {0, places(2, 3*sec), "TTFTTF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) {
				l, got := w.limiter(test.rule), ""
				for _, at := range calls {
					w.at(test.start + at)
					got += map[bool]string{true: "T", false: "F"}[l.take(1).Allowed]
				}
				if got != test.want {
					w.Errorf("%s, want %s", got, test.want)
				}
			})
		})
	}
}

// The article's sliding log runs 8 requests under 1 a second and 5 a minute:
// the second is one too many for the second, the seventh for the minute, and
// neither has spent anything.
func TestSlidingLog(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(
			policy.Rule{Name: "second", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec},
			policy.Rule{Name: "minute", Algorithm: policy.SlidingWindow, Limit: 5, Per: 60 * sec},
		)
		for i, step := range []struct {
			at      time.Duration
			allowed bool
			left    int64 // of the minute
			retry   time.Duration
		}{
			{0, true, 4, 0}, {0, false, 4, sec}, {1 * sec, true, 3, 0}, {2 * sec, true, 2, 0}, {3 * sec, true, 1, 0},
			{4 * sec, true, 0, 0}, {5 * sec, false, 0, 55 * sec}, {66 * sec, true, 4, 0},
		} {
			w.at(step.at)
			d := l.take(1)
			if d.Allowed != step.allowed || d.Rules[1].Remaining != step.left || d.RetryAfter != step.retry {
				w.Errorf("request %d: %t, %d left, retry in %v; want %t, %d, %v",
					i+1, d.Allowed, d.Rules[1].Remaining, d.RetryAfter, step.allowed, step.left, step.retry)
			}
		}
	})
}

// Its table of five requests: at 12:34:31 the oldest is 56 s old and 4 s are to
// wait, at 12:34:40 it has left the minute.
func TestSlidingLogTable(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(
			policy.Rule{Name: "second", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec},
			policy.Rule{Name: "minute", Algorithm: policy.SlidingWindow, Limit: 5, Per: 60 * sec},
		)
		clock := func(m, s int) { w.at(12*hour + time.Duration(m)*60*sec + time.Duration(s)*sec) }
		for _, at := range [][2]int{{33, 35}, {33, 37}, {34, 14}, {34, 26}, {34, 28}} {
			clock(at[0], at[1])
			if !l.take(1).Allowed {
				w.Fatalf("12:%d:%d was refused", at[0], at[1])
			}
		}
		clock(34, 31)
		if d := l.take(1); d.Allowed || d.RetryAfter != 4*sec || d.Binding != 1 {
			w.Errorf("12:34:31: %+v", d)
		}
		clock(34, 40)
		if d := l.take(1); !d.Allowed || d.Rules[1].Remaining != 1 { // 33:35 and 33:37 have both left
			w.Errorf("12:34:40: %+v", d)
		}
	})
}

// Its example of the edge: of 240 an hour, 200 at 6:59 leave 40 for 7:00.
func TestEdgeOfTheHour(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(18*hour + 59*60*sec)
		l := w.limiter(sliding(240, hour))
		l.admitted(200)
		w.at(19 * hour)
		if got := l.admitted(240); got != 40 {
			w.Errorf("%d at 7:00, want 40", got)
		}
	})
}

// The article's trims the oldest bucket too soon, and reports when the
// oldest bucket leaves instead of when the request fits.
func TestSlidingCounters(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(sliding(5, 60*sec))
		w.at(0)
		l.take(1)
		w.at(10 * sec)
		l.take(4)
		w.at(20 * sec)
		for cost, retry := range map[int64]time.Duration{1: 40 * sec, 2: 50 * sec, 5: 50 * sec} {
			if d := l.take(cost); d.Allowed || d.RetryAfter != retry {
				w.Errorf("cost %d in %v, want %v", cost, d.RetryAfter, retry)
			}
		}
		w.at(60 * sec)
		if d := l.take(2); d.Allowed {
			w.Error("two when one had left")
		}
		if d := l.take(1); !d.Allowed {
			w.Error("none when one had left")
		}
	})
}

// The article's, burst 10 and 1 a second, counts what it takes twice and
// never what time passes: it admits 17 at 9 s after one at 0, and the next after
// ten at 0 only at 11 s.
func TestTokenBucketScript(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(bucket(1, sec, 10))
		w.at(0)
		if d := l.take(1); !d.Allowed || d.RetryAfter != 0 || d.Tuple() != (throttle.Tuple{0, 10, 9, -1, 1}) {
			w.Errorf("the first: %+v", d)
		}
		w.at(9 * sec)
		if got := l.admitted(20); got != 10 {
			w.Errorf("%d at 9s, want 10", got)
		}

		w.anew()
		l = w.limiter(bucket(1, sec, 10))
		w.at(0)
		l.admitted(10)
		w.at(500 * ms)
		if d := l.take(1); d.Allowed || d.RetryAfter != 500*ms || d.Rules[0].ResetAfter != 9500*ms {
			w.Errorf("at 0.5s: %+v", d)
		}
		w.at(sec)
		if d := l.take(1); !d.Allowed {
			w.Errorf("at 1s: %+v", d)
		}
	})
}

// The nested limits file. A user may 30 a minute, 15 and one at once, and trade
// 10 in 15 s, 5 and one at once. Its run of calls is refused by trade from the
// seventh on, and each refused call still charges the user, until the user is
// limited too. Here refused work leaves the user's quota alone.
func TestNestedLimits(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiterOn(w.rdb, w.parsed(`
limits:
  user:
    scopes:
      "*":
        rules: [{name: user, algorithm: token-bucket, limit: 30, per: 60s, burst: 16}]
        scopes:
          trade:
            rules: [{name: trade, algorithm: token-bucket, limit: 10, per: 15s, burst: 6}]
`))
		w.at(0)
		for i := range int64(46) {
			d := l.decide(throttle.Request{Scope: "user/alex/trade"})
			if d.Allowed != (i < 6) {
				w.Fatalf("call %d: %+v", i+1, d)
			}
			user, trade := d.Rules[0].Tuple(), d.Rules[1].Tuple()
			n := min(i+1, 6)
			wantUser := throttle.Tuple{0, 16, 16 - n, -1, 2 * n}
			wantTrade := throttle.Tuple{0, 6, 6 - n, -1, (3*n + 1) / 2}
			if !d.Allowed {
				wantTrade[0], wantTrade[3] = 1, 2
			}
			if user != wantUser || trade != wantTrade || d.Tuple() != trade {
				w.Errorf("call %d: %v %v, as a whole %v; want %v %v, and trade's", i+1, user, trade, d.Tuple(), wantUser, wantTrade)
			}
		}
		for i := range 12 {
			d := l.decide(throttle.Request{Scope: "user/alex/withdrawal"})
			if d.Allowed != (i < 10) {
				w.Errorf("withdrawal %d: %+v", i+1, d)
			}
		}
		if d := l.decide(throttle.Request{Scope: "user/kim/trade"}); !d.Allowed || d.Rules[0].Remaining != 15 {
			w.Errorf("another user: %+v", d)
		}
		// A name that reads like a path of two is a name of its own.
		if d := l.decide(throttle.Request{Scope: "user/alex:trade"}); !d.Allowed || d.Rules[0].Remaining != 15 {
			w.Errorf("user alex:trade: %+v", d)
		}
	})
}
