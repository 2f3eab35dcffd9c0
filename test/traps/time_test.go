package traps

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// Only Redis's clock counts. Nothing that is sent to it is a time
// of this process, whose clock may be years off.
func TestServersClock(t *testing.T) {
	t.Parallel()
	t.Run("nothing sent is a time", func(t *testing.T) {
		t.Parallel()
		w := onReal(t)
		seen := &spy{}
		w.rdb.AddHook(seen)
		l := w.limiter(kinds(2, 60*sec)...)
		l.admitted(5)
		l.left()
		var sent []any
		for _, args := range seen.calls {
			sent = append(sent, args[3:]...)
		}
		for _, arg := range sent {
			n, err := strconv.ParseFloat(fmt.Sprint(arg), 64)
			for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond, time.Nanosecond} {
				now := float64(time.Now().UnixNano() / int64(unit))
				if err == nil && math.Abs(n-now) < now/2 {
					t.Errorf("%v was sent, near the time in %v", arg, unit)
				}
			}
		}
	})
	for _, rule := range kinds(3, 60*sec) {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // this process's clock says 2000
				m, rdb := redistest.Miniredis(t)
				w := newWorld(t, rdb, m)
				w.at(0)
				l := w.limiter(rule)
				if got := l.admitted(5); got != 3 {
					t.Errorf("%d of 3", got)
				}
				<-time.After(24 * hour)
				if got := l.admitted(5); got != 0 {
					t.Errorf("%d more when only this process's clock had moved", got)
				}
				w.at(60 * sec)
				if got := l.admitted(5); got != 3 {
					t.Errorf("%d of 3 when Redis's clock had moved", got)
				}
			})
		})
	}
}

// A clock that steps back delays nobody by more than its step.
func TestStepsBack(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(5, 10*sec), func(w *world, rule policy.Rule) {
		for _, step := range []time.Duration{sec, 10 * sec, 60 * sec, hour, 30 * 24 * hour} {
			w.anew()
			l := w.limiter(rule)
			w.at(0)
			l.admitted(9)
			back := -step
			w.at(back)
			d := l.take(1)
			latest := back + step + 10*sec
			if d.RetryAfter > step+10*sec {
				w.Errorf("%v back: told to come back in %v", step, d.RetryAfter)
			}
			w.at(latest)
			if got := l.admitted(9); got != 5 {
				w.Errorf("%v back: %d of 5 a window later", step, got)
			}
		}
	})
}

// A clock that steps forward, and back again, admits at most one
// extra limit.
func TestStepsForward(t *testing.T) {
	t.Parallel()
	forEach(t, kinds(5, 10*sec), func(w *world, rule policy.Rule) {
		l := w.limiter(rule)
		w.at(0)
		got := l.admitted(9)
		w.at(hour)
		got += l.admitted(9)
		for i := range 9 {
			w.at(time.Duration(i+1) * sec)
			n := 0
			if rule.Algorithm != policy.TokenBucket || i == 0 { // a bucket refills meanwhile
				n = l.admitted(9)
			}
			got += n
		}
		if got > 10 {
			w.Errorf("%d within a window of 5", got)
		}
	})
}

// The same interval fills a bucket once, however the clock steps.
func TestRefilledOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(bucket(1, sec, 5))
		w.at(100 * sec)
		got := l.admitted(9)
		steps := 50
		if w.mini != nil {
			steps = 1 // its keys age by each step forward
		}
		for i := range steps {
			w.at(100*sec - time.Duration(1+i%4)*sec)
			got += l.admitted(2)
			w.at(100 * sec)
			got += l.admitted(2)
		}
		if got != 5 {
			w.Errorf("%d of 5 while the clock went to and fro below the same moment", got)
		}
	})
}

// The time that a decision is made at is that of TIME, to the
// microsecond, also where the microseconds have leading zeros.
func TestMicroseconds(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		w := onMini(t)
		l := w.limiter(sliding(1, sec))
		for _, at := range []time.Duration{0, 9 * us, 99 * us, 5123 * us, 99999 * us, 100000 * us, 999999 * us} {
			w.anew()
			w.at(at)
			if d, want := l.take(1), time.Unix(epoch, int64(at)); !d.At.Equal(want) {
				t.Errorf("decided at %v, want %v", d.At, want)
			}
		}
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		w := onReal(t)
		l := w.limiter(sliding(1, sec))
		leading := false
		redistest.WaitFor(t, "a time with a leading zero", bound, func() bool {
			before, _ := w.rdb.Time(context.Background()).Result()
			d := l.take(1)
			after, _ := w.rdb.Time(context.Background()).Result()
			if d.At.Before(before) || d.At.After(after) {
				t.Fatalf("decided at %v, between %v and %v", d.At, before, after)
			}
			leading = leading || d.At.Nanosecond()/1000 < 100_000
			return leading
		})
	})
}

