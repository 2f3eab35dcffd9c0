package traps

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Another limit, window or burst finds what was spent before,
// and nobody gets a fresh quota or an old one's waits.
func TestKeepsWhatWasSpent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after policy.Rule
		spend         int
		now           int           // how many more are admitted at once
		retry         time.Duration // until one more
	}{
		"sliding raised":       {sliding(5, 60*sec), sliding(7, 60*sec), 5, 2, 60 * sec},
		"sliding lowered":      {sliding(5, 60*sec), sliding(2, 60*sec), 4, 0, 60 * sec},
		"sliding, the same":    {sliding(5, 60*sec), sliding(5, 60*sec), 3, 2, 60 * sec},
		"fixed raised":         {fixed(5, 60*sec), fixed(7, 60*sec), 5, 2, 60 * sec},
		"fixed lowered":        {fixed(5, 60*sec), fixed(2, 60*sec), 4, 0, 60 * sec},
		"fixed, the same":      {fixed(5, 60*sec), fixed(5, 60*sec), 3, 2, 60 * sec},
		"places raised":        {places(5, 60*sec), places(7, 60*sec), 5, 2, 60 * sec},
		"places lowered":       {places(5, 60*sec), places(2, 60*sec), 4, 0, 60 * sec},
		"bucket raised":        {bucket(1, sec, 100), bucket(100, sec, 100), 100, 0, 10 * ms},
		"bucket lowered":       {bucket(100, sec, 100), bucket(1, sec, 100), 100, 0, sec},
		"bucket, the same":     {bucket(1, sec, 5), bucket(1, sec, 5), 3, 2, sec},
		"bucket, more burst":   {bucket(1, sec, 5), bucket(1, sec, 8), 5, 3, sec},
		"bucket, less burst":   {bucket(1, sec, 8), bucket(1, sec, 5), 6, 0, 2 * sec},
		"suspended and lifted": {sliding(0, 60*sec), sliding(3, 60*sec), 0, 3, 60 * sec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) {
				w.at(0)
				before, after := w.limiter(test.before), w.limiter(test.after)
				if got := before.admitted(test.spend); got != test.spend {
					w.Fatalf("%d of %d were admitted before", got, test.spend)
				}
				if got := after.admitted(200); got != test.now {
					w.Errorf("%d more at once, want %d", got, test.now)
				}
				// A hundred charges in one moment are a microsecond apart to a bucket.
				d := after.take(1)
				if off := (d.RetryAfter - test.retry).Abs(); off > test.retry/100 {
					w.Errorf("one more in %v, want %v", d.RetryAfter, test.retry)
				}
				w.at(d.RetryAfter)
				if !after.take(1).Allowed {
					w.Errorf("none after %v", test.retry)
				}
			})
		})
	}
}

// A limit lowered below the cost of a task that waits leaves
// it waiting, and others pass.
func TestLoweredBelowCost(t *testing.T) {
	t.Parallel()
	forEach(t, rates(10, 60*sec), func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		l.take(8)
		low := rule
		low.Limit, low.Burst = 3, min(rule.Burst, 3)
		now := w.limiter(low)
		if d := now.take(3); d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > 180*sec {
			w.Errorf("%+v", d)
		}
		w.at(181 * sec)
		if !now.take(3).Allowed {
			w.Error("refused when all had come back")
		}
	})
}

// What is owed is paid back once: after any idle time a bucket holds
// its burst and no more.
func TestDeepDebt(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(bucket(10, 200*ms, 10))
		for range 10 {
			if d := l.decide(throttle.Request{Cost: 10, MaxDelay: time.Minute}); !d.Allowed {
				w.Fatalf("%+v", d)
			}
		}
		w.at(4 * sec)
		if got := l.admitted(99); got != 10 {
			w.Errorf("%d at once after the debt was paid, want 10", got)
		}
	})
}

// A refusal takes no part of a unit, and there is no part of a grant.
func TestWholeUnits(t *testing.T) {
	t.Parallel()
	onBoth(t, func(w *world) {
		w.at(0)
		l := w.limiter(bucket(10, sec, 10))
		l.take(10)
		w.at(250 * ms)
		if d := l.take(3); d.Allowed || d.Rules[0].Remaining != 2 {
			w.Errorf("cost 3 of 2.5: %+v", d)
		}
		if d := l.take(2); !d.Allowed {
			w.Errorf("cost 2 of 2.5: %+v", d)
		}
		w.at(300 * ms)
		if d := l.take(1); !d.Allowed {
			w.Errorf("the half that was left and the half that came: %+v", d)
		}
	})
}

// The greatest limits and windows are counted to the unit.
func TestExtremes(t *testing.T) {
	t.Parallel()
	const most = 1_000_000_000_000
	year := 366 * 24 * hour
	forEach(t, []policy.Rule{sliding(most, year), fixed(most, year), sliding(most, us), bucket(most, year, 1000)}, func(w *world, rule policy.Rule) {
		w.at(0)
		l := w.limiter(rule)
		d := l.take(rule.Capacity() - 1)
		if !d.Allowed || d.Rules[0].Remaining != 1 {
			w.Fatalf("%+v", d)
		}
		if d := l.take(2); d.Allowed {
			w.Errorf("%+v", d)
		}
		if d := l.take(1); !d.Allowed || d.Rules[0].Remaining != 0 {
			w.Errorf("%+v", d)
		}
		if rule.Algorithm == policy.SlidingWindow {
			if d := l.take(rule.Limit); d.Allowed || d.RetryAfter < rule.Per || d.RetryAfter > rule.Per+rule.Per/100+us {
				w.Errorf("all of it again in %v", d.RetryAfter)
			}
		}
	})
}

