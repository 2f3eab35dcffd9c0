package throttle

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

func bucket(limit, burst int64) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: sec, Burst: burst}
}

// A place may come free before its lease ends: nobody gives up before it is too late.
func TestWaitForPlaceInTime(t *testing.T) {
	t.Parallel()
	patient := oneRun()
	patient.MaxWait = 20 * sec
	spent := bucket(1, 1)
	spent.Name, spent.Per = "slow", 25*sec
	for name, test := range map[string]struct {
		rules    []policy.Rule
		deadline time.Duration
		freed    time.Duration // 0 for never
		after    time.Duration
		want     error
	}{
		"within the deadline":        {[]policy.Rule{oneRun()}, 20 * sec, 5 * sec, 5 * sec, nil},
		"not by the deadline":        {[]policy.Rule{oneRun()}, 20 * sec, 0, 20 * sec, context.DeadlineExceeded},
		"within max_wait":            {[]policy.Rule{patient}, time.Hour, 5 * sec, 5 * sec, nil},
		"not by max_wait":            {[]policy.Rule{patient}, time.Hour, 0, 20 * sec, ErrMaxWait},
		"another rule asks for more": {[]policy.Rule{spent, oneRun()}, 20 * sec, 5 * sec, 0, ErrMaxWait},
	} {
		bubbleIn(t, name, Config{}, policyOf(t, test.rules...), nil, func(t *testing.T, _ *cable, l *Limiter) {
			held, lease := l.Lease(t.Context(), grantedBy(t, l).Grant)
			began := time.Now()
			if test.freed > 0 {
				time.AfterFunc(test.freed, func() { _ = lease.Release(held) })
			}
			ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
			defer cancel()
			_, err := l.Wait(ctx, Request{Scope: "p/x"})
			if took := time.Since(began); !errors.Is(err, test.want) || took < test.after || took > test.after+recheck {
				t.Errorf("after %s: %v", took, err)
			}
			noError(t, lease.Release(held))
		})
	}
}

// "An error that wraps ErrMaxWait, at once and charging nothing, when the wait is
// known to outlast ctx's deadline or a rule's max_wait".
func TestWaitRefuses(t *testing.T) {
	t.Parallel()
	patient := func(r policy.Rule, most time.Duration) policy.Rule {
		r.MaxWait = most
		return r
	}
	for name, test := range map[string]struct {
		rules    []policy.Rule
		deadline time.Duration
		want     string
		after    time.Duration
	}{
		"deadline": {
			[]policy.Rule{bucket(1, 1)}, 800 * ms,
			"throttle: the wait is longer than allowed: allowed in 1s, and the context ends in 800ms: context deadline exceeded", 0,
		},
		"max_wait": {
			[]policy.Rule{patient(bucket(1, 1), 900*ms)}, 0,
			"throttle: the wait is longer than allowed: rule r of p asks for 1s more after 0s; its max_wait is 900ms", 0,
		},
		"max_wait of a suspended rule": {
			[]policy.Rule{patient(policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Per: sec}, 1700*ms)}, 0,
			"throttle: the wait is longer than allowed: rule r of p cannot tell how much longer after 1.7s; its max_wait is 1.7s", 1700 * ms,
		},
	} {
		bubbleIn(t, name, Config{StartTolerance: -1}, policyOf(t, test.rules...), nil, func(t *testing.T, _ *cable, l *Limiter) {
			_, err := l.Allow(t.Context(), "p/x")
			noError(t, err)
			before, err := l.Peek(t.Context(), Request{Scope: "p/x"})
			noError(t, err)
			ctx := t.Context()
			if test.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.deadline)
				defer cancel()
			}
			began := time.Now()
			d, err := l.Wait(ctx, Request{Scope: "p/x"})
			took, ofDeadline := time.Since(began), errors.Is(err, context.DeadlineExceeded)
			if !errors.Is(err, ErrMaxWait) || err.Error() != test.want || d.Allowed || ofDeadline != (test.deadline > 0) || took != test.after {
				t.Errorf("after %s got %+v\n%v, want after %s\n%s", took, d, err, test.after, test.want)
			}
			after, err := l.Peek(t.Context(), Request{Scope: "p/x"})
			if err != nil || after.Rules[0].ResetAfter > before.Rules[0].ResetAfter {
				t.Errorf("it was charged: %+v, then %+v, %v", before, after, err)
			}
		})
	}
}

