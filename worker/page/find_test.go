package page

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
)

// Enter in the search finds a scope or a task, whichever has the name; if none has, the answer is 404 and offers what is near. So it is with a
// scope of which there is nothing, on each of its screens.
func TestFind(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/globex", "inv", 2)
	s.enqueue("payments/globex/eu", "acme-", 1)
	to := func(q string) string {
		t.Helper()
		code, body, header := s.do(httptest.NewRequest(http.MethodGet, "/search?q="+url.QueryEscape(q), nil))
		if code != http.StatusSeeOther {
			return body
		}
		return header.Get("Location")
	}
	for q, want := range map[string]string{
		"": "/", "payments/acme": "/scope?scope=payments%2Facme", "/payments/globex/": "/scope?scope=payments%2Fglobex", "inv1": "/task?id=inv1", "search": "/scope?scope=search",
	} {
		if got := to(q); got != want {
			t.Errorf("%q leads to %s", q, got)
		}
	}
	const toGlobex = `<a href="/scope?scope=payments%2Fglobex">payments/globex</a>`
	for path, wants := range map[string][]string{
		"/search?q=globex": {toGlobex}, "/search?q=payments/globx": {toGlobex}, "/search?q=serach": {`<a href="/scope?scope=search">search</a>`},
		"/search?q=nothing-like-it":   {"there is no scope nothing-like-it, and no queue has a task"},
		"/scope?scope=payments/acmee": {"there is no scope payments/acmee", `<a href="/scope?scope=payments%2Facme">payments/acme</a>`},
		"/scope?scope=inv0":           {"there is no scope inv0", `task <a href="/task?id=inv0">inv0</a>`}, "/waiters?scope=payments/globx": {toGlobex}, "/drain?scope=payments/globx": {toGlobex},
		"/task?id=payments/globex": {toGlobex},
	} {
		code, body := s.get(path)
		if code != http.StatusNotFound {
			t.Errorf("%s: %d\n%s", path, code, body)
		}
		has(t, body, wants...)
	}
	_, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", ID: "search", Scope: "payments/acme"})
	must(t, err)
	has(t, to("search"), "Several are named search", `scope <a href="/scope?scope=search">`, `task <a href="/task?id=search">`)

	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	for _, path := range []string{"/search?q=payments/globex", "/search?q=inv0", "/search?q=globex", "/task?id=inv0"} {
		if code, body := s.get(path); code != http.StatusNotFound || strings.Contains(body, "payments%2F") || strings.Contains(body, "/task?id=inv0") {
			t.Errorf("who may not see it finds %s: %d\n%s", path, code, body)
		}
	}
}

// What is done with chosen tasks stands before the 50 rows of a page, not below them.
func TestActionsStandAboveTheRows(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 2)
	_, body := s.get("/waiters?scope=payments/acme")
	if act, row := strings.Index(body, `value="cancel"`), strings.Index(body, "inv0"); act < 0 || row < act {
		t.Errorf("the actions stand at %d, the rows at %d", act, row)
	}
}
