package throttletest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestScript(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	l := throttletest.Script(throttletest.Allow(), throttletest.Deny(time.Second), throttletest.Fail(failure), throttletest.AllowIn(time.Minute))
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
	if d, err := l.Decide(t.Context(), throttle.Request{Scope: "p/x", Costs: policy.Costs{policy.Requests: 0}}); !d.Allowed || !d.Grant.Zero() || err != nil {
		t.Errorf("what takes nothing is granted something: %+v, %v", d, err)
	}
	must(t, errors.Join(l.Refund(t.Context(), first.Grant), l.Refund(t.Context(), throttle.Grant{})))
	if back := l.Refunded(); !slices.Equal(back, []string{"attempt-1"}) {
		t.Errorf("given back: %v", back)
	}
}

// "Start and Wait wait": for as long as each denial says, half a second where no clock tells, and a quarter of a second after
// ErrUnavailable, which is asked again under the same attempt id.
func TestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.Script(throttletest.Deny(time.Minute), throttletest.Fail(throttle.ErrUnavailable),
			throttletest.Deny(throttle.Never), throttletest.AllowIn(time.Second))
		began, told, over, before := time.Now(), time.Duration(0), time.Duration(0), 0
		d, err := l.Wait(t.Context(), throttle.Request{Scope: "p", BeforeStart: func() { before++ }, OnWait: func(ahead time.Duration) func() {
			told = ahead
			return func() { over = time.Since(began) }
		}})
		const want = time.Minute + 1750*time.Millisecond
		if took := time.Since(began); err != nil || !d.Allowed || took != want || told != time.Second || over != want || before != 1 {
			t.Errorf("after %s, told of %s until %s: %+v, %v", took, told, over, d, err)
		}
		ids := []string{}
		for _, req := range l.Requests() {
			ids = append(ids, req.ID)
		}
		if !slices.Equal(ids, []string{"attempt-1", "attempt-2", "attempt-2", "attempt-3"}) || d.Grant.ID() != "attempt-3" {
			t.Errorf("it asked under %q and was granted %q", ids, d.Grant.ID())
		}
		permanent := &policy.CostError{}
		if _, err := throttletest.Script(throttletest.Fail(permanent)).Wait(t.Context(), throttle.Request{}); !errors.Is(err, permanent) {
			t.Error(err)
		}
	})
}

// "A request with an ended context returns the context's error and takes no answer."
func TestContexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.Script(throttletest.Deny(time.Minute), throttletest.AllowIn(time.Minute), throttletest.Deny(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, throttle.Request{Scope: "p"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if back := l.Refunded(); !slices.Equal(back, []string{"attempt-2"}) {
			t.Errorf("the grant of a wait that ended was not given back: %q", back)
		}
		for name, ask := range map[string]func(context.Context, throttle.Request) (throttle.Decision, error){
			"Allow":  func(ctx context.Context, _ throttle.Request) (throttle.Decision, error) { return l.Allow(ctx, "p") },
			"Decide": l.Decide, "Peek": l.Peek, "Start": l.Start, "Wait": l.Wait,
		} {
			if d, err := ask(ctx, throttle.Request{}); d.Allowed || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s with a context that has ended: %+v, %v", name, d, err)
			}
		}
		if n := len(l.Requests()); n != 2 {
			t.Errorf("contexts that have ended took answers: it was asked %d times", n)
		}

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := l.Wait(short, throttle.Request{Scope: "p"})
		if !errors.Is(err, throttle.ErrMaxWait) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 0 {
			t.Errorf("a denial until after the deadline, after %s: %v", time.Since(began), err)
		}
		l.Otherwise(func(throttle.Request) throttletest.Answer { return throttletest.Deny(throttle.Never) })
		if _, err := l.Wait(short, throttle.Request{Scope: "p"}); errors.Is(err, throttle.ErrMaxWait) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a denial that no clock ends: %v", err)
		}
	})
}

