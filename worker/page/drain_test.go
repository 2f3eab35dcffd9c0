package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// Draining pauses a scope, and its screen shows what still runs until nothing does.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.enqueue("payments/acme", "<b>", 2)
	if _, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", ID: "elsewhere", Scope: "search"}); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	server := asynq.NewServerFromRedisClient(s.rdb, asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 100 * time.Millisecond})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-end; return nil })))
	t.Cleanup(server.Shutdown)
	shown := func() string {
		t.Helper()
		h := pageOfSite(t, s) // reads Redis anew
		r := httptest.NewRequest(http.MethodGet, "http://localhost/drain?scope=payments/acme", nil)
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		h.mux.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("%d\n%s", w.Code, w.Body)
		}
		return w.Body.String()
	}
	redistest.WaitAsking(t, "both to run", 15*time.Second, func() bool { return strings.Contains(shown(), "2 tasks are with a worker") })
	has(t, shown(), "payments/acme is not paused", `verb=drain`)
	code, body := s.get("/scope?scope=payments/acme")
	if code != http.StatusOK || !strings.Contains(body, "verb=drain") {
		t.Fatalf("%d\n%s", code, body)
	}
	fields := form("verb", "drain", "scope", "payments/acme", "for", "2h", "reason", "they move")
	if code, body = s.post("/change", fields); code != http.StatusOK {
		t.Fatalf("%d\n%s", code, body)
	}
	has(t, body, "Pause and drain it", "Nothing is done yet")
	fields.Set("do", "make")
	fields.Set("expect", fmt.Sprint(s.version()))
	code, _, header := s.do(formTo("/change", fields))
	if to := header.Get("Location"); code != http.StatusSeeOther || to != "/drain?scope=payments%2Facme" {
		t.Fatalf("%d, to %q", code, to)
	}
	body = shown()
	has(t, body, "2 tasks of payments/acme still run", "&lt;b&gt;0", "verb=resume", "until")
	if strings.Contains(body, "<b>0") || strings.Contains(body, "elsewhere") {
		t.Errorf("it shows a name as it is, or another's task:\n%s", body)
	}
	if _, body = s.get("/scope?scope=payments/acme"); !strings.Contains(body, "What still runs") {
		t.Errorf("the scope has no link to what runs:\n%s", body)
	}
	close(end)
	redistest.WaitAsking(t, "them to end", 15*time.Second, func() bool { return strings.Contains(shown(), "No task of payments/acme runs") })
	if v, err := s.store.Current(t.Context()); err != nil || len(v.Pauses) != 1 || v.Reason != "they move" {
		t.Errorf("%+v, %v", v, err)
	}
	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	if code, body = s.get("/drain?scope=payments/acme"); code != http.StatusForbidden || strings.Contains(body, "still run") {
		t.Errorf("who may not see the scope gets %d\n%s", code, body)
	}
}
