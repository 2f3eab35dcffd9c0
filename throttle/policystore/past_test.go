package policystore

import (
	"errors"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "NeverAdmitted tells whether a task has been refused by all limits that there were."
func TestNeverAdmitted(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	must(t, set(s, anna, "mail", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	_, err := s.Unset(t.Context(), anna, "mail", "")
	must(t, err)
	must(t, set(s, anna, "payments/*", "tenant", "burst=2"))
	limiter, err := throttle.New(rdb, policyOf(t, "limits: {search: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"), throttle.Config{Prefix: redistest.Prefix(t)})
	must(t, err)
	limiter.SetPolicy(policyOf(t, "limits: {}"))
	past := NewPast(s, limiter)
	unmatched, cost := error(&policy.UnmatchedError{}), error(&policy.CostError{})
	for _, c := range []struct {
		ask   throttle.Waiter
		why   error
		never bool
	}{
		{throttle.Waiter{Scope: "payments/a"}, unmatched, false},
		{throttle.Waiter{Scope: "payments/a", Cost: 1000}, unmatched, false}, // its cost is another matter
		{throttle.Waiter{Scope: "mail"}, unmatched, false},                   // set live, and gone
		{throttle.Waiter{Scope: "search/x"}, unmatched, false},               // in this process alone
		{throttle.Waiter{Scope: "other/a"}, unmatched, true},
		{throttle.Waiter{Scope: "a//b"}, unmatched, true},
		{throttle.Waiter{Scope: "payments/a", Cost: 5}, cost, false},
		{throttle.Waiter{Scope: "payments/a", Cost: 6}, cost, true},
		{throttle.Waiter{Scope: "payments/a", Costs: policy.Costs{"requests": 5}}, cost, false},
		{throttle.Waiter{Scope: "payments/a", Costs: policy.Costs{"requests": 6}}, cost, true},
	} {
		if got := past.NeverAdmitted(t.Context(), c.ask, c.why); got != c.never {
			t.Errorf("%+v, %T: %t", c.ask, errors.Unwrap(c.why), got)
		}
	}
	must(t, set(s, anna, "other", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	redistest.WaitFor(t, "the new version to be known", time.Minute, func() bool {
		return !past.NeverAdmitted(t.Context(), throttle.Waiter{Scope: "other/a"}, unmatched)
	})
}

// "While the store can't be asked the answer is no."
func TestNeverAdmittedWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	limiter, err := throttle.New(rdb, policyOf(t, "limits: {}"), throttle.Config{})
	must(t, err)
	past := NewPast(New(rdb, Config{}), limiter)
	server.Kill9()
	if past.NeverAdmitted(t.Context(), throttle.Waiter{Scope: "other/a"}, &policy.UnmatchedError{}) {
		t.Error("it is said to be hopeless")
	}
}

// UnmatchedSince names the version that took a scope's rules away, however many came after it, and none for a scope that never
// met a rule.
func TestUnmatchedSince(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	must(t, set(s, anna, "mail", "plan", "algorithm=sliding-window", "limit=10", "per=1s"))
	gone, err := s.Remove(t.Context(), bert, "mail", "plan")
	must(t, err)
	must(t, set(s, anna, "payments/*", "tenant", "burst=2"))
	for scope, want := range map[string]int64{"mail": gone.Version.Number, "mail/below": gone.Version.Number, "never": 0} {
		since, known, err := s.UnmatchedSince(t.Context(), scope)
		if err != nil || since.Number != want || known != (want > 0) || known && since.By != "bert" {
			t.Errorf("%s: version %d by %q, %t, %v; want version %d", scope, since.Number, since.By, known, err, want)
		}
	}
	if _, _, err := s.UnmatchedSince(t.Context(), "a//b"); !errors.As(err, new(*policy.ScopeError)) {
		t.Errorf("a//b: %v", err)
	}
}
