package page

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// form are the fields of a form: form("verb", "pause", "scope", "payments").
func form(kv ...string) url.Values {
	fields := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		fields.Add(kv[i], kv[i+1])
	}
	return fields
}

// version is the number of the version that stands.
func (s *site) version() int64 {
	s.t.Helper()
	v, err := s.store.Current(s.t.Context())
	must(s.t, err)
	return v.Number
}

// make sends a form with "do it" against the version that stands.
func (s *site) make(fields url.Values) (int, string) {
	s.t.Helper()
	fields.Set("do", "make")
	fields.Set("expect", fmt.Sprint(s.version()))
	return s.post("/change", fields)
}

// actors has one of each role, as testLimits name the owners.
var actors = map[string]Actor{
	"viewer": {Name: "vic", Role: RoleViewer}, "another's owner": {Name: "olga", Groups: []string{"team-search"}, Role: RoleOwner},
	"owner": {Name: "pat", Groups: []string{"team-acme"}, Role: RoleOwner}, "owner above": {Name: "pay", Groups: []string{"team-pay"}, Role: RoleOwner},
	"admin": {Name: "root", Role: RoleAdmin},
}

// may is whether the table of rights lets an actor do something.
func (s *site) may(who Actor, verb control.Verb, scope string) bool {
	s.t.Helper()
	h := pageOfSite(s.t, s)
	if _, err := h.limits(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return h.service.May(who, verb, scope) == nil
}

// "One test per mutation and role": who may not, is refused by the service, and changes nothing; who may, changes it. Who may is what
// control.TestRoles has.
func TestMutationsByRole(t *testing.T) {
	t.Parallel()
	set := form("verb", "set", "scope", "payments/acme", "rule", "tenant", "field:limit", "7")
	tests := map[control.Verb]struct{ before, fields url.Values }{
		control.VerbPause:    {nil, form("scope", "payments/acme")},
		control.VerbDrain:    {nil, form("scope", "payments/acme")},
		control.VerbResume:   {form("verb", "pause", "scope", "payments/acme"), form("scope", "payments/acme")},
		control.VerbSet:      {nil, form("scope", "payments/acme", "rule", "tenant", "field:limit", "7")},
		control.VerbRemove:   {set, form("scope", "payments/acme", "rule", "tenant")},
		control.VerbUnset:    {set, form("scope", "payments/acme", "rule", "tenant")},
		control.VerbReset:    {nil, form("scope", "payments/acme")},
		control.VerbRollback: {set, form("version", "1")},
		control.VerbAssign:   {nil, form("scope", "payments/acme", "assign:owner", "team-new")},
		control.VerbImport:   {nil, form("limits", "limits:\n  payments: {rules: [{name: account, algorithm: fixed-window, limit: 3, per: 30d}]}\n")},
	}
	if got, want := slices.Sorted(maps.Keys(tests)), slices.Sorted(maps.Keys(verbs)); !slices.Equal(got, want) {
		t.Fatalf("verbs with a test: %v; with a form: %v", got, want)
	}
	for verb, one := range tests {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			for name, who := range actors {
				s := newSite(t, nil)
				if one.before != nil {
					if code, body := s.make(maps.Clone(one.before)); code != http.StatusSeeOther {
						t.Fatalf("%d\n%s", code, body)
					}
				}
				fields := maps.Clone(one.fields)
				fields.Set("verb", string(verb))
				scope := "payments/acme" // also what the rollback changes
				if verb == control.VerbImport {
					scope = ""
				}
				s.who = who
				may, was := s.may(who, verb, scope), s.version()
				code, body := s.make(fields)
				switch {
				case may && (code != http.StatusSeeOther || s.version() != was+1):
					t.Errorf("%s may, and got %d, version %d after %d\n%s", name, code, s.version(), was, body)
				case !may && (code != http.StatusForbidden || s.version() != was):
					t.Errorf("%s may not, and got %d, version %d after %d\n%s", name, code, s.version(), was, body)
				}
			}
		})
	}
}

