package page

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

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
	_, err := h.limits(s.t.Context())
	must(s.t, err)
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
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna", Reason: "quick"}, "payments")
	must(t, err)
	code, body := s.post("/change", form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "5", "do", "make", "expect", "1"))
	if code != http.StatusConflict || s.version() != 2 {
		t.Fatalf("%d, version %d", code, s.version())
	}
	has(t, body, "Somebody was quicker", "version 1", "version 2", "pause payments", "anna", "“quick”", `value="5"`)
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
		_, err := s.store.Set(t.Context(), policystore.Edit{By: "anna"}, scope, rule, map[string]string{"limit": limit})
		must(t, err)
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

// chosen is how the form names a task.
func chosen(id string) string { return url.Values{"queue": {"default"}, "id": {id}}.Encode() }

// waiting is how many tasks wait in a scope.
func (s *site) waiting(scope string) int64 {
	s.t.Helper()
	h := pageOfSite(s.t, s)
	_, err := h.limits(s.t.Context())
	must(s.t, err)
	turns, err := h.service.Turns(s.t.Context(), scope, 0, 10)
	must(s.t, err)
	return turns.All
}

// Tasks are counted before anything is done to them, and then it is done to those that were chosen, or to all of a scope.
func TestActOnTasks(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 5)
	_, body := s.get("/waiters?scope=payments/acme")
	has(t, body, `name="task"`, `name="verb" value="cancel"`)

	one := form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv1"))
	code, body := s.post("/tasks", one)
	if code != http.StatusOK || s.waiting("payments/acme") != 5 {
		t.Fatalf("counted: %d, %d wait\n%s", code, s.waiting("payments/acme"), body)
	}
	has(t, body, "<dd>1</dd>", "This cannot be undone", `value="make"`)
	one.Set("do", "make")
	if code, body = s.post("/tasks", one); code != http.StatusOK || s.waiting("payments/acme") != 4 {
		t.Fatalf("cancelled: %d, %d wait\n%s", code, s.waiting("payments/acme"), body)
	}
	has(t, body, "1 task was changed")
	_, body = s.get("/history")
	has(t, body, "Changes of waiting tasks", "cancel of payments/acme", "inv1")

	all := form("verb", "move", "scope", "payments/acme", "all", "yes")
	if code, body = s.post("/tasks", all); code != http.StatusOK || !strings.Contains(body, `name="to"`) || strings.Contains(body, `value="make"`) {
		t.Fatalf("it must ask where to: %d\n%s", code, body)
	}
	all.Set("to", "payments/globex")
	if code, body = s.post("/tasks", all); code != http.StatusOK {
		t.Fatalf("%d\n%s", code, body)
	}
	has(t, body, "<dd>4</dd>", "payments/globex")
	all.Set("do", "make")
	if code, body = s.post("/tasks", all); code != http.StatusOK || s.waiting("payments/acme") != 0 || s.waiting("payments/globex") != 4 {
		t.Errorf("moved: %d, %d and %d wait\n%s", code, s.waiting("payments/acme"), s.waiting("payments/globex"), body)
	}

	first := form("verb", "run", "scope", "payments/globex", "task", chosen("inv4"), "do", "make")
	if code, body = s.post("/tasks", first); code != http.StatusOK {
		t.Fatalf("%d\n%s", code, body)
	}
	tasks, err := pageOfSite(t, s).service.Turns(t.Context(), "payments/globex", 0, 1)
	if err == nil && len(tasks.List) > 0 && tasks.List[0].ID != "inv4" {
		t.Errorf("who starts next is %+v", tasks.List[0])
	}
	for _, bad := range []struct {
		fields url.Values
		code   int
		want   string
	}{
		{form("verb", "cancel", "scope", "payments"), 422, "no task is chosen"},
		{form("verb", "priority", "scope", "payments", "all", "yes", "priority", "high"), 422, "is not a whole number"},
		{form("verb", "priority", "scope", "payments", "all", "yes", "priority", "99999999"), 422, "priority 99999999 is not from"},
		{form("verb", "move", "scope", "payments", "all", "yes", "to", "nowhere"), 422, "nowhere"},
		{form("verb", "cancel", "scope", "payments", "task", chosen("none")), 404, "no queue has a task none"},
		{form("verb", "burn", "scope", "payments", "all", "yes"), 400, "cannot be changed by"},
	} {
		if code, body := s.post("/tasks", bad.fields); code != bad.code || !strings.Contains(body, bad.want) {
			t.Errorf("%v: %d, want %d and %s\n%s", bad.fields, code, bad.code, bad.want, body)
		}
	}
}