// "by scope, by how often it was asked, or the same for ever, as in an outage that
// lasts until Otherwise is called again. nil allows all."
func TestOtherwise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.Script(throttletest.Allow())
		l.Otherwise(func(req throttle.Request) throttletest.Answer {
			if req.Scope == "p/loud" && len(l.Requests()) > 2 { // it may be asked
				return throttletest.Deny(time.Hour)
			}
			return throttletest.Allow()
		})
		for i, want := range []bool{true, true, false, false} {
			if d, err := l.Allow(t.Context(), "p/loud"); err != nil || d.Allowed != want {
				t.Errorf("call %d: %+v, %v", i, d, err)
			}
		}
		if d, err := l.Allow(t.Context(), "p/quiet"); err != nil || !d.Allowed {
			t.Errorf("another scope: %+v, %v", d, err)
		}
		for scope, want := range map[string]int64{"p/loud": 0, "p/quiet": 5} { // "all of them, or none"
			d, taken, err := l.AllowAtMost(t.Context(), scope, 5)
			if asked := l.Requests(); err != nil || taken != want || d.Grant.Zero() != (want == 0) || asked[len(asked)-1].Cost != 5 {
				t.Errorf("at most 5 of %s: %d taken, %+v, %v", scope, taken, d, err)
			}
		}
		if d, err := l.Peek(t.Context(), throttle.Request{Scope: "p/loud"}); err != nil || d.Allowed {
			t.Errorf("Peek: %+v, %v", d, err)
		}

		l.Otherwise(func(throttle.Request) throttletest.Answer { return throttletest.Fail(throttle.ErrUnavailable) })
		began := time.Now()
		time.AfterFunc(time.Hour-time.Millisecond, func() { l.Otherwise(nil) })
		if d, err := l.Wait(t.Context(), throttle.Request{Scope: "p/loud"}); err != nil || !d.Allowed || time.Since(began) != time.Hour {
			t.Errorf("after an outage of an hour, after %s: %+v, %v", time.Since(began), d, err)
		}
	})
}

// "LoseLeases ends the context of every run that is held"; a zero grant holds none.
func TestLoseLeases(t *testing.T) {
	t.Parallel()
	var l throttletest.Limiter
	d, err := l.Decide(t.Context(), throttle.Request{Scope: "p", ID: "same"})
	must(t, err)
	none, _ := l.Lease(t.Context(), throttle.Grant{})
	first, lease := l.Lease(t.Context(), d.Grant)
	second, _ := l.Lease(t.Context(), d.Grant)
	if errors.Join(none.Err(), first.Err(), second.Err()) != nil {
		t.Error("lost at once")
	}
	l.LoseLeases()
	for _, ctx := range []context.Context{first, second} {
		if !errors.Is(context.Cause(ctx), throttle.ErrLeaseLost) {
			t.Errorf("it ended by %v", context.Cause(ctx))
		}
	}
	if none != t.Context() {
		t.Error("a zero grant holds something")
	}
	must(t, lease.Release(first))
	if ctx, _ := l.Lease(t.Context(), d.Grant); ctx.Err() != nil {
		t.Error("what is held later is lost too")
	}
}

// A real limiter takes a stand-in's grants for what they are: nothing.
func TestGrantsOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.New(t, throttletest.Policy(t, limits))
		if d, err := l.Decide(t.Context(), throttle.Request{Scope: "p/x", ID: "id"}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		for _, scope := range []string{"p/x", "elsewhere", ""} {
			g := throttle.NewGrant(scope, "id")
			ctx, lease := l.Lease(t.Context(), g)
			must(t, errors.Join(l.Refund(t.Context(), g), lease.Release(t.Context()), ctx.Err()))
			if d, err := l.Peek(t.Context(), throttle.Request{Scope: "p/x"}); err != nil || d.Rules[0].Remaining != 99 || d.Rules[1].Remaining != 2 {
				t.Errorf("%q: %+v, %v, want what the real grant of that name left", scope, d, err)
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

// New "works in bubbles of testing/synctest: there an hour of limits takes no time and durations are exact".
func TestNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := throttletest.New(t, throttletest.Policy(t, limits), throttle.Config{StartTolerance: -1})
		began := time.Now()
		for range 250 {
			d, err := l.Wait(t.Context(), throttle.Request{Scope: "p/x"})
			must(t, err)
			ctx, lease := l.Lease(t.Context(), d.Grant)
			<-time.After(time.Second)
			must(t, errors.Join(context.Cause(ctx), lease.Release(ctx)))
		}
		if took := time.Since(began); took < 2*time.Hour || took > 2*time.Hour+2*time.Minute {
			t.Errorf("250 calls at 100 an hour took %s", took)
		}
	})
}

