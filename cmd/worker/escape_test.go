package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "No task escapes the limits": what another program puts into Redis without a scope, as a type of
// Headway's own, in a forged carrier or at a cost of 0 requests is archived with its reason, and
// sends nothing.
func TestNoTaskEscapes(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	url := ownRedis(t)
	client := asynq.NewClientFromRedisClient(open(t, url))
	inspector := asynq.NewInspectorFromRedisClient(open(t, url))
	request, err := json.Marshal(queue.HTTP{URL: a.URL + "/"})
	must(t, err)
	carrier := func(id, kind string, headers map[string]string) *asynq.Task {
		payload, err := json.Marshal(map[string]any{"id": id, "type": kind, "payload": request, "headers": headers, "at": time.Now()})
		must(t, err)
		return asynq.NewTask("headway:carry", payload)
	}
	scoped := map[string]string{queue.HeaderScope: "payments/a"}
	hostile := map[string]struct {
		task *asynq.Task
		id   string
		why  string
	}{
		"no scope":              {asynq.NewTask("http", request), "bare", "the task names no scope to spend from"},
		"a type of Headway's":   {asynq.NewTaskWithHeaders("headway:new", request, scoped), "own", "types that begin with headway: are Headway's own"},
		"no requests":           {asynq.NewTaskWithHeaders("http", request, map[string]string{queue.HeaderScope: "payments/a", queue.HeaderCost: "requests=0,x=1"}), "free", "0 requests"},
		"a carrier of another":  {carrier("x", "http", scoped), "headway:carry:y", "Headway did not make it"},
		"a carrier by its type": {carrier("z", "http", scoped), "z", "Headway did not make it"},
		"carried without scope": {carrier("n", "http", nil), "headway:carry:n", "Headway did not make it"},
		"a carried carrier":     {carrier("c", "headway:carry", scoped), "headway:carry:c", "are Headway's own"},
		"not a carrier at all":  {asynq.NewTask("headway:carry", []byte("{")), "headway:carry:no", "can't be read"},
	}
	for name, h := range hostile {
		if _, err := client.Enqueue(h.task, asynq.TaskID(h.id)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host())
	r.says("msg=ready")
	for name, h := range hostile {
		var info *asynq.TaskInfo
		redistest.WaitFor(t, name+" to be archived", 30*time.Second, func() bool {
			info, err = inspector.GetTaskInfo("default", h.id)
			return err == nil && info.State == asynq.TaskStateArchived
		})
		if !strings.Contains(info.LastErr, h.why) {
			t.Errorf("%s: archived with %q, want %q", name, info.LastErr, h.why)
		}
	}
	if n := a.calls.Load(); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
	r.stop()
	r.ends(cli.ExitOK)
}

// "unmatched: allow" lets tasks without a scope run.
func TestUnscopedWhereAllowed(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	url := ownRedis(t)
	request := fmt.Sprintf(`{"url":%q}`, a.URL)
	if _, err := asynq.NewClientFromRedisClient(open(t, url)).Enqueue(asynq.NewTask("http", []byte(request))); err != nil {
		t.Fatal(err)
	}
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, "unmatched: allow\n"+someLimits), "-allow-host", a.host())
	redistest.WaitFor(t, "the task to run", 30*time.Second, func() bool { return a.calls.Load() == 1 })
	r.stop()
	r.ends(cli.ExitOK)
}
