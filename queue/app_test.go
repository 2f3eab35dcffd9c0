package queue_test

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "Tasks carry it in HeaderApp": whatever characters the name has, 128 bytes of it, and none where there is none.
func TestClientApp(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for app, want := range map[string]string{
		"": "", "shop": "shop", "a b/c:d %\n": "a b/c:d %\n", "\xff": "\uFFFD", strings.Repeat("x", 127) + "é": strings.Repeat("x", 127), strings.Repeat("/", 200): strings.Repeat("/", 128),
	} {
		client := queue.NewClient(rdb, queue.ClientConfig{App: app})
		r, err := client.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p"})
		must(t, err)
		info, err := inspector.GetTaskInfo("default", r.ID)
		must(t, err)
		text, has := info.Headers[queue.HeaderApp]
		if got := queue.EnqueuedBy(asynq.NewTaskWithHeaders("t", nil, info.Headers)); got != want || has != (app != "") || len(text) > 3*128 {
			t.Errorf("%q: got %q of %q, want %q", app, got, text, want)
		}
	}
}

// "It is what the task says": a header that somebody else wrote is no fault, needs no scope, and counts with 128 bytes.
func TestEnqueuedByForeign(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"billing": "billing", "100%": "100%", strings.Repeat("y", 1<<20): strings.Repeat("y", 128), "": ""} {
		task := asynq.NewTaskWithHeaders("t", nil, map[string]string{queue.HeaderApp: text})
		if _, found, err := queue.ReadSpec(task); found || err != nil {
			t.Errorf("%.20q: %t, %v", text, found, err)
		}
		if got := queue.EnqueuedBy(task); got != want {
			t.Errorf("%.20q: got %.200q", text, got)
		}
	}
	if got := queue.EnqueuedBy(asynq.NewTask("t", nil)); got != "" {
		t.Errorf("got %q", got)
	}
}
