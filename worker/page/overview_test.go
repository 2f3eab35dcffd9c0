package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
)

const manyProviders = `limits:
  idle: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}]}}}
  busy: {rules: [{name: plan, algorithm: fixed-window, limit: 1, per: 30d}]}
  stopped: {scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 0, per: 1s}]}}}
  tenants: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}], scopes: {a: {}, b: {}, c: {rules: [{name: own, algorithm: sliding-window, limit: 50, per: 10s}]}}}
  quiet: {rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}]}
`

// Those in trouble come first: also those whose scopes are, counted by what they are in. An idle provider whose rules stand below it is in none.
func TestThoseInTroubleFirst(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, manyProviders, nil)
	s.use("busy")
	s.enqueue("busy", "b", 1)
	s.enqueue("stopped/x", "x", 3)
	s.enqueue("stopped/y", "y", 1)
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "tenants/a")
	must(t, err)
	for scope, hint := range map[string]upstream.Hint{
		"tenants/b": {Limited: true, Status: 429, Retry: time.Hour, RetryKnown: true},
		"tenants/c": {Quotas: []upstream.Quota{{Unit: "requests", Limit: 5, Remaining: 3, Reset: time.Second, Window: 10 * time.Second}}},
	} {
		_, err = s.limiter.Report(t.Context(), scope, hint)
		must(t, err)
	}
	_, body := s.get("/")
	var order []string
	for _, row := range regexp.MustCompile(`data-key="([a-z]+)"`).FindAllStringSubmatch(body, -1) {
		order = append(order, row[1])
	}
	if want := "[stopped tenants busy quiet idle]"; fmt.Sprint(order) != want {
		t.Errorf("the order is %v, want %s\n%s", order, want, body[strings.Index(body, "<main"):])
	}
	has(t, body, `<span class="chip suspended">Suspended below</span>`, "below it 2 suspended", `<span class="chip paused">Paused below</span>`,
		"below it 1 paused, 1 paused by the API, 1 cut by the API", "not under tenant of stopped/x, limit 0")
	_, body = s.get("/?state=paused")
	has(t, body, ">tenants</a>")
	_, body = s.get("/scope?scope=tenants")
	has(t, body, "below it 1 paused, 1 paused by the API, 1 cut by the API", `<span class="chip api">API pause</span>`, `<span class="chip cut">Cut</span>`)
	_, body = s.get("/scope?scope=stopped")
	has(t, body, "Suspended below", "below it 2 suspended")
}

// Of more scopes than are read, the screen says that its order and its filter are of a part, and leads to the one that is named.
func TestMoreScopesThanWereRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := pageOfSite(t, s)
	lower := control.Outline{More: true}
	for i := range 13 {
		lower.Branches = append(lower.Branches, control.Branch{Scope: fmt.Sprint("payments/t", i), Waiting: 1, Own: 1})
	}
	show := func(query string, more bool) string {
		t.Helper()
		lower.More = more
		r := httptest.NewRequest(http.MethodGet, "/scope?scope=payments&"+query, nil)
		data, title, err := h.scopeView(r, s.who, &scopeState{level: control.Level{Scope: "payments", Binding: -1}, lower: lower})
		must(t, err)
		w := httptest.NewRecorder()
		h.render(w, r, http.StatusOK, "scope", view{Title: title, Data: data})
		return w.Body.String()
	}
	has(t, show("", true), "of those that were read the most waiting first", "There are more scopes than were read", "Filter 13 scopes of more")
	has(t, show("q=zz", true), "None of those that were read matches", `href="/scope?scope=payments%2Fzz"`)
	if body := show("q=zz", false); strings.Contains(body, "were read") || !strings.Contains(body, "None matches.") {
		t.Errorf("where all were read:\n%s", body)
	}
}
