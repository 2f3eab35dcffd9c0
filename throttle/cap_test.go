package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

const capped = `limits: {p: {rules: [
	{name: small, algorithm: sliding-window, limit: 1000, per: 1h, unit: tokens, cap: 10%},
	{name: day, algorithm: calendar, limit: 5000, resets: "@daily", unit: tokens, cap: 100%},
	{name: words, algorithm: sliding-window, limit: 10, per: 1h, unit: words}]}}`

// docs/costs.md, "Estimates that are too large".
func TestCap(t *testing.T) {
	t.Parallel()
	l, _ := throttletest.NewWithRedis(t, throttletest.Policy(t, capped))
	given := policy.Costs{"tokens": 50_000}
	d, err := l.Decide(t.Context(), throttle.Request{Scope: "p", Costs: given})
	if err != nil || !d.Allowed || d.Rules[0].Remaining != 900 || d.Rules[1].Remaining != 4900 || given["tokens"] != 50_000 {
		t.Fatalf("%+v, %v, %v", d, err, given)
	}
	if s, err := l.Settle(t.Context(), d.Grant, policy.Costs{"tokens": 1000}); err != nil || s.Rules[0].Debt != 900 || s.Rules[1].Debt != 900 {
		t.Errorf("%+v, %v", s, err)
	}
	if d, err := l.Decide(t.Context(), throttle.Request{Scope: "p", Costs: given}); err != nil || d.Allowed {
		t.Errorf("another: %+v, %v", d, err)
	}
	if s, err := l.Settle(t.Context(), d.Grant, policy.Costs{"tokens": 40}); err != nil || s.Rules[0].Back != 960 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, r := range []throttle.Request{{Scope: "p", Cost: 50_000}, {Scope: "p", Costs: policy.Costs{"words": 11}}} {
		if _, err := l.Decide(t.Context(), r); !errors.As(err, new(*policy.CostError)) || !errors.As(r.Check(l.Policy()), new(*policy.CostError)) {
			t.Errorf("%+v: %v, %v", r, err, r.Check(l.Policy()))
		}
	}
	if err := (throttle.Request{Scope: "p", Costs: given}).Check(l.Policy()); err != nil {
		t.Error(err)
	}
}

// Each call of one caller is estimated at fifty times the limit, and takes a fortieth of it: it uses all but the cap.
func TestLoneCaller(t *testing.T) {
	t.Parallel()
	l, _ := throttletest.NewWithRedis(t, throttletest.Policy(t, capped))
	used := 0
	for ; alone(t, l) == 0; used += 25 {
	}
	if used < 900 || used > 1000 {
		t.Errorf("%d of 1000 are used", used)
	}
}

// What is left in a bucket is there for the next call: its rate is used in full.
func TestLoneCallerOfABucket(t *testing.T) {
	t.Parallel()
	const rules = `limits: {p: {rules: [{name: rate, algorithm: token-bucket, limit: 1000, per: 1h, burst: 1000, unit: tokens, cap: 10%}]}}`
	l, server := throttletest.NewWithRedis(t, throttletest.Policy(t, rules))
	used, began := 0, time.Now()
	now, ends := began, began.Add(10*time.Hour)
	for now.Before(ends) {
		wait := alone(t, l)
		if wait == 0 {
			used += 25
		}
		now = now.Add(wait)
		server.SetTime(now)
	}
	if used < 10_900 || used > 11_025 {
		t.Errorf("%d of 11000 are used in ten hours", used)
	}
}

// alone has a call of one caller, and returns how long it is to wait if it is not admitted.
func alone(t *testing.T, l *throttle.Limiter) time.Duration {
	t.Helper()
	d, err := l.Decide(t.Context(), throttle.Request{Scope: "p", Costs: policy.Costs{"tokens": 50_000}})
	if err != nil {
		t.Fatal(err)
	}
	if !d.Allowed {
		return d.RetryAfter
	}
	if _, err := l.Settle(t.Context(), d.Grant, policy.Costs{"tokens": 25}); err != nil {
		t.Fatal(err)
	}
	return 0
}

// docs/llm.md, "Batch APIs": another process gives the tokens of a batch back when it ends; what is never given back leaves with the day.
func TestBatchOfADay(t *testing.T) {
	t.Parallel()
	const rules = `limits: {p: {rules: [{name: batch, algorithm: sliding-window, limit: 1000, per: 24h, unit: batch-tokens}]}}`
	l, server := throttletest.NewWithRedis(t, throttletest.Policy(t, rules))
	take := func() (throttle.Decision, error) {
		return l.Decide(t.Context(), throttle.Request{Scope: "p", Costs: policy.Costs{"batch-tokens": 900}})
	}
	d, err := take()
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := l.SaveGrant(t.Context(), d.Grant, "batch", 25*time.Hour); err != nil {
		t.Fatal(err)
	}
	server.SetTime(time.Now().Add(10 * time.Hour))
	if d, err := take(); err != nil || d.Allowed {
		t.Errorf("it is still running: %+v, %v", d, err)
	}
	grant, err := l.LoadGrant(t.Context(), "p", "batch")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Refund(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	if d, err := take(); err != nil || !d.Allowed {
		t.Errorf("it has ended: %+v, %v", d, err)
	}
	server.SetTime(time.Now().Add(35 * time.Hour))
	if d, err := take(); err != nil || !d.Allowed {
		t.Errorf("a day later: %+v, %v", d, err)
	}
}
