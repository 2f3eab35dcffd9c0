package worker

import (
	"context"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// docs/limits.md: "The task waits if earlier limits would have admitted it: those of the process and the versions in Redis", and only a
// cost is refused for good.
func TestNeverAdmitted(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	parse := func(text string) *policy.Policy {
		t.Helper()
		p, err := limitsyaml.Parse("limits.yaml", []byte(text))
		must(t, err)
		return p
	}
	store := policystore.New(rdb, policystore.Config{Prefix: prefix})
	edit := func(text string) {
		t.Helper()
		_, err := store.Import(t.Context(), policystore.Edit{By: "anna"}, parse(text), "limits.yaml", true)
		must(t, err)
	}
	edit("limits: {mail: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1s}]}}")
	edit("limits: {payments: {rules: [{name: plan, algorithm: sliding-window, limit: 5, per: 1s}]}}")
	limiter, err := throttle.New(rdb, parse("limits: {search: {rules: [{name: r, algorithm: sliding-window, limit: 3, per: 1s}]}}"), throttle.Config{Prefix: prefix})
	must(t, err)
	limiter.SetPolicy(parse("limits: {}"))
	never := neverAdmitted(store, limiter)
	unmatched, cost := error(&policy.UnmatchedError{}), error(&policy.CostError{})
	for _, c := range []struct {
		task  throttle.Request
		why   error
		never bool
	}{
		{throttle.Request{Scope: "other/a"}, unmatched, false},   // a rule may come
		{throttle.Request{Scope: "mail", Cost: 10}, cost, false}, // replaced since
		{throttle.Request{Scope: "mail", Cost: 11}, cost, true},
		{throttle.Request{Scope: "search", Cost: 3}, cost, false}, // in this process alone
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 5}}, cost, false},
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 6}}, cost, true},
	} {
		if got := never(t.Context(), c.task, c.why); got != c.never {
			t.Errorf("%+v, %T: %t", c.task, c.why, got)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if neverAdmitted(store, limiter)(stopped, throttle.Request{Scope: "mail", Cost: 11}, cost) {
		t.Error("Redis cannot be asked, and a task is said to be hopeless")
	}
	edit("limits: {other: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1s}]}}")
	limiter.SetPolicy(parse("limits: {}")) // as Follow does
	if never(t.Context(), throttle.Request{Scope: "other/a", Cost: 10}, cost) {
		t.Error("the new version is not known")
	}
}