// "At once and without a charge, if the wait is known to end less than Config.StartTolerance before ctx's deadline": such a start would
// be charged, waited for and refunded. An earlier one is granted.
func TestWaitOnItsDeadline(t *testing.T) {
	t.Parallel()
	for deadline, granted := range map[time.Duration]bool{sec + 5*ms: false, sec + 9*ms: false, sec + 11*ms: true} {
		bubbleIn(t, deadline.String(), Config{StartTolerance: 5 * ms}, policyOf(t, bucket(1, 1)), nil, func(t *testing.T, _ *cable, l *Limiter) {
			grantedBy(t, l)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			began := time.Now()
			d, err := l.Wait(ctx, Request{Scope: "p/x"})
			if d.Allowed != granted || granted != (err == nil) || !granted && (!errors.Is(err, ErrMaxWait) || time.Since(began) > 0) {
				t.Errorf("after %s: %+v, %v", time.Since(began), d, err)
			}
		})
	}
}

// "If ctx ends first, it returns ctx's error, and the units are given back".
func TestCancelledWaitGivesBack(t *testing.T) {
	t.Parallel()
	bubble(t, Config{StartTolerance: -1}, policyOf(t, bucket(10, 1), runs10()), nil, func(t *testing.T, _ *cable, l *Limiter) {
		grantedBy(t, l)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := l.Wait(ctx, Request{Scope: "p/x"})
			done <- err
		}()
		<-time.After(50 * ms) // it holds a start at 100ms
		if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.Rules[0].RetryAfter != 150*ms || d.Rules[1].Remaining != 8 {
			t.Fatalf("it has no start of its own: %+v, %v", d, err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, ErrMaxWait) {
			t.Errorf("got %v, want the context's own error", err)
		}
		if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.Rules[0].RetryAfter != 50*ms || d.Rules[1].Remaining != 9 {
			t.Errorf("its units did not come back: %+v, %v", d, err)
		}
	})
}

// "It waits out an outage under a closed rule, as long as max_wait allows."
func TestWaitOutlastsOutage(t *testing.T) {
	t.Parallel()
	impatient := window10()
	impatient.MaxWait = 10 * sec
	for name, row := range map[string]struct {
		rule  policy.Rule
		after time.Duration
		want  error
	}{"outlasts": {window10(), time.Minute, nil}, "max_wait": {impatient, 10 * sec, ErrMaxWait}} {
		bubbleIn(t, name, Config{}, policyOf(t, row.rule), nil, func(t *testing.T, w *cable, l *Limiter) {
			w.down.Store(true)
			time.AfterFunc(time.Minute, func() { w.down.Store(false) })
			began := time.Now()
			d, err := l.Wait(t.Context(), Request{Scope: "p/x"})
			took := time.Since(began)
			if took < row.after || took > row.after+5*sec || d.Allowed != (row.want == nil) || !errors.Is(err, row.want) || errors.Is(err, ErrUnavailable) != (row.want != nil) {
				t.Errorf("after %s: %+v, %v, want %v", took, d, err, row.want)
			}
			<-time.After(2 * time.Minute) // for the client to notice
		})
	}
}

// "OnWait is called by Start and Wait before they wait for a granted start, with the time until it; The function it returns is called when that wait is over."
func TestOnWait(t *testing.T) {
	t.Parallel()
	bubble(t, Config{StartTolerance: -1}, policyOf(t, bucket(10, 1)), nil, func(t *testing.T, _ *cable, l *Limiter) {
		var told []time.Duration
		over := 0
		req := Request{Scope: "p/x", MaxDelay: sec, OnWait: func(ahead time.Duration) func() {
			told = append(told, ahead)
			return func() { over++ }
		}}
		noError(t, errors.Join(errorOf(l.Start(t.Context(), req)), errorOf(l.Start(t.Context(), req)), errorOf(l.Start(t.Context(), req))))
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		if _, err := l.Start(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !slices.Equal(told, []time.Duration{100 * ms, 100 * ms, 100 * ms}) || over != 3 {
			t.Errorf("told of %v, %d of them over", told, over)
		}
	})
}

// "It asks under the same attempt id each time": one that asks again, since its answer was lost, is not charged again, though it had
// to wait.
func TestWaitAgainIsChargedOnce(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"denied at first": 0, "granted ahead": 20 * sec} {
		slow := bucket(1, 1)
		slow.Per = 10 * sec
		bubbleIn(t, name, Config{}, policyOf(t, slow), nil, func(t *testing.T, _ *cable, l *Limiter) {
			grantedBy(t, l)
			for range 2 {
				d, err := l.Wait(t.Context(), Request{Scope: "p/x", ID: "mine", MaxDelay: ahead})
				if err != nil || d.Grant.ID() != "mine" {
					t.Fatalf("granted as %q, %v", d.Grant.ID(), err)
				}
			}
			if d, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil || d.RetryAfter > 11*sec {
				t.Errorf("the next one comes in %s, %v", d.RetryAfter, err)
			}
		})
	}
}
