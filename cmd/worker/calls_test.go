package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/outbound"
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

// "A 429, or a 503 with a Retry-After, burns no attempt": tasks without retries are called
// again, not before they were told, and succeed.
func TestLimitedAnswerBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second
	var calls atomic.Int32
	var last atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, now := calls.Add(1), time.Now()
		if before := last.Swap(now.UnixNano()); n > 1 && now.Sub(time.Unix(0, before)) < wait {
			t.Errorf("call %d came %s after the one before", n, now.Sub(time.Unix(0, before)))
		}
		w.Header().Set("Retry-After", "2")
		switch n {
		case 1:
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(api.Close)
	server := redistest.NewServer(t)
	r := start(t, whole, nil, "-redis", "redis://"+server.Addr(), "-limits", limitsFile(t, someLimits), "-allow-host", api.Listener.Addr().String())
	r.says("msg=ready")
	enqueue(t, open(t, "redis://"+server.Addr()), queue.Task{
		Type: queue.TypeHTTP, Scope: "payments/a", ID: "x", MaxRetry: queue.Retries(0), HTTP: &queue.HTTP{URL: api.URL},
	})
	redistest.WaitFor(t, "the third call", bound, func() bool { return calls.Load() == 3 })
	r.stop()
	r.ends(cli.ExitOK)
}

// The flags reach what they are for.
func TestReachFlags(t *testing.T) {
	t.Parallel()
	o, code, done := parseOptions([]string{
		"-allow-host", "a:1", "-allow-host", "b", "-only-host", "c", "-only-host", "d:2", "-deny-cidr", "10.0.0.0/8", "-deny-cidr", "::/0",
		"-ports", "80, 443", "-allow-method", "PURGE", "-allow-method", "LOCK",
	}, func(string) string { return "" }, nil, nil)
	want := outbound.Config{
		AllowHosts: []string{"a:1", "b"}, OnlyHosts: []string{"c", "d:2"}, DenyCIDRs: []string{"10.0.0.0/8", "::/0"},
		Ports: []int{80, 443}, AllowMethods: []string{"PURGE", "LOCK"},
	}
	if got := o.outbound(); done || !reflect.DeepEqual(got, want) {
		t.Errorf("code %d: %+v", code, got)
	}
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
		if _, err := client.Enqueue(t.Context(), task); err != nil {
			t.Fatal(err)
		}
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
	for _, flags := range [][]string{nil, {"-trace-context"}} {
		got := make(chan string, 1)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Traceparent") }))
		t.Cleanup(s.Close)
		url := ownRedis(t)
		client := queue.NewClient(open(t, url), queue.ClientConfig{
			OnEnqueue: func(context.Context, queue.Task) (map[string]string, func(queue.Result)) {
				return map[string]string{"traceparent": parent}, nil
			},
		})
		if _, err := client.Enqueue(t.Context(), queue.Task{Type: queue.TypeHTTP, Scope: "payments/a", HTTP: &queue.HTTP{URL: s.URL}}); err != nil {
			t.Fatal(err)
		}
		start(t, whole, nil, append(flags, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", strings.TrimPrefix(s.URL, "http://"))...)
		want := ""
		if flags != nil {
			want = parent
		}
		select {
		case header := <-got:
			if header != want {
				t.Errorf("%v: %q arrived, want %q", flags, header, want)
			}
		case <-time.After(bound):
			t.Fatal("nothing arrived")
		}
	}
}