// A refused call is admitted at exactly now + RetryAfter, and
// not a microsecond before; times keep every digit on their way through Redis.
func TestToTheMicrosecond(t *testing.T) {
	t.Parallel()
	for _, years := range []time.Duration{0, 50, 200} {
		forEach(t, kinds(7, 60*sec), func(w *world, rule policy.Rule) {
			start := years*365*24*hour + 123456789*us
			l := w.limiter(rule)
			w.at(start)
			l.admitted(7)
			at := start + 1234567*us
			for range 3 {
				w.at(at)
				d := l.take(1)
				if d.Allowed || d.RetryAfter%us != 0 {
					w.Fatalf("%+v", d)
				}
				w.at(at + d.RetryAfter - us)
				if early := l.take(1); early.Allowed || early.RetryAfter != us {
					w.Errorf("a microsecond early: %+v", early)
				}
				at += d.RetryAfter
				w.at(at)
				if d := l.take(1); !d.Allowed {
					w.Errorf("on time: %+v", d)
				}
				l.admitted(7)
				at += 3 * us
			}
		})
	}
}

// Windows that no unit divides are kept as they are, neither cut to
// seconds nor rounded to buckets.
func TestOddWindows(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		for _, per := range []time.Duration{
			100 * us, 2500 * us, 333333 * us, 500 * ms, 997 * ms, 1001 * us, 1900 * ms, sec + us,
			7 * sec, 61 * sec, 24*hour + us, 30 * 24 * hour,
		} {
			for _, limit := range []int64{3, 1000} {
				w.anew()
				l := w.limiter(sliding(limit, per))
				start := 17*sec + 123*us
				w.at(start)
				l.take(limit)
				w.at(start + per - us)
				if d := l.take(1); d.Allowed {
					w.Errorf("%d per %v: one more a microsecond before the window had passed", limit, per)
				}
				w.at(start + per + per/100)
				if d := l.take(limit); !d.Allowed {
					w.Errorf("%d per %v: refused for %v after the window had passed", limit, per, d.RetryAfter)
				}
			}
		}
	})
}

// 1 in 1.9 s is at most 7 in 12 s, also where keys expire by whole seconds.
func TestSlowRate(t *testing.T) {
	t.Parallel()
	t.Run("steered", func(t *testing.T) {
		rules := []policy.Rule{bucket(1, 1900*ms, 1), sliding(1, 1900*ms)}
		forEach(t, rules, func(w *world, rule policy.Rule) {
			l, got := w.limiter(rule), 0
			for at := time.Duration(0); at < 12*sec; at += 50 * ms {
				w.at(at)
				got += l.admitted(1)
			}
			if got != 7 {
				w.Errorf("%d in 12s, want 7", got)
			}
		})
	})
	t.Run("as time passes", func(t *testing.T) {
		rules := []policy.Rule{bucket(1, 190*ms, 1), sliding(1, 190*ms)}
		forEach(t, rules, func(w *world, rule policy.Rule) {
			l, got := w.limiter(rule), 0
			first := l.take(1).At
			last := first
			redistest.WaitFor(w, "six periods", bound, func() bool {
				d := l.take(1)
				if d.Allowed {
					got++
				}
				last = d.At
				return last.Sub(first) > 6*190*ms
			})
			if most := int(last.Sub(first) / (190 * ms)); got > most {
				w.Errorf("%d after the first in %v, want %d at most", got, last.Sub(first), most)
			}
		})
	})
}

// 5 per 500 ms admits 5 of 2000, though no whole second is in it.
func TestShortWindow(t *testing.T) {
	t.Parallel()
	forEach(t, rates(5, 500*ms), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		if got := l.admitted(w.size(2000)); got != 5 {
			w.Errorf("%d were admitted", got)
		}
	})
}

// What a bucket refills between two polls is kept, whatever part of
// a unit it is.
func TestFractions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rule        policy.Rule
		every       time.Duration
		least, most int
	}{
		// Every poll is 2.3 ms too early for the next unit. With room for two the
		// bucket makes up for it; with room for one it is full when the poll after
		// comes, and a strict bucket can do no better than every other poll.
		"3/s, room for two":         {bucket(3, sec, 2), 331 * ms, 181, 182},
		"3/s, room for one":         {bucket(3, sec, 1), 331 * ms, 91, 91},
		"10/s, room for ten":        {bucket(10, sec, 10), 95 * ms, 609, 610},
		"3/s, polled often":         {bucket(3, sec, 1), 56 * ms, 179, 181},
		"7 a minute, polled evenly": {bucket(7, 60*sec, 7), 331 * ms, 13, 14},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) {
				l, got := w.limiter(test.rule), 0
				for at := time.Duration(0); at < 60*sec; at += test.every {
					w.at(at)
					got += l.admitted(1)
				}
				if got < test.least || got > test.most {
					w.Errorf("%d in a minute, want %d to %d", got, test.least, test.most)
				}
			})
		})
	}
}

// Units come back one by one as time passes, not in lumps.
func TestContinuous(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		l := w.limiter(bucket(10, sec, 5))
		w.at(0)
		l.admitted(5)
		for i := range 20 {
			at := time.Duration(i+1) * 100 * ms
			w.at(at - us)
			if l.take(1).Allowed {
				w.Errorf("one more at %v", at-us)
			}
			w.at(at)
			if !l.take(1).Allowed {
				w.Errorf("none at %v", at)
			}
		}
	})
}
