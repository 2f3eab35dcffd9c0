package page

import (
	"bytes"
	"fmt"
	"maps"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// hiddenLimits have a scope whose content begins with zz, beside one that anybody here may see.
const hiddenLimits = `limits:
  payments:
    owner: zz-team
    rules: [{name: zz-account, algorithm: fixed-window, limit: 98765, per: 30d}]
    scopes:
      "*": {rules: [{name: zz-tenant, algorithm: sliding-window, limit: 98764, per: 1h}]}
      zz-child: {owner: zz-owner, rules: [{name: zz-own, algorithm: fixed-window, limit: 1, per: 30d}]}
  search: {owner: team-search, rules: [{name: plan, algorithm: sliding-window, limit: 1000, per: 1h}]}
`

// strangers may not see payments.
var strangers = []Actor{
	{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}},
	{Name: "olga", Role: RoleOwner, Groups: []string{"team-search"}, Scopes: []string{"search"}},
	{Name: "none", Role: RoleViewer, Scopes: []string{"*/nothing"}},
}

// newHidden is a site with limits, tasks and a history that strangers may not see.
func newHidden(t *testing.T) *site {
	t.Helper()
	s := newSiteUnder(t, hiddenLimits, nil)
	s.use("payments/zz-child")
	task := queue.Task{Type: "zz-mail", ID: "task0", Scope: "payments/zz-child", Queue: "zz-queue", Payload: []byte(`"zz-payload"`)}
	_, err := s.queue.Enqueue(t.Context(), task)
	must(t, err)
	task.ID = "task1"
	_, err = s.queue.Enqueue(t.Context(), task)
	must(t, err)
	must(t, asynq.NewInspectorFromRedisClient(s.rdb).ArchiveTask("zz-queue", "task1"))
	edit := policystore.Edit{By: "anna", Reason: "zz-reason"}
	_, err = s.store.Set(t.Context(), edit, "payments", "zz-account", map[string]string{"limit": "98763"})
	must(t, err)
	_, err = s.store.Reset(t.Context(), edit, s.limiter, "payments/zz-child", "")
	must(t, err)
	return s
}

// An actor without the right to a verb at a place sees nothing of it, on each route, with each verb, place and fault of a form.
func TestRightsComeFirst(t *testing.T) {
	t.Parallel()
	s := newHidden(t)
	all := slices.Concat(slices.Collect(maps.Keys(verbs)), slices.Collect(maps.Keys(taskVerbs)))
	places := []string{"", "payments", "payments/zz-child", "payments/new", "payments/*", "*", "*/*", "payments/zz-child/*", " payments ", "payments//"}
	faults := []url.Values{
		form("rule", "zz-account"), form("rule", "zz-tenant", "field:limit", "x", "more", "?", "for", "soon", "force", "yes", "version", "1"),
		form("rule", "zz-own", "assign:weight", "much", "limits", "limits: {payments: {}}", "version", "99", "expect", "1", "shadow", "yes"),
		form("id", "task0", "queue", "zz", "task", chosen("task0"), "to", "payments", "priority", "high", "batch", `{"type":"a","id":"b","scope":"payments/zz-child"}`),
		form("all", "yes", "to", "search", "version", "2", "from", "1"),
	}
	seen := map[string]bool{}
	ask := func(pattern string, r *http.Request, place string, verb control.Verb) {
		code, body, _ := s.do(r)
		change := strings.HasSuffix(pattern, "/change") || strings.HasSuffix(pattern, "/tasks")
		// A rollback and chosen tasks name no place: the service refuses them when it has read what they change.
		later := verb == control.VerbRollback || place == ""
		if change && code != http.StatusForbidden && code != http.StatusBadRequest && (!later || code == http.StatusSeeOther) {
			t.Errorf("%s: %s %s: %d", s.actor.Name, r.Method, r.URL, code)
		}
		seen[fmt.Sprint(pattern, " ", code)] = true
		for _, sent := range []string{place, url.QueryEscape(place), "zz-account", "zz-tenant", "zz-own"} {
			if sent != "" && !change {
				body = strings.ReplaceAll(body, sent, "")
			}
		}
		for _, secret := range []string{"zz-t", "zz-a", "zz-o", "zz-r", "zz-m", "zz-q", "zz-p", "9876", "98,76"} {
			if at := strings.Index(body, secret); at >= 0 {
				t.Errorf("%s: %s %s: %d has %s", s.actor.Name, r.Method, r.URL, code, body[max(0, at-80):min(len(body), at+80)])
			}
		}
	}
	h := pageOfSite(t, s)
	for _, s.actor = range strangers {
		for _, one := range h.routed() {
			method, path, is := strings.Cut(one.pattern, " ")
			if path = strings.TrimSuffix(path, "{$}"); !is {
				method, path = http.MethodGet, "/nothing"
			}
			for p, place := range places {
				for i, more := range faults {
					fields := maps.Clone(more)
					fields.Set("scope", place)
					fields.Set("at", "/scope?"+url.Values{"scope": {place}}.Encode())
					if !strings.HasSuffix(path, "/change") && path != "/tasks" {
						ask(one.pattern, requestOf(method, path, fields, false), place, "")
						continue
					}
					fields.Set("do", []string{"", "edit", "make"}[(p+i)%3]) // each at each place, and with each fault
					for _, verb := range all {
						fields.Set("verb", string(verb))
						ask(one.pattern, requestOf(method, path, fields, i%2 == 1), place, verb)
					}
				}
			}
		}
	}
	for _, want := range []string{"GET /scope 403", "GET /scope 400", "GET /live 403", "GET /limits.yaml 403", "GET /task 404", "GET /done 404", "GET /failures 200", "POST /change 403", "GET /workers 200"} {
		if !seen[want] {
			t.Errorf("no request was answered %s", want)
		}
	}
	if s.version() != 3 {
		t.Errorf("the limits are at version %d", s.version())
	}
}

