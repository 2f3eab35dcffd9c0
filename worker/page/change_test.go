package page

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
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

// makes sends a form that must be done, against the version that stands.
func (s *site) makes(fields url.Values) {
	s.t.Helper()
	if code, body := s.make(fields); code != http.StatusSeeOther {
		s.t.Fatalf("%v: %d\n%s", fields, code, body)
	}
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

// service is what the page asks, with the limits that stand.
func (s *site) service() *control.Service {
	s.t.Helper()
	h := pageOfSite(s.t, s)
	_, err := h.limits(s.t.Context())
	must(s.t, err)
	return h.service
}

// Each mutation is made by the roles that may make it, as control.TestRoles has them. Others change nothing, and a viewer gets no form.
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
		control.VerbOpen:     {nil, form("scope", "payments/acme", "for", "1h")},
		control.VerbClose:    {form("verb", "open", "scope", "payments/acme"), form("scope", "payments/acme")},
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
			var s *site
			was := int64(0)
			for name, actor := range actors {
				if s == nil || s.version() != was { // the last has changed it
					s = newSite(t, nil)
					if one.before != nil {
						s.makes(maps.Clone(one.before))
					}
				}
				fields := maps.Clone(one.fields)
				fields.Set("verb", string(verb))
				scope := "payments/acme" // also what the rollback changes
				if verb == control.VerbImport {
					scope = ""
				}
				s.actor = actor
				may := s.service().May(actor, verb, scope) == nil
				was = s.version()
				code, body := s.make(fields)
				switch {
				case may && (code != http.StatusSeeOther || s.version() != was+1):
					t.Errorf("%s may, and got %d, version %d after %d\n%s", name, code, s.version(), was, body)
				case !may && (code != http.StatusForbidden || s.version() != was):
					t.Errorf("%s may not, and got %d, version %d after %d\n%s", name, code, s.version(), was, body)
				case name == "viewer":
					for _, do := range []string{"", "edit"} {
						fields.Set("do", do)
						for _, r := range []*http.Request{
							requestOf(http.MethodGet, "/change", fields, false), formTo("/change", fields), requestOf(http.MethodPost, "/change", fields, true),
						} {
							lacks(t, s.says(http.StatusForbidden, r), "<textarea")
						}
					}
				}
			}
		})
	}
}

// docs/breaker.md, "By hand": the screen of a scope offers to open its breaker, says how an open one stands, and closes it. Its tasks say
// that they wait for it, and a viewer gets no button.
func TestBreakerOnThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.enqueue("payments/acme", "one", 1)
	s.enqueue("payments/acme/refunds", "below", 1)
	const open, closes = "Open the breaker…", "Close the breaker…"
	lacks(t, s.sees(http.StatusOK, "/scope?scope=payments/acme", open), closes, "is open since")
	lacks(t, s.sees(http.StatusOK, "/scope?scope=search"), open)
	s.sends(http.StatusOK, "/change", form("verb", "open", "scope", "payments/acme", "for", "1h"), "Open the breaker of payments/acme", "For 1h")
	s.sends(http.StatusUnprocessableEntity, "/change", form("verb", "open", "scope", "payments"), "payments has no breaker of its own")
	s.makes(form("verb", "open", "scope", "payments/acme", "for", "1h"))
	sentence := "The breaker of <strong>payments/acme</strong> is open since "
	lacks(t, s.sees(http.StatusOK, "/scope?scope=payments/acme", sentence, ": by hand; next probe <time", closes, "waits for a call of payments/acme that succeeds: its breaker is open"), open)
	s.sees(http.StatusOK, "/scope?scope=payments/acme/refunds", sentence)
	s.sees(http.StatusOK, "/scope?scope=payments", "below it 1 with an open breaker")
	s.sees(http.StatusOK, "/task?id=one0", "Waits for a call of payments/acme that succeeds: its breaker is open")
	s.actor = actors["viewer"]
	lacks(t, s.sees(http.StatusOK, "/scope?scope=payments/acme", sentence), closes, "Close it…")
}

