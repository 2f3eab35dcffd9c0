package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/outbound"
)

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
