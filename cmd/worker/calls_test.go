package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "No task escapes the limits": what another program puts into Redis as a type of Headway's own, in a forged carrier or at a cost of
// 0 requests is archived with its reason, what it puts there without a scope waits, and none sends anything.
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
		"no scope":              {asynq.NewTask("http", request), "bare", "no scope is named by this task"},
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
			return err == nil && (info.State == asynq.TaskStateArchived || h.id == "bare" && info.State == asynq.TaskStateRetry)
		})
		if !strings.Contains(info.LastErr, h.why) {
			t.Errorf("%s: %s with %q, want %q", name, info.State, info.LastErr, h.why)
		}
	}
	if n := a.calls.Load(); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
	r.stop()
	r.ends(cli.ExitOK)
}

// What tasks may not reach is archived with the reason, whoever enqueued it, and nothing is
// sent; and no key that stands in a path is told, neither by the log nor by the task.
func TestWhereTasksMayGo(t *testing.T) {
	t.Parallel()
	const key = "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if strings.Contains(r.URL.Path, key) {
			http.Error(w, "no bot "+key, http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://")
	_, port, _ := strings.Cut(at, ":")
	url := ownRedis(t)
	rdb := open(t, url)
	client := queue.NewClient(rdb, queue.ClientConfig{AllowMethods: []string{"PURGE", "DEL"}}) // another program
	put := func(id, method, url string) {
		t.Helper()
		task := queue.Task{Type: queue.TypeHTTP, Scope: "payments/a", ID: id, HTTP: &queue.HTTP{Method: method, URL: url}}
		_, err := client.Enqueue(t.Context(), task)
		must(t, err)
	}
	put("good", "GET", s.URL)
	put("allowed method", "PURGE", s.URL)
	put("key", "POST", s.URL+"/bot110201543:"+key+"/sendMessage")
	put("method", "DEL", s.URL+"/?x")
	put("host", "GET", "http://localhost:"+port)
	put("port", "GET", "http://127.0.0.1:1")
	put("range", "GET", "http://127.0.0.2:"+port)
	put("private", "GET", "http://127.0.0.3:"+port)

	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-log-level", "debug",
		"-only-host", "127.0.0.1", "-only-host", "127.0.0.2", "-only-host", "127.0.0.3", "-allow-host", at, "-allow-host", "127.0.0.2",
		"-deny-cidr", "127.0.0.2/32", "-ports", port, "-allow-method", "PURGE")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for id, want := range map[string]string{
		"key":     fmt.Sprintf("outbound: POST %s/[redacted]/sendMessage answered 404 Not Found: no bot [redacted]", s.URL),
		"method":  "outbound: bad payload: method: not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PURGE; if it is meant, start the worker with -allow-method NAME",
		"host":    fmt.Sprintf("outbound: localhost:%s is none of the hosts that tasks may reach; if it is meant, start the worker with -only-host localhost:%s", port, port),
		"port":    "outbound: port 1 of 127.0.0.1 is none that tasks may reach; if it is meant, start the worker with it in -ports",
		"range":   "outbound: 127.0.0.2 is in a range that tasks may not reach, whatever -allow-host says: -deny-cidr 127.0.0.2/32",
		"private": fmt.Sprintf("outbound: 127.0.0.3 is a loopback address, which tasks may not reach; if it is meant, start the worker with -allow-host 127.0.0.3:%s", port),
	} {
		var info *asynq.TaskInfo
		redistest.WaitFor(t, id+" to be archived", bound, func() bool {
			var err error
			info, err = inspector.GetTaskInfo("default", id)
			return err == nil && info.State == asynq.TaskStateArchived
		})
		if info.LastErr != want {
			t.Errorf("%s: %s\nwant %s", id, info.LastErr, want)
		}
	}
	redistest.WaitFor(t, "the good ones", bound, func() bool { return calls.Load() == 3 })
	r.stop()
	r.ends(cli.ExitOK)
	if log := r.stderr.String(); calls.Load() != 3 || strings.Contains(log, key[:8]) {
		t.Errorf("%d calls; the log:\n%s", calls.Load(), log)
	}
}

// "-trace-context: send the W3C trace context that a task carries on with its request"; and without it, not.
func TestTraceContextFlag(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if o, _, _ := parseOptions(nil, noEnv, io.Discard, io.Discard); o.outbound().Headers != nil {
		t.Error("without the flag headers are added")
	}
	o, _, _ := parseOptions([]string{"-trace-context"}, noEnv, io.Discard, io.Discard)
	header := http.Header{}
	o.outbound().Headers(t.Context(), asynq.NewTaskWithHeaders("http", nil, map[string]string{"traceparent": parent}), header)
	if got := header.Get("Traceparent"); got != parent {
		t.Errorf("%q is sent, want %q", got, parent)
	}
}