// A scope is cleared from its own screen: what waits there and below it is counted, and cancelled in steps. What is enqueued after the
// count stays.
func TestClear(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	s.enqueue("payments/globex", "g", 2)
	_, body := s.get("/scope?scope=payments")
	has(t, body, `<form method="post" action="/tasks"><input type="hidden" name="scope" value="payments"><button name="verb" value="clear">`)
	code, body := s.post("/tasks", form("verb", "clear", "scope", "payments"))
	if code != http.StatusOK || s.waiting("payments/acme") != 3 {
		t.Fatalf("%d\n%s", code, body)
	}
	has(t, body, "<dd>5</dd>", "Clear payments", "This cannot be undone", `value="make"`)
	fields := form("verb", "clear", "scope", "payments", "reason", "wrong", "do", "make", "before", hidden(t, body, "before"))
	s.enqueue("payments/acme", "later", 1)

	h := pageOfSite(t, s)
	h.most = 2
	for step, wait := range []string{"4 tasks still wait in payments", "2 tasks still wait in payments", ""} {
		w := httptest.NewRecorder()
		r := formTo("http://localhost/tasks", fields)
		r.RemoteAddr = "127.0.0.1:1"
		h.mux.ServeHTTP(w, r)
		body := w.Body.String()
		if w.Code != http.StatusOK {
			t.Fatalf("step %d: %d\n%s", step, w.Code, body)
		}
		if wait == "" {
			if strings.Contains(body, "Go on") || !strings.Contains(body, "1 task was changed") {
				t.Errorf("the last step:\n%s", body)
			}
			continue
		}
		has(t, body, "2 tasks were changed", wait, "Go on")
		for name := range fields {
			if got := hidden(t, body, name); name != "do" && got != fields.Get(name) {
				t.Errorf("step %d goes on with %s %q, want %q", step, name, got, fields.Get(name))
			}
		}
	}
	if a, g := s.waiting("payments/acme"), s.waiting("payments/globex"); a != 1 || g != 0 {
		t.Errorf("%d and %d wait; one was enqueued after the count", a, g)
	}
	_, body = s.get("/history")
	has(t, body, "clear of payments", "“wrong”")
	if code, body = s.post("/tasks", form("verb", "clear", "scope", "payments", "before", "now")); code != http.StatusUnprocessableEntity {
		t.Errorf("%d\n%s", code, body)
	}
}

// hidden is the value of a hidden field.
func hidden(t *testing.T, body, name string) string {
	t.Helper()
	_, rest, _ := strings.Cut(body, `<input type="hidden" name="`+name+`" value="`)
	value, _, is := strings.Cut(rest, `"`)
	if !is && name != "do" {
		t.Fatalf("no hidden field %s in\n%s", name, body)
	}
	return html.UnescapeString(value)
}

// Where the page's Redis user may not read who changed waiting tasks, the history of the limits is shown, and one line says what is not.
func TestHistoryWithoutActions(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 1)
	if code, body := s.post("/tasks", form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv0"), "do", "make")); code != http.StatusOK {
		t.Fatalf("%d\n%s", code, body)
	}
	must(t, s.rdb.Do(t.Context(), "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-lrange").Err())
	rdb := redis.NewClient(&redis.Options{Addr: s.server.Addr(), Username: "narrow", Password: "secret"})
	defer func() { _ = rdb.Close() }()
	var err error
	s.handler, err = New(Config{Redis: rdb, Identify: func(*http.Request) (Actor, bool) { return s.who, true }})
	must(t, err)
	code, body := s.get("/history")
	if code != http.StatusOK || strings.Contains(body, "inv0") {
		t.Errorf("%d\n%s", code, body)
	}
	has(t, body, "in force", "Who changed waiting tasks is not shown", "hw:limits:actions")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A viewer restricted to scopes reads nothing of others in the history, its export and the screen of a version, and sees how each
// version came about.
func TestHistoryOfOthersIsHidden(t *testing.T) {
	t.Parallel()
	limits := strings.ReplaceAll(testLimits, "  search:", "  ledger:")
	s := newSiteUnder(t, limits, nil)
	s.use("ledger")
	edit := policystore.Edit{By: "anna", Via: "cli", Reason: "the bank asked"}
	_, err := s.store.Reset(t.Context(), edit, s.limiter, "ledger", "plan")
	must(t, err)
	edit.Reason = "for a launch"
	more, err := limitsyaml.Parse("new.yaml", []byte(strings.NewReplacer("limit: 1000", "limit: 2000", "limit: 2,", "limit: 3,").Replace(limits)))
	must(t, err)
	_, err = s.store.Import(t.Context(), edit, more, "new.yaml", false)
	must(t, err)
	_, all := s.get("/history")
	has(t, all, "the bank asked", "for a launch", "via cli", "reset ledger")

	s.who = Actor{Name: "vera", Role: RoleViewer, Scopes: []string{"payments"}}
	for path, seen := range map[string]bool{
		"/history": true, "/history.ndjson": true, "/done?version=3": true, "/done?version=2": false, "/history?q=bank": false, "/history?q=launch": false,
	} {
		_, body := s.get(path)
		for _, hidden := range []string{"ledger", "bank asked", "a launch", "new.yaml"} {
			if strings.Contains(body, hidden) {
				t.Errorf("%s has %q:\n%s", path, hidden, body)
			}
		}
		if strings.Contains(body, "account") != seen {
			t.Errorf("%s: the part of payments must be there: %t\n%s", path, seen, body)
		}
	}
	if _, body := s.get("/history.ndjson"); !strings.Contains(body, `"via":"cli","change":"changed limits","changes":[{"scope":"payments"`) {
		t.Errorf("export:\n%s", body)
	}
}