// "SetError makes it answer every command with an error"; "Close cuts all connections and refuses new ones", and Restart "ends
// what Close began, with all that the server held. The client needs up to a second to find out."
func TestOutages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, server := throttletest.NewWithRedis(t, throttletest.Policy(t, limits))
		left := func(want int64) {
			t.Helper()
			if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Allowed || d.Rules[0].Remaining != want {
				t.Errorf("got %+v, %v; want %d left", d, err, want)
			}
		}
		unavailable := func() {
			t.Helper()
			for range 20 {
				if d, err := l.Allow(t.Context(), "p/x"); !errors.Is(err, throttle.ErrUnavailable) {
					t.Fatalf("got %+v, %v", d, err)
				}
			}
		}
		left(99)
		server.SetError("LOADING")
		unavailable()
		server.SetError("")
		left(98)
		server.Close()
		server.Close()
		unavailable()
		server.Restart()
		<-time.After(time.Second)
		left(97)
	})
}

// SetTime "sets the server's clock to a date", and Advance goes on from there.
func TestSetTime(t *testing.T) {
	t.Parallel()
	l, server := throttletest.NewWithRedis(t, throttletest.Policy(t, `
limits:
  mail:
    rules:
      - {name: daily, algorithm: calendar, limit: 1, resets: "0 0 * * *", timezone: America/Los_Angeles}
`), throttle.Config{StartTolerance: -1})
	zone, err := time.LoadLocation("America/Los_Angeles")
	must(t, err)
	at := func(day, hour int) time.Time { return time.Date(2027, time.March, day, hour, 0, 0, 0, zone) }
	for i, step := range []struct {
		to      time.Time     // zero: Advance
		advance time.Duration // or by so much
		retry   time.Duration // 0 for a start
	}{
		{to: at(13, 21)}, {advance: time.Hour, retry: 2 * time.Hour}, {advance: 2 * time.Hour}, {to: at(14, 1), retry: 22 * time.Hour}, {to: at(15, 0)},
	} {
		if step.to.IsZero() {
			server.Advance(step.advance)
		} else {
			server.SetTime(step.to)
		}
		d, err := l.Allow(t.Context(), "mail")
		if err != nil || d.Allowed != (step.retry == 0) || d.RetryAfter != step.retry || !step.to.IsZero() && !d.At.Equal(step.to) {
			t.Errorf("step %d: %+v, %v; want %+v", i, d, err, step)
		}
	}
}

// fatal is a TB whose test ends by a panic that says why.
type fatal struct{}

func (fatal) Helper()                        {}
func (fatal) Cleanup(func())                 {}
func (fatal) Fatalf(format string, _ ...any) { panic("fatal: " + format) }

func TestFaults(t *testing.T) {
	t.Parallel()
	limited := throttletest.Policy(t, limits)
	for name, call := range map[string]func(t fatal){
		"two configs": func(t fatal) { throttletest.New(t, limited, throttle.Config{}, throttle.Config{}) },
		"no policy":   func(t fatal) { throttletest.New(t, nil) },
		"bad policy":  func(t fatal) { throttletest.Policy(t, "limits: 5") },
	} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "fatal: ") {
					t.Errorf("%s: %s", name, said)
				}
			}()
			call(fatal{})
		}()
	}
}