// A change is previewed with its effect on those who wait, made, and undone.
func TestChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	fields := form("verb", "set", "scope", "payments", "rule", "account", "field:limit", "100", "reason", "they bought <more>", "for", "2h")
	s.sees(http.StatusOK, "/change?verb=set&scope=payments&rule=account", "as it is: 2", "as it is: fixed-window", "as it is: 30d")
	s.sends(http.StatusOK, "/change", fields,
		"Nothing is done yet", "limit: 2,", "limit: 100,", "<dd>3</dd>", "with the change",
		"they bought &lt;more&gt;", `name="expect" value="1"`)
	if s.version() != 1 {
		t.Fatalf("version %d after a preview", s.version())
	}
	s.makes(fields)
	v, err := s.store.Current(t.Context())
	if err != nil || v.Number != 2 || v.By != "root" || v.Reason != "they bought <more>" || v.Overrides[0].Until.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	s.sees(http.StatusOK, "/done?version=2&scope=payments", "Done: version 2", "limit: 100,", "Undo")
	s.makes(form("verb", "rollback", "version", "1"))
	if v, err = s.store.Current(t.Context()); err != nil || v.Number != 3 || len(v.Overrides) != 0 {
		t.Errorf("after the undo: %+v, %v", v, err)
	}
	lacks(t, s.sees(http.StatusOK, "/done?version=2"), ">Undo<")
	s.sees(http.StatusOK, "/change?verb=rollback&version=2", "limit: 100,")
	s.makes(form("verb", "set", "scope", "payments/acme", "rule", "tenant", "field:limit", "5", "shadow", "yes"))
	if v, err = s.store.Current(t.Context()); err != nil || v.Overrides[0].Name != "tenant-trial" || !strings.Contains(v.Overrides[0].Text, "shadow: true") || !strings.Contains(v.Overrides[0].Text, "per: 1h") {
		t.Errorf("a shadow first: %+v, %v", v.Overrides, err)
	}
}

// The page refuses a form in the words of the command line. If another change came first, it shows both versions.
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
		{form("verb", "assign", "scope", set, "assign:owner", "team-acme"), 422, "change at least one field"},
		{form("verb", "rollback", "version", "99"), 422, "99"},
		{form("verb", "rollback"), 400, "no version"},
		{form("verb", "destroy"), 400, "cannot be changed by"},
		{form("verb", "pause", "scope", set, "reason", strings.Repeat("x", 501)), 422, "500"},
	} {
		s.sends(one.code, "/change", one.fields, one.want)
	}
	s.sends(422, "/change", form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "x", "reason", "typed"),
		`value="x"`, `aria-invalid="true"`, `aria-describedby="f-limit-fault"`, `value="typed"`)
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna", Reason: "quick"}, "payments")
	must(t, err)
	s.sends(http.StatusConflict, "/change", form("verb", "set", "scope", set, "rule", "tenant", "field:limit", "5", "do", "make", "expect", "1"),
		"Somebody was quicker", "version 1", "version 2", "pause payments", "anna", "“quick”", `value="5"`)
	if s.version() != 2 {
		t.Fatalf("version %d", s.version())
	}
	s.sends(422, "/change", form("verb", "pause", "scope", "nowhere"), `name="force"`)
	s.makes(form("verb", "pause", "scope", "nowhere", "force", "yes"))
}

// The page shows and exports the limits to those who see all scopes.
func TestLimitsScreen(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.makes(form("verb", "set", "scope", "payments", "rule", "account", "field:limit", "7"))
	s.makes(form("verb", "set", "scope", "search", "rule", "plan", "field:limit", "2000"))
	s.sees(http.StatusOK, "/limits", "As version 3 has them", "payments:", "limit: 7", `href="/limits.yaml"`,
		`href="/change?verb=import"`, `href="/change?verb=unset"`)
	p, err := limitsyaml.Parse("exported", []byte(s.sees(http.StatusOK, "/limits.yaml")))
	must(t, err)
	if now, err := s.store.Now(t.Context()); err != nil || len(policystore.Differences(p, now)) > 0 {
		t.Errorf("the export differs from the limits: %v", err)
	}
	s.actor = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	s.sees(http.StatusForbidden, "/limits.yaml")
	lacks(t, s.sees(http.StatusOK, "/limits", "As version 3 has them"), "limit: 7", "account", "team-pay", "Import", "Undo all")

	s.actor = Actor{Name: "root", Role: RoleAdmin}
	const odd = "limits: {x: {rules: [{name: a, algorithm: sliding-window, limit: 1, per: 1s}], " +
		"scopes: {y: {rules: [{name: b, algorithm: sliding-window, limit: 100, per: 1s}]}}}}"
	s.sends(http.StatusOK, "/change", form("verb", "import", "limits", odd), "Odd, and no fault", "x/y b: ")
}

// chosen is how the form names a task.
func chosen(id string) string { return url.Values{"queue": {"default"}, "id": {id}}.Encode() }

// waiting is how many tasks wait in a scope.
func (s *site) waiting(scope string) int64 {
	s.t.Helper()
	turns, err := s.service().Turns(s.t.Context(), scope, 0, 10)
	must(s.t, err)
	return turns.All
}

