package page

import (
	"context"
	"errors"
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

// fails has tasks of scopes fail for good with an error, in queue bad. Their ids are f0, f1 and so on.
func (s *site) fails(why string, scopes ...string) {
	s.t.Helper()
	client := asynq.NewClientFromRedisClient(s.rdb)
	for i, scope := range scopes {
		task := asynq.NewTaskWithHeaders("mail", []byte("card 4711"), map[string]string{queue.HeaderScope: scope})
		_, err := client.Enqueue(task, asynq.TaskID(fmt.Sprint("f", i)), asynq.Queue("bad"))
		must(s.t, err)
	}
	server := asynq.NewServerFromRedisClient(s.rdb, asynq.Config{Queues: map[string]int{"bad": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond})
	must(s.t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return fmt.Errorf("%s: %w", why, asynq.SkipRetry) })))
	defer server.Shutdown()
	redistest.WaitAsking(s.t, "the failures", time.Minute, func() bool {
		list, err := asynq.NewInspectorFromRedisClient(s.rdb).ListArchivedTasks("bad")
		return err == nil && len(list) == len(scopes)
	})
}

// holdsRuns starts a server whose runs last until end is called.
func (s *site) holdsRuns() (end func()) {
	s.t.Helper()
	ended := make(chan struct{})
	server := asynq.NewServerFromRedisClient(s.rdb, asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond})
	must(s.t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-ended; return nil })))
	s.t.Cleanup(server.Shutdown)
	return func() { close(ended) }
}

// archived are the ids of the archived tasks of queue bad.
func (s *site) archived() (ids []string) {
	s.t.Helper()
	list, err := asynq.NewInspectorFromRedisClient(s.rdb).ListArchivedTasks("bad")
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		s.t.Fatal(err)
	}
	for _, one := range list {
		ids = append(ids, one.ID)
	}
	return ids
}

// What failed is shown by error, to those who may see its scope; it is retried and deleted by those who may change its scope.
func TestFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	const hostile = `<script>alert(1)</script> void invoice 17`
	s.fails(hostile, "payments/acme", "payments/acme", "search")
	body := s.sees(http.StatusOK, "/failures", "&lt;script&gt;alert(#)&lt;/script&gt; void invoice #", "void invoice 17",
		">payments/acme</a>", ">f2</a>", "never: archived", "Retry…", "No task is with a worker")
	lacks(t, body, "<script>alert", "4711")
	lacks(t, s.sees(http.StatusOK, "/failures?scope=sear", ">f2</a>"), ">f0</a>")
	s.sees(http.StatusOK, "/failures?error=other", "No failed task matches the filter")
	for _, s.actor = range []Actor{{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}, {Name: "oda", Role: RoleOwner, Groups: []string{"team-acme"}, Scopes: []string{"search"}}} {
		_, body = s.get("/failures")
		if sees := strings.Contains(body, ">f0</a>"); sees != (s.actor.Role == RoleOwner) || !strings.Contains(body, ">f2</a>") {
			t.Errorf("%s sees\n%s", s.actor.Name, body)
		}
		if acts := strings.Contains(body, "Delete…"); acts != (s.actor.Role == RoleOwner) || strings.Contains(body, "choose f2") {
			t.Errorf("%s is offered\n%s", s.actor.Name, body)
		}
	}
	task := func(id string) string { return form("queue", "bad", "id", id).Encode() }
	fields := form("failed", "yes", "verb", "run", "task", task("f0"), "task", task("f2"))
	s.sends(http.StatusOK, "/tasks", fields, "Retry tasks that failed", "<dd>1</dd>", "They are tried again",
		"Left, because others own them", ">search</a>")
	fields.Set("do", "make")
	s.sends(http.StatusOK, "/tasks", fields, "1 task was changed", "Left, because others own them", ">search</a>", "What failed")
	if got := fmt.Sprint(s.archived()); got != "[f1 f2]" {
		t.Errorf("archived: %s", got)
	}
	s.actor = Actor{Name: "vic", Role: RoleViewer}
	s.sends(http.StatusForbidden, "/tasks", fields)
	if len(s.archived()) != 2 {
		t.Errorf("after a viewer: %v", s.archived())
	}
	s.actor = Actor{Name: "root", Role: RoleAdmin}
	fields = form("failed", "yes", "verb", "cancel", "all", "yes", "scope", "payments/acme", "queue", "bad",
		"error", "<script>alert(#)</script> void invoice #: skip retry for the task")
	s.sends(http.StatusOK, "/tasks", fields, "Delete tasks that failed", "<dd>1</dd>", "This cannot be undone", "&lt;script&gt;alert(#)")
	fields.Set("do", "make")
	if _, body = s.post("/tasks", fields); fmt.Sprint(s.archived()) != "[f2]" {
		t.Errorf("archived: %v\n%s", s.archived(), body)
	}
	s.sees(http.StatusOK, "/history", "delete", "retry")
}

// 10,000 archived tasks cost no more than 1,400, and the screen says what it leaves out.
func TestFailuresCost(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	client := asynq.NewClientFromRedisClient(s.rdb)
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	for name, n := range map[string]int{"a": 10_000, "b": 1200, "c": 3} {
		for range n {
			_, err := client.Enqueue(asynq.NewTaskWithHeaders("mail", nil, map[string]string{queue.HeaderScope: "search"}), asynq.Queue(name))
			must(t, err)
		}
		_, err := inspector.ArchiveAllPendingTasks(name)
		must(t, err)
	}
	h, n := pageOfSite(t, s), countOn(s.rdb)
	var last any
	for i := range 4 {
		before := n.Load()
		var err error
		last, err = h.loadFailures(t.Context(), nil, last)
		must(t, err)
		if spent := n.Load() - before; spent > 110 {
			t.Errorf("reading %d sent %d commands", i, spent)
		}
	}
	data, _, err := h.failuresView(httptest.NewRequest(http.MethodGet, "/failures", nil), s.actor, last)
	must(t, err)
	d := data.(failuresData)
	if fmt.Sprint(d.Partly) != "[a b]" || d.All < 2000 || d.All > 2100 || d.Read != 3 || len(d.Rows) != rowsAPage || len(d.Groups) != 3 {
		t.Errorf("%v, %d, read %d, %d groups", d.Partly, d.All, d.Read, len(d.Groups))
	}
}
