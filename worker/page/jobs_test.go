package page

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// longSite is a site whose changes of tasks are answered at once, with 50 tasks that wait. stop holds
// what writes to Redis until goOn is called.
func longSite(t *testing.T) (s *site, h *handler, stop, goOn func()) {
	t.Helper()
	s = newSite(t, nil)
	h = pageOfSite(t, s)
	h.answerWithin, s.handler = 0, h.mux
	s.use("payments")
	s.enqueue("payments/acme", "inv", 50)
	admin := s.server.Client(t)
	stop = func() { must(t, admin.Do(t.Context(), "CLIENT", "PAUSE", "600000", "WRITE").Err()) }
	goOn = func() { must(t, admin.Do(t.Context(), "CLIENT", "UNPAUSE").Err()) }
	return s, h, stop, goOn
}

// begin posts a change of tasks that lasts, and returns the path of its progress.
func (s *site) begin(pairs ...string) string {
	s.t.Helper()
	fields := form(append([]string{"scope", "payments/acme", "all", "yes", "do", "make", "expected", "50"}, pairs...)...)
	code, body, header := s.do(formTo("/tasks", fields))
	if path := header.Get("Location"); code == http.StatusSeeOther && strings.HasPrefix(path, "/progress?id=") {
		return path
	}
	s.t.Fatalf("%d\n%s", code, body)
	return ""
}

// docs/page.md: "A change that lasts longer than two seconds goes on beside a screen of its progress". The
// screen tells its end, nobody else sees it, and its actor begins no second one meanwhile.
func TestLongChangeOfTasks(t *testing.T) {
	t.Parallel()
	s, h, stop, goOn := longSite(t)
	stop()
	path := s.begin("verb", "priority", "priority", "7")
	s.sees(http.StatusOK, path, "Under way", "of 50", "Stop it", `<noscript><meta http-equiv="refresh" content="2"></noscript>`)
	s.sends(http.StatusConflict, "/tasks", form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv1"), "do", "make"),
		"your change of tasks that began at", "wait for its end, or stop it")
	s.who.Name = "ben"
	s.sees(http.StatusNotFound, path)
	s.sends(http.StatusNotFound, "/stop", form("id", strings.TrimPrefix(path, "/progress?id=")))
	s.who.Name = "root"
	goOn()
	body := ""
	redistest.WaitFor(t, "end of the change", time.Minute, func() bool {
		h.hub.forget()
		_, body = s.get(path)
		return !strings.Contains(body, "Under way")
	})
	has(t, body, "50 tasks were changed")
	if strings.Contains(body, "refresh") {
		t.Error("what has ended is read again and again")
	}
	s.sees(http.StatusOK, "/history", "priority of payments/acme")
}

// A change that is stopped, or whose page is closed, says so, and the history has what it changed.
func TestStoppedChangeOfTasks(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s, h, stop, goOn := longSite(t)
			stop()
			path := s.begin("verb", "cancel")
			ended := make(chan struct{})
			one, err := h.jobs.of(strings.TrimPrefix(path, "/progress?id="), s.who)
			must(t, err)
			go func() {
				defer close(ended)
				if how == "close" {
					(&Page{s.handler, h.jobs}).Close()
				}
				<-one.done
			}()
			if how == "stop" {
				one.stop() // as POST /stop does, which then waits
			}
			redistest.WaitFor(t, "stop", time.Minute, func() bool { return one.ctx.Err() != nil })
			goOn()
			select {
			case <-ended:
			case <-time.After(redistest.Stretch(time.Minute)):
				t.Fatal("it does not end")
			}
			h.hub.forget()
			s.sees(http.StatusOK, path, "It ended early: it was stopped")
			left := s.waiting("payments/acme")
			if left == 0 {
				t.Fatal("all were cancelled")
			}
			if how == "close" {
				s.sends(http.StatusConflict, "/tasks", form("verb", "cancel", "scope", "payments/acme", "all", "yes", "do", "make"))
			}
			if left < 50 {
				s.sees(http.StatusOK, "/history", "cancel of payments/acme")
			}
		})
	}
}

// docs/page.md: "The owner of `open/*` has no right to `open/vip` if that has another owner".
func TestPatternOnThePage(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, `limits:
  open:
    rules: [{name: account, algorithm: fixed-window, limit: 2, per: 30d}]
    scopes:
      "*": {owner: team-default, rules: [{name: tenant, algorithm: fixed-window, limit: 9, per: 1h}]}
      vip: {owner: team-vip}
`, nil)
	s.use("open")
	s.enqueue("open/acme", "a", 2)
	s.enqueue("open/vip", "v", 3)
	s.who = Actor{Name: "anna", Groups: []string{"team-default"}, Role: RoleOwner}
	fields := form("verb", "clear", "scope", "open/*")
	const left = ">open/vip</a> <span class=\"soft\">3 tasks</span>"
	s.sends(http.StatusOK, "/tasks", fields, "<dd>2</dd>", "Left, because others own them", left)
	fields.Set("do", "make")
	s.sends(http.StatusOK, "/tasks", fields, "2 tasks were changed", left)
	if v, a := s.waiting("open/vip"), s.waiting("open/acme"); v != 3 || a != 0 {
		t.Errorf("%d of open/vip wait, and %d of open/acme", v, a)
	}
	s.sends(http.StatusForbidden, "/change", form("verb", "pause", "scope", "open/*", "do", "make"), "it also covers open/vip")
}
