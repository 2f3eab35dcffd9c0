package throttle

import (
	"errors"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

const appsLimits = `
limits:
  payments:
    owner: payments-team
    apps: [billing, refunds, "a b"]
    rules:
      - {name: account, algorithm: concurrency, limit: 2}
    scopes:
      "*":
        apps: [billing]
      acme:
        owner: anna@example.com
        apps: [billing, refunds]
  search: {rules: [{name: plan, algorithm: concurrency, limit: 1}]}
`

// limits.yaml: "apps: the applications that may spend from here": others are refused before
// anything is spent, and plan, wake and look like everybody.
func TestApps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	pol := parsedPolicy(t, appsLimits)
	prefix := redistest.Prefix(t)
	for app, may := range map[string]bool{"billing": true, "mail": false, "": false} {
		l, err := New(rdb, pol, Config{Prefix: prefix, App: app})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Allow(t.Context(), "payments/globex")
		if may != (err == nil && d.Allowed) || !may && !errors.As(err, new(*policy.AppError)) {
			t.Errorf("%q: %+v, %v", app, d, err)
		}
		if placed, err := l.Waitlist().Join(t.Context(), []Waiter{{Scope: "payments/globex", ID: "x"}}, 0, 0); err != nil || placed[0].Err != nil {
			t.Errorf("%q cannot plan: %+v, %v", app, placed, err)
		}
	}
}
