package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/test/reference"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// late is an observer that keeps callers back, each decision for its own time.
type late struct {
	NoObserver
	by    func(try int) time.Duration
	mu    sync.Mutex
	tries int
}

// lateBy keeps the first callers back for these times, and no later ones.
func lateBy(times ...time.Duration) *late {
	return &late{by: func(try int) (by time.Duration) {
		if try <= len(times) {
			by = times[try-1]
		}
		return by
	}}
}

func (o *late) Decided(context.Context, Decision, time.Duration, error) {
	o.mu.Lock()
	o.tries++
	by := o.by(o.tries)
	o.mu.Unlock()
	<-time.After(by)
}

// "A run that is later is decided again if a rule of its path could be exceeded", under a new attempt, with the old one given back.
func TestLateStart(t *testing.T) {
	t.Parallel()
	long := 24 * time.Hour
	day := policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 10, Per: long}
	period := policy.Rule{Name: "r", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("0 0 * * *", "UTC")}
	window := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Minute}
	quick := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: sec, Burst: 1}
	spaced := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 1}
	wide := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 10}
	places := policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 10, Lease: 10 * sec}
	opens := policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 10, Per: sec, OpensOnUse: true}
	for name, test := range map[string]struct {
		rules []policy.Rule
		by    []time.Duration // so late is each try
		tries int
	}{
		"within the pad":                        {[]policy.Rule{window}, []time.Duration{5 * ms}, 1},
		"sliding window":                        {[]policy.Rule{window}, []time.Duration{5*ms + 1}, 2},
		"sliding window, with leeway":           {[]policy.Rule{window}, []time.Duration{20 * ms, 45 * ms}, 2},
		"sliding window, later than that":       {[]policy.Rule{window}, []time.Duration{20 * ms, 45*ms + 1}, 3},
		"sliding window, later than any leeway": {[]policy.Rule{window}, []time.Duration{sec, sec, 255 * ms}, 3},
		"spaced bucket, always as late":         {[]policy.Rule{spaced}, []time.Duration{6 * ms, 6 * ms, 6 * ms, 6 * ms, 6 * ms, 6 * ms}, 3},
		"spaced bucket, later each time":        {[]policy.Rule{spaced}, []time.Duration{6 * ms, 6 * ms, 117*ms + 1}, 4},
		"wide bucket, later than its room":      {[]policy.Rule{wide}, []time.Duration{sec, 256 * ms}, 3},
		"bucket that lets plenty through":       {[]policy.Rule{quick}, []time.Duration{time.Minute}, 1},
		"places, of which the lease runs out":   {[]policy.Rule{places}, []time.Duration{6 * sec}, 2},
		"fixed window that has ended":           {[]policy.Rule{day}, []time.Duration{23 * time.Hour}, 2},
		"window that it opens":                  {[]policy.Rule{opens}, []time.Duration{5*ms + 1}, 2},
		"window that it opens, always as late":  {[]policy.Rule{opens}, []time.Duration{6 * ms, 6 * ms, 6 * ms, 6 * ms}, 3},
		"calendar whose period has ended":       {[]policy.Rule{period}, []time.Duration{23 * time.Hour}, 2},
		"a path minds what one of its rules does": {
			[]policy.Rule{places, {Name: "w", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}}, []time.Duration{6 * ms}, 2,
		},
		"a bucket beside a window that ends": {
			[]policy.Rule{spaced, {Name: "f", Algorithm: policy.FixedWindow, Limit: 10, Per: 100 * ms}},
			[]time.Duration{6 * ms, 83 * ms, 6 * ms}, 3,
		},
	} {
		o := lateBy(test.by...)
		bubbleIn(t, name, Config{StartTolerance: 5 * ms, Observer: o}, policyOf(t, test.rules...), nil, func(t *testing.T, _ *cable, l *Limiter) {
			<-time.After(time.Until(time.Now().Truncate(long).Add(long + time.Hour)))
			d, err := l.Start(t.Context(), Request{Scope: "p/x", ID: "first", MaxDelay: sec})
			if err != nil || !d.Allowed || o.tries != test.tries || d.Grant.ID() != "first" {
				t.Errorf("%d tries, granted as %q: %+v, %v", o.tries, d.Grant.ID(), d, err)
			}
			if test.rules[0].Algorithm == policy.TokenBucket {
				return // of which less may come back
			}
			if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.Rules[0].Remaining != 9 {
				t.Errorf("%d units are left, want 9; %v", d.Rules[0].Remaining, err)
			}
		})
	}
}

