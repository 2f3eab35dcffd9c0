package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// whole is the program as it is, on a free port.
var whole = program{embeddedAddr: "127.0.0.1:0", assemble: assemble}

// api is an outbound API that counts, and answers when it is let.
type api struct {
	*httptest.Server
	calls atomic.Int32
	let   chan struct{} // nil: at once
}

func newAPI(t *testing.T, let chan struct{}) *api {
	t.Helper()
	a := &api{let: let}
	a.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.calls.Add(1)
		if a.let != nil {
			select {
			case <-a.let:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *api) host() string { return strings.TrimPrefix(a.URL, "http://") }

func (a *api) task(scope, id string) queue.Task {
	return queue.Task{Type: queue.TypeHTTP, Scope: scope, ID: id, HTTP: &queue.HTTP{URL: a.URL}}
}

func enqueue(t *testing.T, rdb redis.UniversalClient, tasks ...queue.Task) {
	t.Helper()
	client := queue.NewClient(rdb, queue.ClientConfig{})
	for _, task := range tasks {
		_, err := client.Enqueue(t.Context(), task)
		must(t, err)
	}
}

func open(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	rdb, err := cli.OpenRedis(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// found returns what follows name= in the log.
func (r *running) found(name string) string {
	r.t.Helper()
	m := regexp.MustCompile(name + `=(\S+)`).FindStringSubmatch(r.stderr.String())
	if m == nil {
		r.t.Fatalf("no %s= in the log", name)
	}
	return m[1]
}

// TestPatience holds what -patience says: "wait, fail, drop, move=QUEUE".
func TestPatience(t *testing.T) {
	t.Parallel()
	for what, ended := range map[string]func(info, slow *asynq.TaskInfo) bool{
		"wait":      func(info, _ *asynq.TaskInfo) bool { return info.State == asynq.TaskStateRetry },
		"fail":      func(info, _ *asynq.TaskInfo) bool { return info.State == asynq.TaskStateArchived },
		"drop":      func(info, _ *asynq.TaskInfo) bool { return info.State == asynq.TaskStateCompleted },
		"move=slow": func(info, slow *asynq.TaskInfo) bool { return info == nil && slow != nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, nil)
			url := ownRedis(t)
			rdb := open(t, url)
			limits := limitsFile(t, "limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h}]}}")
			r := start(t, whole, nil, "-redis", url, "-limits", limits, "-allow-host", a.host(), "-patience", what)
			r.says("msg=ready")
			task := a.task("p/a", "t")
			task.MaxWait, task.Remember = time.Second, time.Hour
			added := time.Now()
			enqueue(t, rdb, task)
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			redistest.WaitFor(t, "its patience to end", bound, func() bool {
				info, err := inspector.GetTaskInfo("default", "t")
				slow, _ := inspector.GetTaskInfo("slow", "t")
				return time.Since(added) > 3*time.Second && (err == nil || errors.Is(err, asynq.ErrTaskNotFound)) &&
					(info != nil || what == "move=slow") && ended(info, slow)
			})
			r.stop()
			r.ends(cli.ExitOK)
			if a.calls.Load() != 0 {
				t.Error("it ran")
			}
		})
	}
}

// TestDrainBound holds that -drain bounds what running tasks are given, and
// that they then run again.
func TestDrainBound(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	t.Cleanup(func() { close(a.let) })
	url := ownRedis(t)
	rdb := open(t, url)
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host(), "-drain", "50ms")
	r.says("msg=ready")
	enqueue(t, rdb, a.task("payments/a", "long"))
	redistest.WaitFor(t, "the task to run", bound, func() bool { return a.calls.Load() == 1 })
	r.stop()
	r.ends(cli.ExitOK)
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("default", "long")
	if err != nil || info.State != asynq.TaskStatePending || info.Retried != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// "No run is longer than -max-timeout", whatever its task says, and a worker that is told to stop waits no
// longer than that by default.
func TestMaxTimeout(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	t.Cleanup(func() { close(a.let) })
	url := ownRedis(t)
	rdb := open(t, url)
	long := a.task("payments/a", "long")
	long.Timeout, long.MaxRetry = 3650*24*time.Hour, queue.Retries(0)
	enqueue(t, rdb, long)
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host(), "-max-timeout", "300ms")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.WaitFor(t, "the task to end", bound, func() bool {
		info, err := inspector.GetTaskInfo("default", "long")
		return err == nil && info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, "outbound: timed out after ") &&
			strings.HasSuffix(info.LastErr, ": no run may take longer than 300ms here")
	})
	r.stop()
	r.ends(cli.ExitOK)
	for args, want := range map[string]time.Duration{"": 10 * time.Minute, "-max-timeout 1h": time.Hour, "-drain 5s -max-timeout 1h": 5 * time.Second} {
		if o, _, _ := parseOptions(strings.Fields(args), noEnv, io.Discard, io.Discard); o.drain != want {
			t.Errorf("%q waits for %v", args, o.drain)
		}
	}
}

// asProgram makes the test binary the worker itself, for real signals.
const asProgram = "HEADWAY_TEST_RUN_WORKER"