// Tasks are counted before they are changed: those that were chosen, or all of a scope.
func TestActOnTasks(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 5)
	wait := func(acme, globex int64) {
		t.Helper()
		if a, g := s.waiting("payments/acme"), s.waiting("payments/globex"); a != acme || g != globex {
			t.Fatalf("%d and %d wait, want %d and %d", a, g, acme, globex)
		}
	}
	page := s.sees(http.StatusOK, "/waiters?scope=payments/acme", `name="task"`, `name="verb" value="cancel"`)
	if strings.Index(page, `value="cancel"`) > strings.Index(page, "inv0") {
		t.Error("what is done with chosen tasks stands below the rows of the page")
	}

	one := form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv1"))
	s.sends(http.StatusOK, "/tasks", one, "<dd>1</dd>", "This cannot be undone", `value="make"`)
	wait(5, 0)
	one.Set("do", "make")
	s.sends(http.StatusOK, "/tasks", one, "1 task was changed")
	wait(4, 0)
	s.sees(http.StatusOK, "/history", "Changes of waiting tasks", "cancel of payments/acme", "inv1")

	all := form("verb", "move", "scope", "payments/acme", "all", "yes")
	lacks(t, s.sends(http.StatusOK, "/tasks", all, `name="to"`), `value="make"`)
	all.Set("to", "payments/globex")
	s.sends(http.StatusOK, "/tasks", all, "<dd>4</dd>", "payments/globex")
	all.Set("do", "make")
	s.sends(http.StatusOK, "/tasks", all)
	wait(0, 4)

	s.sends(http.StatusOK, "/tasks", form("verb", "run", "scope", "payments/globex", "task", chosen("inv4"), "do", "make"))
	tasks, err := s.service().Turns(t.Context(), "payments/globex", 0, 1)
	if err != nil || len(tasks.List) == 0 || tasks.List[0].ID != "inv4" {
		t.Errorf("who starts next is %+v, %v", tasks, err)
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
		{form("verb", "cancel", "scope", "payments", "all", "yes", "reason", "two\nlines", "do", "make"), 422, "reason"},
	} {
		s.sends(bad.code, "/tasks", bad.fields, bad.want)
	}
	wait(0, 4)
}

// Clear counts what waits in a scope and below it, and cancels it in steps. What is enqueued after the count stays.
func TestClear(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	s.enqueue("payments/globex", "g", 2)
	s.sees(http.StatusOK, "/scope?scope=payments",
		`<form method="post" action="/tasks"><input type="hidden" name="scope" value="payments"><button name="verb" value="clear">`)
	body := s.sends(http.StatusOK, "/tasks", form("verb", "clear", "scope", "payments"),
		"<dd>5</dd>", "Clear payments", "This cannot be undone", `value="make"`)
	if s.waiting("payments/acme") != 3 {
		t.Fatal("counting has changed something")
	}
	fields := form("verb", "clear", "scope", "payments", "reason", "wrong", "do", "make", "before", hidden(t, body, "before"))
	s.enqueue("payments/acme", "later", 1)

	h := pageOfSite(t, s)
	h.most, s.handler = 2, h.mux
	for step, wait := range []string{"4 tasks still wait in payments", "2 tasks still wait in payments", ""} {
		body := s.sends(http.StatusOK, "/tasks", fields)
		if wait == "" {
			has(t, body, "1 task was changed")
			lacks(t, body, "Go on")
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
	s.sees(http.StatusOK, "/history", "clear of payments", "“wrong”")
	s.sends(http.StatusUnprocessableEntity, "/tasks", form("verb", "clear", "scope", "payments", "before", "now"))
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

// If the page's Redis user may not read the changes of waiting tasks, the history shows those of the limits, and says what is missing.
func TestHistoryWithoutActions(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 1)
	s.sends(http.StatusOK, "/tasks", form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv0"), "do", "make"))
	must(t, s.rdb.Do(t.Context(), "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-lrange").Err())
	rdb := redis.NewClient(&redis.Options{Addr: s.server.Addr(), Username: "narrow", Password: "secret"})
	defer func() { _ = rdb.Close() }()
	var err error
	s.handler, err = New(Config{Redis: rdb, Identify: func(*http.Request) (Actor, bool) { return s.actor, true }})
	must(t, err)
	lacks(t, s.sees(http.StatusOK, "/history", "in force", "Who changed waiting tasks is not shown", "hw:limits:actions"), "inv0")
}

var must = redistest.Must

// A viewer restricted to scopes sees nothing of others in the history, its export and the screen of a version.
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
	s.sees(http.StatusOK, "/history", "the bank asked", "for a launch", "via cli", "reset ledger")

	s.actor = Actor{Name: "vera", Role: RoleViewer, Scopes: []string{"payments"}}
	for path, seen := range map[string]bool{
		"/history": true, "/history.ndjson": true, "/done?version=3": true, "/done?version=2": false, "/history?q=bank": false, "/history?q=launch": false,
	} {
		_, body := s.get(path)
		lacks(t, body, "ledger", "bank asked", "a launch", "new.yaml")
		if strings.Contains(body, "account") != seen {
			t.Errorf("%s: the part of payments must be there: %t\n%s", path, seen, body)
		}
	}
	s.sees(http.StatusOK, "/history", "changed limits", "in scopes that you may not see")
	s.sees(http.StatusOK, "/history.ndjson", `"via":"cli","change":"changed limits","changes":[{"scope":"payments"`)
}
