package page

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// chosen is how the form names a task.
func chosen(id string) string { return url.Values{"queue": {"default"}, "id": {id}}.Encode() }

// waiting is how many tasks wait in a scope.
func (s *site) waiting(scope string) int64 {
	s.t.Helper()
	h := pageOfSite(s.t, s)
	if _, err := h.limits(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
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
	has(t, body, "Changes of waiting tasks", "cancel", "inv1")

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
	if s.handler, err = New(Config{Redis: rdb, Identify: func(*http.Request) (Actor, bool) { return s.who, true }}); err != nil {
		t.Fatal(err)
	}
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
