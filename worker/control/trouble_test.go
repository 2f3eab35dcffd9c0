package control

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
)

const troubled = `limits:
  p:
    rules: [{name: account, algorithm: token-bucket, limit: 1, per: 10s, burst: 1}]
    scopes:
      small: {scopes: {deep: {rules: [{name: own, algorithm: fixed-window, limit: 100, per: 1h}]}}}
      off: {rules: [{name: none, algorithm: sliding-window, limit: 0, per: 1s}]}
  q: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}]}}}
`

func (a *asked) outline(provider string) Outline {
	a.t.Helper()
	out, err := a.Outline(a.t.Context(), provider, 100)
	must(a.t, err)
	return out
}

// When all tasks of a scope will have started is when the last row of its table says, and what a preview says: of a tenant beside a backlog,
// of a provider with a paused tenant, and of a scope that no clock lets start.
func TestLastStartIsTheLastRow(t *testing.T) {
	t.Parallel()
	a := newAsked(t, troubled)
	a.use("p")
	a.fill("p/big", 30)
	a.fill("p/small", 4)
	check := func(scope, last string, waits int, about time.Duration) {
		t.Helper()
		got, err := a.LastStart(t.Context(), scope, a.outline("p"))
		must(t, err)
		rows, err := a.Turns(t.Context(), last, waits-1, 1)
		if err != nil || len(rows.List) != 1 {
			t.Fatalf("%+v, %v", rows, err)
		}
		owner := "anna"
		p, err := a.Preview(t.Context(), admin, Change{Verb: VerbAssign, Scope: scope, Assigned: policystore.Assigned{Owner: &owner}})
		must(t, err)
		for what, start := range map[string]Time{"the last row": rows.List[0].Start, "a preview": p.Effect.Before.Start} {
			if off := start.Sub(got.Start.Time).Abs(); off > 500*time.Millisecond {
				t.Errorf("%s: all started at %s, and by %s at %s", scope, got.Start, what, start)
			}
		}
		if in := time.Until(got.Start.Time); in < about*3/4 || in > about*5/4 {
			t.Errorf("%s: all started in %s, want about %s", scope, in, about)
		}
	}
	check("p/small", "p/small", 4, 80*time.Second)
	check("p", "p/big", 30, 340*time.Second)

	a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "anna", For: time.Hour}, "p/small"))
	check("p", "p/small", 4, time.Hour)
	a.fill("p/off", 1)
	if got, err := a.LastStart(t.Context(), "p", a.outline("p")); err != nil || !got.Start.IsZero() || got.Reason != ReasonSuspended || got.RuleScope != "p/off" {
		t.Errorf("%+v, %v", got, err)
	}
}

// What stands still below a provider is counted from above: once for each scope, by the limits in memory and one reading of what APIs said.
func TestTroubleBelow(t *testing.T) {
	t.Parallel()
	a := newAsked(t, troubled)
	a.use("p")
	a.fill("p/off", 3)
	a.fill("p/paused/x", 1)
	a.fill("q/gone", 1) // limited while others waited, as below
	below := func(provider string) Trouble {
		t.Helper()
		limits, err := a.Limits(t.Context())
		must(t, err)
		return a.Trouble(provider, a.outline(provider), limits)
	}
	if got := below("p"); got != (Trouble{Suspended: 1}) || got.String() != "1 suspended" {
		t.Errorf("%+v", got)
	}
	if got := below("q"); got != (Trouble{}) || got.String() != "" {
		t.Errorf("an idle provider whose rules stand below it: %+v", got)
	}
	for _, scope := range []string{"p/paused", "p/small", "p/small/deep"} { // the last is paused with the one above
		a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "anna"}, scope))
	}
	a.follow()
	for _, refused := range []string{"p/api", "p/api/x"} {
		_, err := a.limits.Report(t.Context(), refused, upstream.Hint{Limited: true, Status: 429, Retry: time.Hour, RetryKnown: true})
		must(t, err)
	}
	if got := below("p"); got != (Trouble{Suspended: 1, Paused: 2, UpstreamPaused: 2}) || got.String() != "1 suspended, 2 paused, 2 paused by the API" {
		t.Errorf("%+v", got)
	}
	_, err := a.limits.Report(t.Context(), "q/a", upstream.Hint{Quotas: []upstream.Quota{{Unit: "requests", Limit: 2, Remaining: 1, Reset: time.Second, Window: time.Second}}})
	must(t, err)
	if got := below("q"); got != (Trouble{Cut: 1}) {
		t.Errorf("%+v", got)
	}
	a.edit(a.store.Remove(t.Context(), policystore.Edit{By: "anna"}, "p", "account"))
	if got := below("p"); got.Unmatched != 0 || got.Paused != 2 {
		t.Errorf("what waits is paused or suspended: %+v", got)
	}
	a.edit(a.store.Resume(t.Context(), policystore.Edit{By: "anna"}, "p/paused"))
	if got := below("p"); got.Unmatched != 1 || got.Paused != 1 {
		t.Errorf("no rule is left for p/paused/x: %+v", got)
	}
}
