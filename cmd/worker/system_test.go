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
		if _, err := client.Enqueue(t.Context(), task); err != nil {
			t.Fatal(err)
		}
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

// TestArchives holds that a task that can never run "is archived with that
// reason, charges nothing, and is not dropped".
func TestArchives(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	url := ownRedis(t)
	rdb := open(t, url)
	enqueue(t, rdb,
		queue.Task{Type: "mail", Scope: "payments/a", ID: "type", Payload: []byte(`{}`)},
		queue.Task{Type: "httpx", Scope: "payments/a", ID: "like", Payload: []byte(`{}`)},
		queue.Task{Type: queue.TypeHTTP, Scope: "payments/a", ID: "cost", Cost: 201, HTTP: &queue.HTTP{URL: a.URL}},
	)
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host())
	r.says("msg=ready")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for id, want := range map[string]string{
		"type": `no handler is registered for tasks of type "mail"`,
		"like": `no handler is registered for tasks of type "httpx"`,
		"cost": "201",
	} {
		redistest.WaitFor(t, "task "+id+" to be archived", bound, func() bool {
			info, err := inspector.GetTaskInfo("default", id)
			return err == nil && info.State == asynq.TaskStateArchived
		})
		if info, _ := inspector.GetTaskInfo("default", id); !strings.Contains(info.LastErr, want) {
			t.Errorf("%s: archived with %q, want %q", id, info.LastErr, want)
		}
		r.says("task_id=" + id)
	}
	if keys := rdb.Keys(t.Context(), "hw:{*").Val(); len(keys) > 0 {
		t.Errorf("charged for tasks that cannot run: %q", keys)
	}
	enqueue(t, rdb, a.task("payments/a", "good"))
	redistest.WaitFor(t, "the good one to run", bound, func() bool { return a.calls.Load() == 1 })
	if n := strings.Count(r.stderr.String(), "archived"); n != 3 {
		t.Errorf("told %d times of 3 archived tasks", n)
	}
	r.stop()
	r.ends(cli.ExitOK)
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

// TestDrains holds that a worker that is told to stop "takes no new task, lets
// those running finish, puts waiting ones back and exits 0".
func TestDrains(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	url := ownRedis(t)
	rdb := open(t, url)
	limits := limitsFile(t, "limits: {payments: {rules: [{name: p, algorithm: concurrency, limit: 1}]}}")
	r := start(t, whole, nil, "-redis", url, "-limits", limits, "-allow-host", a.host(), "-listen", "127.0.0.1:0")
	r.says("msg=ready")
	enqueue(t, rdb, a.task("payments/a", "running"))
	redistest.WaitFor(t, "the first to run", bound, func() bool { return a.calls.Load() == 1 })
	enqueue(t, rdb, a.task("payments/a", "waiting"))
	base := "http://" + r.found("addr")
	redistest.WaitFor(t, "the second to be denied", bound, func() bool {
		return !strings.Contains(get(t, base+"/metrics", http.StatusOK), `headway_denials_total{rule="payments:p"} 0`)
	})
	r.stop()
	r.says("stopping: no new tasks")
	enqueue(t, rdb, a.task("payments/a", "new"))
	close(a.let)
	r.ends(cli.ExitOK)
	if got := a.calls.Load(); got != 1 {
		t.Errorf("%d calls, want the one that ran", got)
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	if info, err := inspector.GetTaskInfo("default", "running"); err == nil && info.State != asynq.TaskStateCompleted {
		t.Errorf("the running task is %s", info.State)
	}
	for _, id := range []string{"waiting", "new"} {
		info, err := inspector.GetTaskInfo("default", id)
		if err != nil || info.State != asynq.TaskStatePending && info.State != asynq.TaskStateRetry && info.State != asynq.TaskStateScheduled {
			t.Errorf("%s is %+v, %v", id, info, err)
		}
		if err == nil && info.Retried != 0 {
			t.Errorf("%s burned an attempt by waiting", id)
		}
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