// A change is previewed with its effect on those who wait, made, and undone.
func TestChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	fields := form("verb", "set", "scope", "payments", "rule", "account", "field:limit", "100", "reason", "they bought <more>", "for", "2h")
	code, body := s.get("/change?verb=set&scope=payments&rule=account")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	has(t, body, "as it is: 2", "as it is: fixed-window", "as it is: 30d")
	code, body = s.post("/change", fields)
	if code != http.StatusOK || s.version() != 1 {
		t.Fatalf("a preview: %d, version %d\n%s", code, s.version(), body)
	}
	has(t, body, "Nothing is done yet", "limit: 2,", "limit: 100,", "<dd>3</dd>", "with the change", "they bought &lt;more&gt;", `name="expect" value="1"`)
	if code, body = s.make(fields); code != http.StatusSeeOther || s.version() != 2 {
		t.Fatalf("%d\n%s", code, body)
	}
	v, err := s.store.Current(t.Context())
	if err != nil || v.By != "root" || v.Reason != "they bought <more>" || v.Rules[0].Until.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	code, body = s.get("/done?version=2&scope=payments")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	has(t, body, "Done: version 2", "limit: 100,", "Undo")
	if code, body = s.make(form("verb", "rollback", "version", "1")); code != http.StatusSeeOther {
		t.Fatalf("undo: %d\n%s", code, body)
	}
	if v, err = s.store.Current(t.Context()); err != nil || v.Number != 3 || len(v.Rules) != 0 {
		t.Errorf("after the undo: %+v, %v", v, err)
	}
	if _, body = s.get("/done?version=2"); strings.Contains(body, ">Undo<") {
		t.Error("what was changed again is offered to be undone")
	}
	if code, body = s.get("/change?verb=rollback&version=2"); code != http.StatusOK || !strings.Contains(body, "limit: 100,") {
		t.Errorf("the preview of a rollback: %d\n%s", code, body)
	}
	code, body = s.make(form("verb", "set", "scope", "payments/acme", "rule", "tenant", "field:limit", "5", "shadow", "yes"))
	if code != http.StatusSeeOther {
		t.Fatalf("%d\n%s", code, body)
	}
	if v, err = s.store.Current(t.Context()); err != nil || v.Rules[0].Name != "tenant-trial" || !strings.Contains(v.Rules[0].Rule, "shadow: true") || !strings.Contains(v.Rules[0].Rule, "per: 1h") {
		t.Errorf("a shadow first: %+v, %v", v.Rules, err)
	}
}

// "Every form field as the CLI refuses it, in the same words; conflicts when somebody was quicker, with both versions shown."
func TestChangeRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	const set = "payments/acme"
	for _, one := range []struct {
		fields url.Values
		code   int
		want   string
	}{
		{form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "x"), 422, `limit is the text &#34;x&#34;; write a whole number in plain digits, such as 100`},
		{form("verb", "set", "scope", set, "rule", "tenant", "field:per", "zz"), 422, `per is the text &#34;zz&#34;; write a duration, such as 500ms, 1m, 24h or 30d`},
		{form("verb", "set", "scope", set, "rule", "tenant", "more", "foo=1"), 422, "foo is not a field of a rule"},
		{form("verb", "set", "scope", set, "rule", "tenant", "more", "foo"), 422, "is not KEY=VALUE"},
		{form("verb", "set", "scope", set, "rule", "tenant"), 422, "give at least one field"},
		{form("verb", "set", "scope", set, "field:limit", "1"), 422, "name the rule"},
		{form("verb", "pause", "scope", "paymens"), 422, "the limits do not name paymens; did you mean payments?"},
		{form("verb", "pause", "scope", set, "for", "soon"), 422, "is not a duration"},
		{form("verb", "pause", "scope", "a//b"), 422, "a//b"},
		{form("verb", "resume", "scope", set), 422, "payments/acme is not paused"},
		{form("verb", "remove", "scope", set, "rule", "none"), 422, "none"},
		{form("verb", "import", "limits", "limits: {p: {rules: [{name: a}]}}"), 422, "algorithm"},
		{form("verb", "assign", "scope", set, "assign:weight", "much"), 422, "weight &#34;much&#34; is not a whole number above 0"},
		{form("verb", "assign", "scope", set, "assign:weight", "9999"), 422, "weight is 9999"},
		{form("verb", "assign", "scope", set, "assign:owner", "team-acme"), 422, "change at least one field"},
		{form("verb", "rollback", "version", "99"), 422, "99"},
		{form("verb", "rollback"), 400, "no version"},
		{form("verb", "destroy"), 400, "cannot be changed by"},
		{form("verb", "pause", "scope", set, "reason", strings.Repeat("x", 501)), 422, "500"},
	} {
		if code, body := s.post("/change", one.fields); code != one.code || !strings.Contains(body, one.want) {
			t.Errorf("%v: %d, want %d and %s\n%s", one.fields, code, one.code, one.want, regexp.MustCompile(`(?s)<main.*</main>`).FindString(body))
		}
	}
	_, body := s.post("/change", form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "x", "reason", "typed"))
	has(t, body, `value="x"`, `aria-invalid="true"`, `aria-describedby="f-limit-fault"`, `value="typed"`)
	if _, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna", Reason: "quick"}, "search"); err != nil {
		t.Fatal(err)
	}
	code, body := s.post("/change", form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "5", "do", "make", "expect", "1"))
	if code != http.StatusConflict || s.version() != 2 {
		t.Fatalf("%d, version %d", code, s.version())
	}
	has(t, body, "Somebody was quicker", "version 1", "version 2", "pause search", "anna", "“quick”", `value="5"`)
	if code, body := s.post("/change", form("verb", "pause", "scope", "nowhere")); code != 422 || !strings.Contains(body, `name="force"`) {
		t.Errorf("%d\n%s", code, body)
	}
	if code, body := s.make(form("verb", "pause", "scope", "nowhere", "force", "yes")); code != http.StatusSeeOther {
		t.Errorf("%d\n%s", code, body)
	}
}

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