// requestOf sends fields in the query, or as a form of either kind.
func requestOf(method, path string, fields url.Values, multi bool) *http.Request {
	switch {
	case method == http.MethodGet:
		return httptest.NewRequest(method, path+"?"+fields.Encode(), nil)
	case !multi:
		return formTo(path, fields)
	}
	var b bytes.Buffer
	parts := multipart.NewWriter(&b)
	for name, values := range fields {
		for _, value := range values {
			_ = parts.WriteField(name, value) // into memory
		}
	}
	_ = parts.Close()
	r := httptest.NewRequest(method, path, &b)
	r.Header.Set("Content-Type", parts.FormDataContentType())
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// A multipart form has the bounds and rights of any other form, half a form does nothing, and one that is too large is refused in words.
func TestMultipart(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	pause := form("verb", "pause", "scope", "payments", "do", "make", "expect", "1")
	cross := requestOf(http.MethodPost, "/change", pause, true)
	cross.Header.Set("Sec-Fetch-Site", "cross-site")
	large := maps.Clone(pause)
	large.Set("padding", strings.Repeat("x", mostForm))
	torn := requestOf(http.MethodPost, "/change?"+pause.Encode(), form("reason", "x"), true)
	torn.Body = http.MaxBytesReader(httptest.NewRecorder(), torn.Body, 20)
	query := formTo("/change?"+pause.Encode(), form("padding", strings.Repeat("x", mostForm)))
	const tooLarge = "the form is larger than 2,048 KB: log in if your session has ended, or send less\n"
	for name, one := range map[string]struct {
		r    *http.Request
		code int
		says string
	}{
		"another site": {cross, 403, ""}, "cut off": {torn, 413, tooLarge}, "too large beside a query": {query, 413, tooLarge},
		"too large":                   {formTo("/change", large), 413, tooLarge},
		"too large in parts":          {requestOf(http.MethodPost, "/change", large, true), 413, tooLarge},
		"a query that cannot be read": {httptest.NewRequest(http.MethodGet, "/scope?scope=search&%", nil), 400, ""},
	} {
		if body := s.says(one.code, one.r, one.says); one.code == 413 && body != one.says || s.version() != 1 {
			t.Errorf("%s: version %d, and %q", name, s.version(), body)
		}
	}
	s.says(http.StatusSeeOther, requestOf(http.MethodPost, "/change", pause, true))
	if s.version() != 2 {
		t.Errorf("version %d", s.version())
	}
}
