package throttletest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
)

func TestScript(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	l := throttletest.Script(throttletest.Allow(), throttletest.Deny(time.Second), throttletest.Fail(failure))
	l.Then(throttletest.AllowIn(time.Minute))
	if d, err := l.Peek(t.Context(), throttle.Request{}); !d.Allowed || err != nil {
		t.Errorf("Peek: %+v, %v", d, err)
	}
	first, err := l.Allow(t.Context(), "p/x")
	if !first.Allowed || err != nil || first.Grant.ID() != "attempt-1" || first.At.IsZero() {
		t.Errorf("Allow: %+v, %v", first, err)
	}
	if d, err := l.Decide(t.Context(), throttle.Request{Scope: "p/y", Cost: 3, ID: "mine"}); d.Allowed || d.RetryAfter != time.Second || err != nil {
		t.Errorf("Decide: %+v, %v", d, err)
	}
	if _, err := l.Start(t.Context(), throttle.Request{Scope: "p/z"}); !errors.Is(err, failure) {
		t.Errorf("Start: %v", err)
	}
	if d, err := l.Decide(t.Context(), throttle.Request{Scope: "p/z"}); d.Wait != time.Minute || err != nil {
		t.Errorf("Decide: %+v, %v", d, err)
	}
	for range 3 {
		if d, err := l.Allow(t.Context(), "p/x"); !d.Allowed || err != nil {
			t.Errorf("after the script: %+v, %v", d, err)
		}
	}
	asked := l.Requests()
	if len(asked) != 7 || asked[1].Cost != 3 || asked[1].ID != "mine" || asked[0].Cost != 1 || asked[0].Scope != "p/x" {
		t.Errorf("it was asked %+v", asked)
	}
	if err := errors.Join(l.GiveBack(t.Context(), first.Grant), l.GiveBack(t.Context(), throttle.Grant{})); err != nil {
		t.Error(err)
	}
	if back := l.GivenBack(); !slices.Equal(back, []string{"attempt-1"}) {
		t.Errorf("given back: %v", back)
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.Script(throttletest.Deny(time.Minute), throttletest.Fail(throttle.ErrUnavailable),
			throttletest.Deny(throttle.Unknown), throttletest.AllowIn(time.Second))
		began := time.Now()
		told := time.Duration(0)
		d, err := l.Wait(t.Context(), throttle.Request{Scope: "p", OnWait: func(ahead time.Duration) func() {
			told = ahead
			return func() {}
		}})
		if took := time.Since(began); err != nil || !d.Allowed || took != time.Minute+1500*time.Millisecond || told != time.Second {
			t.Errorf("after %s, told of %s: %+v, %v", took, told, d, err)
		}

		l = throttletest.Script(throttletest.Deny(time.Minute), throttletest.AllowIn(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, throttle.Request{Scope: "p"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(l.GivenBack()) != 1 {
			t.Error("the grant of a wait that ended was not given back")
		}
		for _, ask := range []func() (throttle.Decision, error){
			func() (throttle.Decision, error) { return l.Allow(ctx, "p") },
			func() (throttle.Decision, error) { return l.Peek(ctx, throttle.Request{}) },
			func() (throttle.Decision, error) { return l.Wait(ctx, throttle.Request{}) },
		} {
			if d, err := ask(); d.Allowed || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a context that has ended: %+v, %v", d, err)
			}
		}
		permanent := &throttle.CostError{}
		if _, err := throttletest.Script(throttletest.Fail(permanent)).Wait(t.Context(), throttle.Request{}); !errors.Is(err, permanent) {
			t.Error(err)
		}
	})
}

func TestLoseLeases(t *testing.T) {
	t.Parallel()
	var l throttletest.Limiter
	d, err := l.Allow(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	ctx, lease := l.Hold(t.Context(), d.Grant)
	if ctx.Err() != nil {
		t.Error("lost at once")
	}
	l.LoseLeases()
	if !errors.Is(context.Cause(ctx), throttle.ErrLeaseLost) || lease.Release(ctx) != nil {
		t.Errorf("it ended by %v", context.Cause(ctx))
	}
}

// A real limiter takes a stand-in's grants for what they are: nothing.
func TestGrantsOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.New(t, throttletest.Policy(t, limits))
		for _, scope := range []string{"p/x", "elsewhere", ""} {
			g := throttle.NewGrant(scope, "id")
			if err := l.GiveBack(t.Context(), g); err != nil {
				t.Errorf("%q: %v", scope, err)
			}
			_, lease := l.Hold(t.Context(), g)
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("%q: %v", scope, err)
			}
		}
	})
}

const limits = `
limits:
  p:
    rules:
      - {name: hourly, algorithm: sliding-window, limit: 100, per: 1h}
      - {name: parallel, algorithm: concurrency, limit: 3}
`

// New "works in bubbles of testing/synctest: there an hour of limits takes no time
// and durations are exact".
func TestNew(t *testing.T) {
	t.Parallel()
	for range 2 { // bubbles share nothing
		synctest.Test(t, func(t *testing.T) {
			l := throttletest.New(t, throttletest.Policy(t, limits), throttle.Config{Pad: -1})
			began := time.Now()
			var workers sync.WaitGroup
			for range 10 {
				workers.Go(func() {
					for range 25 {
						d, err := l.Wait(t.Context(), throttle.Request{Scope: "p/x"})
						if err != nil {
							t.Error(err)
							return
						}
						ctx, lease := l.Hold(t.Context(), d.Grant)
						<-time.After(time.Second)
						if ctx.Err() != nil {
							t.Error(context.Cause(ctx))
						}
						if err := lease.Release(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			workers.Wait()
			if took := time.Since(began); took < 2*time.Hour || took > 2*time.Hour+2*time.Minute {
				t.Errorf("250 calls at 100 an hour took %s", took)
			}
		})
	}
}

func TestNewWithRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, server := throttletest.NewWithRedis(t, throttletest.Policy(t, limits))
		server.SetError("LOADING")
		if _, err := l.Allow(t.Context(), "p/x"); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		server.SetError("")
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Allowed {
			t.Errorf("got %+v, %v", d, err)
		}
	})
}

// fatal is a TB that keeps what it is told.
type fatal struct{ said []string }

func (f *fatal) Helper()                        {}
func (f *fatal) Cleanup(func())                 {}
func (f *fatal) Fatalf(format string, _ ...any) { f.said = append(f.said, format); panic(f) }

func TestFaults(t *testing.T) {
	t.Parallel()
	policy := throttletest.Policy(t, limits)
	for name, call := range map[string]func(t *fatal){
		"two configs": func(t *fatal) { throttletest.New(t, policy, throttle.Config{}, throttle.Config{}) },
		"no policy":   func(t *fatal) { throttletest.New(t, nil) },
		"bad policy":  func(t *fatal) { throttletest.Policy(t, "limits: 5") },
	} {
		f := &fatal{}
		func() {
			defer func() { _ = recover() }()
			call(f)
		}()
		if len(f.said) != 1 {
			t.Errorf("%s: it said %q", name, f.said)
		}
	}
}
