package page

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// longSite is a site with 50 waiting tasks that answers changes of tasks at once. stop holds writes to Redis until goOn is called.
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
	if path := header.Get("Location"); code == http.StatusSeeOther && path == "/progress" {
		return path
	}
	s.t.Fatalf("%d\n%s", code, body)
	return ""
}

// A change that lasts goes on beside a screen of its progress, which only its actor sees. The actor can begin no second change meanwhile.
func TestLongChangeOfTasks(t *testing.T) {
	t.Parallel()
	s, h, stop, goOn := longSite(t)
	stop()
	path := s.begin("verb", "priority", "priority", "7")
	s.sees(http.StatusOK, path, "Under way", "of 50", "Stop it", `<noscript><meta http-equiv="refresh" content="2"></noscript>`)
	s.sends(http.StatusConflict, "/tasks", form("verb", "cancel", "scope", "payments/acme", "task", chosen("inv1"), "do", "make"),
		"your change of tasks that began at", "wait for its end, or stop it")
	s.actor.Name = "ben"
	s.sees(http.StatusNotFound, path)
	s.sends(http.StatusNotFound, "/stop", nil)
	s.actor.Name = "root"
	goOn()
	body := ""
	redistest.WaitFor(t, "end of the change", time.Minute, func() bool {
		h.hub.forget()
		_, body = s.get(path)
		return !strings.Contains(body, "Under way")
	})
	has(t, body, "50 tasks were changed")
	lacks(t, body, "refresh")
	s.sees(http.StatusOK, "/history", "priority of payments/acme")
}

// The progress of a change says that it was stopped, or its page closed; the history has what it changed.
func TestStoppedChangeOfTasks(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s, h, stop, goOn := longSite(t)
			stop()
			path := s.begin("verb", "cancel")
			ended := make(chan struct{})
			one, err := h.jobs.of(s.actor.Name)
			must(t, err)
			go func() {
				defer close(ended)
				if how == "close" {
					(&Page{s.handler, h.jobs}).Close()
				} else {
					s.sends(http.StatusSeeOther, "/stop", nil)
				}
				<-one.done
			}()
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
