package page

import (
	"net/http"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// The page exports the limits, compares two versions and checks the history, as the command line does. Who may not see all scopes gets no
// export, and no differences in those that are hidden.
func TestLimitsScreen(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for scope, limit := range map[string]string{"payments": "7", "search": "2000"} {
		rule := map[string]string{"payments": "account", "search": "plan"}[scope]
		if _, err := s.store.Set(t.Context(), policystore.Edit{By: "anna"}, scope, rule, map[string]string{"limit": limit}); err != nil {
			t.Fatal(err)
		}
	}
	_, body := s.get("/limits")
	has(t, body, "As version 3 has them", "payments:", "limit: 7", `href="/limits.yaml"`, `href="/change?verb=import"`, `href="/change?verb=unset"`)
	code, text := s.get("/limits.yaml")
	p, err := limitsyaml.Parse("exported", []byte(text))
	if code != http.StatusOK || err != nil {
		t.Fatalf("%d, %v", code, err)
	}
	if now, err := s.store.Now(t.Context()); err != nil || len(policystore.Differences(p, now)) > 0 {
		t.Errorf("the export differs from the limits: %v", err)
	}
	_, body = s.get("/limits?from=1")
	has(t, body, "From version 1 to version 3", "limit: 7", "limit: 2000")
	if _, body = s.get("/limits?from=3&to=3"); !strings.Contains(body, "They are the same") {
		t.Errorf("a version compared with itself:\n%s", body)
	}
	for query, want := range map[string]string{"from=x": "is no version", "from=99": "99", "from=0": "is no version"} {
		if code, body := s.get("/limits?" + query); code != http.StatusUnprocessableEntity || !strings.Contains(body, want) {
			t.Errorf("%s: %d\n%s", query, code, body)
		}
	}
	_, body = s.get("/limits?noted=")
	has(t, body, "3 versions are sound", "from version 1 to 3", "Newest hash")
	chain, err := s.store.Verify(t.Context(), "")
	must(t, err)
	_, body = s.get("/limits?noted=" + chain.Hash)
	has(t, body, "Version 3 has the hash that was noted")
	_, body = s.get("/limits?noted=" + strings.Repeat("0", 64))
	has(t, body, "none of versions 1 to 3 has the hash that was noted")

	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	if code, _ := s.get("/limits.yaml"); code != http.StatusForbidden {
		t.Errorf("the export of a viewer of search: %d", code)
	}
	_, body = s.get("/limits?from=1")
	has(t, body, "limit: 2000", "1 difference in scopes that you may not see")
	for _, hidden := range []string{"limit: 7", "account", "team-pay", "Import", "Undo all"} {
		if strings.Contains(body, hidden) {
			t.Errorf("a viewer of search is shown %q:\n%s", hidden, body)
		}
	}

	s.who = Actor{Name: "root", Role: RoleAdmin}
	_, body = s.post("/change", form("verb", "import", "limits", "limits: {x: {rules: [{name: a, algorithm: sliding-window, limit: 1, per: 1s}], scopes: {y: {rules: [{name: b, algorithm: sliding-window, limit: 100, per: 1s}]}}}}"))
	has(t, body, "Odd, and no fault", "x/y b: ")
}