// "This repeats until a start is in time or a limit denies it: lateness is never a denial."
func TestLateForEver(t *testing.T) {
	t.Parallel()
	o := lateBy(slices.Repeat([]time.Duration{sec}, 1000)...)
	bubble(t, Config{Observer: o}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec}), nil, func(t *testing.T, _ *cable, l *Limiter) {
		ctx, cancel := context.WithTimeout(t.Context(), 59*sec+ms)
		defer cancel()
		if d, err := l.Start(ctx, Request{Scope: "p/x", Waiter: waiter("t")}); ctx.Err() == nil || err == nil || d.Allowed || o.tries != 60 {
			t.Errorf("%d tries: %+v, %v", o.tries, d, err)
		}
		if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.Rules[0].Remaining != 1 {
			t.Errorf("what was too late is spent: %+v, %v", d, err)
		}
	})
}

// "It takes no more of the bucket than what drains while it is late, however many are": all of a burst start, within seconds, and the
// bucket is full again when their units have drained.
func TestLateBurst(t *testing.T) {
	t.Parallel()
	o := lateBy(slices.Repeat([]time.Duration{7 * ms}, 20)...)
	rule := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Minute, Burst: 20}
	bubble(t, Config{StartTolerance: 5 * ms, Observer: o}, policyOf(t, rule), nil, func(t *testing.T, _ *cable, l *Limiter) {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				d, err := l.Start(t.Context(), Request{Scope: "p/x", Waiter: waiter(strconv.Itoa(i)), MaxDelay: sec})
				if err != nil || !d.Allowed {
					t.Errorf("%d: %+v, %v", i, d, err)
				}
			})
		}
		all.Wait()
		if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.Rules[0].Remaining != 0 || d.Rules[0].ResetAfter > 20*time.Minute+5*sec {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// Never over a limit in any window, as the handler sees its starts, however late they are: some start at once, some when
// they have been decided anew, with leeway and without. And nothing is put off that the limits admit.
func TestLateIsNeverOver(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]policy.Rule{
		"sliding window, exact":  {Algorithm: policy.SlidingWindow, Limit: 7, Per: 200 * ms},
		"sliding window, coarse": {Algorithm: policy.SlidingWindow, Limit: 140, Per: sec},
		"window on use":          {Algorithm: policy.FixedWindow, Limit: 20, Per: 200 * ms, OpensOnUse: true},
		"spaced bucket":          {Algorithm: policy.TokenBucket, Limit: 20, Per: sec, Burst: 1},
	} {
		for seed := range uint64(2) {
			rule := rule // the other seed runs beside
			rule.Name = "r"
			luck := rand.New(rand.NewPCG(seed, 0))
			o := &late{by: func(int) time.Duration { return time.Duration(luck.Int64N(int64(60*ms)) * min(1, luck.Int64N(4))) }}
			bubbleIn(t, fmt.Sprintf("%s, seed %d", name, seed), Config{StartTolerance: 5 * ms, Observer: o}, policyOf(t, rule), nil, func(t *testing.T, _ *cable, l *Limiter) {
				starts := startsOf(t, l, 15, 5*sec, rand.New(rand.NewPCG(seed, 1)))
				if least := int(rule.Limit * 5 * sec.Nanoseconds() / rule.Per.Nanoseconds() / 4); len(starts) < least {
					t.Errorf("%d starts; the limit would have admitted four times as many as %d", len(starts), least)
				}
				// A window strictly, a bucket over per and longer, and over shorter times with a pad more.
				if fault := reference.OverLate(reference.Rule{
					Algorithm: reference.Algorithm(rule.Algorithm), Limit: rule.Limit, Per: rule.Per.Microseconds(), Burst: rule.Burst, OnUse: rule.OpensOnUse,
				}, starts, (5 * ms).Microseconds()); fault != "" {
					t.Fatal(fault)
				}
			})
		}
	}
}

