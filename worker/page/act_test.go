package page

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/headway-go/headway/internal/control"
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
	if err != nil {
		s.t.Fatal(err)
	}
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

// "One test per mutation and role": the service refuses who may not act on a scope's tasks.
func TestActByRole(t *testing.T) {
	t.Parallel()
	for _, verb := range []control.Verb{control.VerbRun, control.VerbMove, control.VerbPriority, control.VerbCancel} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, nil)
			s.use("payments")
			s.enqueue("payments/acme", "inv", 2)
			fields := form("verb", string(verb), "scope", "payments/acme", "task", chosen("inv1"), "to", "payments/acme/x", "priority", "3", "do", "make")
			for _, one := range []struct {
				who Actor
				may bool
			}{
				{Actor{Name: "vic", Role: RoleViewer}, false},
				{Actor{Name: "olga", Groups: []string{"team-search"}, Role: RoleOwner}, false},
				{Actor{Name: "pat", Groups: []string{"team-acme"}, Role: RoleOwner}, true},
			} {
				s.who = one.who
				code, body := s.post("/tasks", fields)
				if one.may != (code == http.StatusOK) || !one.may && code != http.StatusForbidden {
					t.Errorf("%s: %d\n%s", one.who.Name, code, body)
				}
			}
		})
	}
}