// Rates far below one a second, and none at all, are as good as any.
func TestSlowestRates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rule  policy.Rule
		every time.Duration
	}{
		"0.0055 a second": {bucket(11, 2000*sec, 1), 181818182 * us},
		"7 a minute":      {bucket(7, 60*sec, 1), 8571429 * us},
		"one a month":     {bucket(1, 30*24*hour, 1), 30 * 24 * hour},
		"5, no burst":     {bucket(5, sec, 0), 200 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) {
				l := w.limiter(test.rule)
				for i := range 5 {
					at := time.Duration(i) * test.every
					if i > 0 {
						w.at(at - 10*us)
						if l.take(1).Allowed {
							w.Errorf("unit %d came too soon", i)
						}
					}
					w.at(at)
					if !l.take(1).Allowed {
						w.Errorf("unit %d did not come", i)
					}
				}
			})
		})
	}
}

// 200 in 10 s and 20 in 1 s are the same rate and not the same
// limit; and a bucket is as large as its burst, not a unit more or less.
func TestNotOnlyARate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule policy.Rule
		want int
	}{
		{sliding(200, 10*sec), 200}, {sliding(20, sec), 20}, {fixed(200, 10*sec), 200},
		{bucket(30, 60*sec, 15), 15}, {bucket(30, 60*sec, 16), 16}, {bucket(30, 60*sec, 1), 1}, {bucket(30, 60*sec, 0), 1},
	} {
		onBoth(t, func(w *world) {
			w.at(0)
			if got := w.limiter(test.rule).admitted(test.want + 5); got != test.want {
				w.Errorf("%+v admits %d at once", test.rule, got)
			}
		})
	}
}

// A bucket of burst 15 and 30 a minute admits 45 in a minute
// and a strict limit of 30 admits 30, as the manual says of both.
func TestDocumentedBound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule  policy.Rule
		until time.Duration
		want  int
	}{{bucket(30, 60*sec, 15), 60*sec + us, 45}, {sliding(30, 60*sec), 60 * sec, 30}} {
		onBoth(t, func(w *world) {
			w.at(0)
			l, got := w.limiter(test.rule), 0
			got += l.admitted(40)
			for at := 500 * ms; at < test.until; at += 500 * ms {
				w.at(at)
				got += l.admitted(2)
			}
			if got != test.want {
				w.Errorf("%s: %d, want %d", test.rule.Algorithm, got, test.want)
			}
		})
	}
}

// A window's units are there when it begins, not before and not
// a window later, also when the limit is written again meanwhile.
func TestAtTheBoundary(t *testing.T) {
	t.Parallel()
	forEach(t, []policy.Rule{fixed(3, 60*sec), sliding(3, 60*sec)}, func(w *world, rule policy.Rule) {
		for i := range 10 {
			l := w.limiter(rule) // as if the limits had been read again
			w.at(time.Duration(i) * 60 * sec)
			if got := l.admitted(5); got != 3 {
				w.Errorf("%d of 3 when window %d begins", got, i)
			}
			w.at(time.Duration(i+1)*60*sec - us)
			if got := w.limiter(rule).admitted(5); got != 0 {
				w.Errorf("%d more when window %d ends", got, i)
			}
		}
	})
}

// A tenant that has used its own, however often it asks, leaves
// what is shared to the others. Asking for a start ahead leaves a shared window
// to them too; a shared bucket keeps room for it from now on, and so holds them
// back by no more than that start is ahead.
func TestOneTenantsWait(t *testing.T) {
	t.Parallel()
	shared := rates(100, sec)
	shared[1].Per, shared[2].Per = 10*sec, 10*sec
	forEach(t, shared, func(w *world, rule policy.Rule) {
		w.at(0)
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Rules:  []policy.Rule{rule},
			Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "own", Algorithm: policy.TokenBucket, Limit: 1, Per: 2 * sec}}}},
		}})
		if err != nil {
			w.Fatal(err)
		}
		l := w.limiterOn(w.rdb, pol)
		for range w.size(1000) {
			l.decide(throttle.Request{Scope: "p/greedy"})
		}
		tenant := func(i int) throttle.Decision {
			return l.decide(throttle.Request{Scope: fmt.Sprint("p/tenant", i)})
		}
		for i := range 45 {
			if d := tenant(i); !d.Allowed {
				w.Fatalf("tenant %d: %+v", i, d)
			}
		}
		if d := l.decide(throttle.Request{Scope: "p/greedy", MaxDelay: 2 * sec}); !d.Allowed || d.Wait != 2*sec {
			w.Fatalf("a start ahead: %+v", d)
		}
		for i := 45; i < 90; i++ {
			d := tenant(i)
			if rule.Algorithm == policy.TokenBucket && d.RetryAfter <= 2*sec {
				continue
			}
			if !d.Allowed {
				w.Fatalf("tenant %d behind a start ahead: %+v", i, d)
			}
		}
	})
}