// startsOf has callers start one run after the other, and now and then pause, for so long.
func startsOf(t *testing.T, l *Limiter, callers int, length time.Duration, luck *rand.Rand) (starts []reference.Spent) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	for range callers {
		all.Go(func() {
			for {
				if _, err := l.Wait(ctx, Request{Scope: "p/x"}); err != nil {
					return
				}
				mu.Lock()
				starts = append(starts, reference.Spent{Start: time.Now().UnixMicro(), Units: 1})
				pause := time.Duration(luck.Int64N(int64(20 * ms)))
				if luck.IntN(10) == 0 {
					pause = time.Duration(luck.Int64N(int64(sec)))
				}
				mu.Unlock()
				<-time.After(pause)
			}
		})
	}
	all.Wait()
	return starts
}

// A bucket that minds no late start is slowed by what can be late, so that it is not exceeded over its own time.
func TestPlenty(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule policy.Rule
		cost int64
		want bool
	}{
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: sec}, 1, true},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: sec}, 5, false},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 202_000, Per: sec}, 1, true},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 201_999, Per: sec}, 1, false},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: sec, Margin: ms}, 1, false},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: time.Minute}, 1, false},
		{policy.Rule{Algorithm: policy.SlidingWindow, Limit: 1_000_000, Per: sec}, 1, false},
		{policy.Rule{Algorithm: policy.TokenBucket, Limit: policy.MaxLimit, Per: sec}, policy.MaxLimit, false},
	} {
		if got := wire.ManyFit(test.rule, 5*ms, test.cost); got != test.want {
			t.Errorf("%+v at %d: %t", test.rule, test.cost, got)
		}
	}
	r := policy.Rule{Algorithm: policy.TokenBucket, Limit: 1_000_000, Per: sec, Burst: 1}
	_, n := wire.Numbers(r, 5*ms, time.Time{})
	if over := 1005*ms.Microseconds()*n[0]/n[1] + 1_000_000*5/1010; over > r.Limit {
		t.Errorf("%d units in a second, of %d", over, r.Limit)
	}
}

// "The clock's uncertainty counts as lateness, up to half the tolerance": a quicker reply may show that a start was due earlier.
func TestInTimeDespiteUncertainty(t *testing.T) {
	t.Parallel()
	window := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
	for name, test := range map[string]struct {
		trip   time.Duration
		allows time.Duration
	}{
		"far":  {60 * ms, 2500 * time.Microsecond},
		"near": {200 * time.Microsecond, 4800 * time.Microsecond},
	} {
		bubbleIn(t, name, Config{StartTolerance: 5 * ms}, policyOf(t, window), nil, func(t *testing.T, _ *cable, l *Limiter) {
			<-time.After(time.Hour) // what has been seen of the clock is forgotten
			p, err := l.plan("p/x")
			noError(t, err)
			now := time.Now()
			p.clock.Observe(now.Add(-test.trip), now, now.Add(-test.trip/2))
			d := Decision{begins: now, under: p, Grant: Grant{start: now.UnixMicro()}}
			<-time.After(test.allows)
			if !l.inTime(&d) {
				t.Errorf("too late after %s", test.allows)
			}
			<-time.After(time.Microsecond)
			if l.inTime(&d) {
				t.Errorf("in time after %s", time.Since(now))
			}
		})
	}
}

// "Start uses it without asking Redis if the run can begin in time": what is too late or was granted under other limits is decided
// as ever.
func TestStartTakesWhatWasGranted(t *testing.T) {
	t.Parallel()
	full := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 200 * ms}
	for name, c := range map[string]struct {
		change func(l *Limiter, req *Request)
		handed bool
	}{
		"as granted":   {func(*Limiter, *Request) {}, true},
		"too late":     {func(_ *Limiter, req *Request) { req.Waiter.Granted.Starts = time.Now().Add(-sec) }, false},
		"other limits": {func(l *Limiter, _ *Request) { l.SetPolicy(policyOf(t, full)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Client(t), Config{StartTolerance: 500 * ms}, policyOf(t, full)) // it is not late on a busy machine
			b.queued("p", "t")
			req := Request{Scope: "p", MaxDelay: sec, Waiter: waiter("t")}
			req.Waiter.Granted = &b.dispatched(sec)[0]
			c.change(b.Limiter, &req)
			asked := counting(b.rdb, runsScript)
			d, err := b.Start(ctx, req)
			if err != nil || !d.Allowed || d.Handed != c.handed || c.handed != (asked.Load() == 0) {
				t.Fatalf("%+v, %v, after %d scripts", d, err, asked.Load())
			}
		})
	}
}
