package throttle

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/upstream"
)

// Which scope waits: where `reasons` says, at the level of the rule that has the vendor's name, and else the scope of the call; and the
// rule that is named is cut alone.
func TestWhichLimitWasHit(t *testing.T) {
	t.Parallel()
	limits, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  p:
    answers: {dialect: stripe, reasons: {odd-rate: "p/*", global-rate: top}}
    rules:
      - {name: account, algorithm: sliding-window, limit: 1000, per: 1m, vendor: account-rate}
      - {name: other, algorithm: sliding-window, limit: 1000, per: 1m}
    scopes:
      "*":
        rules: [{name: tenant, algorithm: sliding-window, limit: 1000, per: 1m}]
        scopes: {"*": {rules: [{name: endpoint, algorithm: sliding-window, limit: 1000, per: 1m}]}}
`))
	noError(t, err)
	for reason, want := range map[string]struct {
		scope, rule string
		cut         []string
	}{
		"global-rate":  {"p", "", []string{"p/account", "p/other"}},
		"Odd-Rate":     {"p/a", "", []string{"p/a/tenant"}},
		"account-rate": {"p", "account", []string{"p/account"}},
		"new-rate":     {"p/a/x", "", []string{"p/a/x/endpoint"}},
		"":             {"p/a/x", "", []string{"p/a/x/endpoint"}},
	} {
		t.Run("reason "+reason, func(t *testing.T) {
			t.Parallel()
			l, err := New(redistest.NewServer(t).Client(t), limits, Config{})
			noError(t, err)
			header := http.Header{"Retry-After": {"60"}}
			if reason != "" {
				header.Set("Stripe-Rate-Limited-Reason", reason)
			}
			got, err := l.Report(t.Context(), "p/a/x", l.ReadAnswer("p/a/x", 429, header, time.Now()))
			if err != nil || got.Scope != want.scope || got.Rule != want.rule || got.Until.IsZero() {
				t.Errorf("%+v, %v, want %s and %q", got, err, want.scope, want.rule)
			}
			state, err := l.UpstreamState(t.Context(), "p/a/x")
			noError(t, err)
			var cut []string
			for _, c := range state.Corrections {
				cut = append(cut, c.Bound.Scope.String()+"/"+c.Bound.Rule.Name)
			}
			if len(state.Pauses) != 1 || state.Pauses[0].Scope != want.scope || fmt.Sprint(cut) != fmt.Sprint(want.cut) {
				t.Errorf("pauses %+v, cut %v; want %s, %v", state.Pauses, cut, want.scope, want.cut)
			}
		})
	}
}

// "A rule can name the vendor's": the API's own limit of that name is adopted, whatever its window. A hint that was made by hand is
// located as one that was read.
func TestNamedQuotaIsAdopted(t *testing.T) {
	t.Parallel()
	limits, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  p:
    answers: {reasons: {burst: top}}
    rules:
      - {name: a, algorithm: sliding-window, limit: 100, per: 1m, vendor: default}
      - {name: b, algorithm: sliding-window, limit: 100, per: 1m}
    scopes: {"*": {rules: []}}
`))
	noError(t, err)
	l, err := New(redistest.NewServer(t).Client(t), limits, Config{})
	noError(t, err)
	quota := upstream.Quota{Name: "Default", Unit: "requests", Limit: 40, Remaining: 9, Reset: upstream.Unknown}
	_, err = l.Report(t.Context(), "p", upstream.Hint{Quotas: []upstream.Quota{quota}})
	noError(t, err)
	state, err := l.UpstreamState(t.Context(), "p")
	if err != nil || len(state.Corrections) != 1 || state.Corrections[0].Bound.Rule.Name != "a" || state.Corrections[0].Limit != 40 {
		t.Errorf("%+v, %v", state, err)
	}
	got, err := l.Report(t.Context(), "p/x", upstream.Hint{Limited: true, Status: 429, Names: []string{"burst"}, Pause: time.Hour})
	if left := time.Until(got.Until); err != nil || got.Scope != "p" || left < 59*time.Minute || left > 67*time.Minute {
		t.Errorf("%+v, %v: the first pause is an hour, and up to a tenth more", got, err)
	}
}

// "What a host that the policy does not list says of costs is left out: it could give units back."
func TestCostsOfOtherHosts(t *testing.T) {
	t.Parallel()
	limits, err := limitsyaml.Parse("limits.yaml", []byte(`
limits: {p: {answers: shopify, hosts: [shop.example.com], rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}}
`))
	noError(t, err)
	l, err := New(redistest.NewServer(t).Client(t), limits, Config{})
	noError(t, err)
	for host, want := range map[string]int{"shop.example.com": 1, "other.example.com": 0} {
		resp := &http.Response{
			StatusCode: 200, Header: http.Header{}, Request: &http.Request{URL: &url.URL{Scheme: "https", Host: host}},
			Body: io.NopCloser(strings.NewReader(`{"extensions": {"cost": {"requestedQueryCost": 9, "actualQueryCost": 0}}}`)),
		}
		if got := l.ReadResponse("p/a", resp, time.Now()).Costs; len(got) != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}
