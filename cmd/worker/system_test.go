package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
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

// bareServer runs an asynq server without Headway until the test ends, and waits until Redis knows it.
func bareServer(t *testing.T, rdb redis.UniversalClient, handler asynq.Handler) {
	t.Helper()
	config := asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel, Queues: map[string]int{"default": 1, "low": 1}}
	srv := asynq.NewServerFromRedisClient(rdb, config)
	must(t, srv.Start(handler))
	t.Cleanup(srv.Shutdown)
	redistest.WaitAsking(t, "the server to be known", bound, func() bool {
		servers, err := asynq.NewInspectorFromRedisClient(rdb).Servers()
		return err == nil && len(servers) == 1
	})
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
	for what, ends := range map[string]struct {
		queue string
		state asynq.TaskState
	}{
		"wait": {"default", asynq.TaskStateRetry}, "fail": {"default", asynq.TaskStateArchived},
		"drop": {"default", asynq.TaskStateCompleted}, "move=slow": {"slow", asynq.TaskStatePending},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t, nil)
			url, rdb := ownClient(t)
			limits := limitsFile(t, "limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h}]}}")
			start(t, whole, nil, "-redis", url, "-limits", limits, "-allow-host", a.host(), "-patience", what)
			task := a.task("p/a", "t")
			task.MaxWait, task.Remember = time.Second, time.Hour
			added := time.Now()
			enqueue(t, rdb, task)
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			redistest.WaitFor(t, "its patience to end", bound, func() bool {
				info, err := inspector.GetTaskInfo(ends.queue, "t")
				return time.Since(added) > 3*time.Second && err == nil && info.State == ends.state
			})
			if a.calls.Load() != 0 {
				t.Error("it ran")
			}
		})
	}
}

// TestDrainBound holds that -drain bounds what running tasks are given, and that they then run again.
func TestDrainBound(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	t.Cleanup(func() { close(a.let) })
	url, rdb := ownClient(t)
	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host(), "-drain", "50ms")
	r.says("msg=ready")
	enqueue(t, rdb, a.task("payments/a", "long"))
	redistest.WaitFor(t, "the task to run", bound, func() bool { return a.calls.Load() == 1 })
	r.quits()
	if info := becomes(t, rdb, "long", asynq.TaskStatePending); info.Retried != 0 {
		t.Errorf("%+v", info)
	}
}

// "No run is longer than -max-timeout", whatever its task says, and a worker that stops waits no longer than that by default.
func TestMaxTimeout(t *testing.T) {
	t.Parallel()
	a := newAPI(t, make(chan struct{}))
	t.Cleanup(func() { close(a.let) })
	url, rdb := ownClient(t)
	long := a.task("payments/a", "long")
	long.Timeout, long.MaxRetry = 3650*24*time.Hour, queue.Retries(0)
	enqueue(t, rdb, long)
	start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host(), "-max-timeout", "300ms")
	says(t, becomes(t, rdb, "long", asynq.TaskStateArchived).LastErr, "outbound: timed out after ", ": no run may take longer than 300ms here")
	for args, want := range map[string]time.Duration{"": 10 * time.Minute, "-max-timeout 1h": time.Hour, "-drain 5s -max-timeout 1h": 5 * time.Second} {
		if o := optionsOf(t, strings.Fields(args)...); o.drain != want {
			t.Errorf("%q waits for %v", args, o.drain)
		}
	}
}

// optionsOf returns what flags say.
func optionsOf(t *testing.T, args ...string) *options {
	t.Helper()
	c, o := newWorker()
	c.RunE = func(*cobra.Command, []string) error { return o.check(noEnv) }
	if code := cli.Execute(t.Context(), c, args, noEnv, io.Discard, io.Discard); code != cli.ExitOK {
		t.Fatalf("%q: exit %d", args, code)
	}
	return o
}

// asProgram makes the test binary the worker itself, for real signals.
const asProgram = "HEADWAY_TEST_RUN_WORKER"

// "No task escapes the limits": what another program puts into Redis at a cost of 0 requests is archived with its reason, what it puts there without a scope waits, and none sends anything.
func TestNoTaskEscapes(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	url, rdb := ownClient(t)
	client := asynq.NewClientFromRedisClient(rdb)
	request, err := json.Marshal(queue.HTTP{URL: a.URL + "/"})
	must(t, err)
	_, err = client.Enqueue(asynq.NewTask("http", request), asynq.TaskID("bare"))
	must(t, err)
	free := map[string]string{queue.HeaderScope: "payments/a", queue.HeaderCost: "requests=0,x=1"}
	_, err = client.Enqueue(asynq.NewTaskWithHeaders("http", request, free), asynq.TaskID("free"))
	must(t, err)
	start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", a.host())
	says(t, becomes(t, rdb, "bare", asynq.TaskStateRetry).LastErr, "no scope is named by this task")
	says(t, becomes(t, rdb, "free", asynq.TaskStateArchived).LastErr, "0 requests")
	if n := a.calls.Load(); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// becomes waits until a task of the default queue has a state, and returns what asynq knows of it then.
func becomes(t *testing.T, rdb redis.UniversalClient, id string, state asynq.TaskState) (info *asynq.TaskInfo) {
	t.Helper()
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.WaitFor(t, fmt.Sprintf("%s to be %s", id, state), bound, func() bool {
		var err error
		info, err = inspector.GetTaskInfo("default", id)
		return err == nil && info.State == state
	})
	return info
}

// A task for a forbidden host is archived with the reason, and sends nothing. Neither the log nor the task holds a key that
// stands in a path.
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
	url, rdb := ownClient(t)
	client := queue.NewClient(rdb, queue.ClientConfig{AllowMethods: []string{"PURGE", "DEL"}}) // another program
	for id, line := range map[string]string{
		"good": "GET " + s.URL, "allowed method": "PURGE " + s.URL, "key": "POST " + s.URL + "/bot110201543:" + key + "/sendMessage",
		"method": "DEL " + s.URL + "/?x", "host": "GET http://localhost:" + port, "port": "GET http://127.0.0.1:1",
		"range": "GET http://127.0.0.2:" + port, "private": "GET http://127.0.0.3:" + port,
	} {
		method, to, _ := strings.Cut(line, " ")
		task := queue.Task{Type: queue.TypeHTTP, Scope: "payments/a", ID: id, HTTP: &queue.HTTP{Method: method, URL: to}}
		_, err := client.Enqueue(t.Context(), task)
		must(t, err)
	}

	r := start(t, whole, nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-log-level", "debug",
		"-only-host", "127.0.0.1", "-only-host", "127.0.0.2", "-only-host", "127.0.0.3", "-allow-host", at, "-allow-host", "127.0.0.2",
		"-deny-cidr", "127.0.0.2/32", "-ports", port, "-allow-method", "PURGE")
	for id, want := range map[string]string{
		"key":     fmt.Sprintf("outbound: POST %s/[redacted]/sendMessage answered 404 Not Found: no bot [redacted]", s.URL),
		"method":  "outbound: bad payload: method: not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PURGE; if it is meant, name it with -allow-method, for enqueue and the workers",
		"host":    fmt.Sprintf("outbound: localhost:%s is not among the hosts that tasks may reach; if it is meant, start the worker with -only-host localhost:%s", port, port),
		"port":    "outbound: tasks may not reach port 1 of 127.0.0.1; if it is meant, add it to -ports of the worker",
		"range":   "outbound: 127.0.0.2 is in a range that tasks may not reach, whatever -allow-host says: -deny-cidr 127.0.0.2/32",
		"private": fmt.Sprintf("outbound: 127.0.0.3 is a loopback address, which tasks may not reach; if it is meant, start the worker with -allow-host 127.0.0.3:%s", port),
	} {
		if info := becomes(t, rdb, id, asynq.TaskStateArchived); info.LastErr != want {
			t.Errorf("%s: %s\nwant %s", id, info.LastErr, want)
		}
	}
	redistest.WaitFor(t, "the good ones", bound, func() bool { return calls.Load() == 3 })
	r.quits()
	if log := r.stderr.String(); calls.Load() != 3 || strings.Contains(log, key[:8]) {
		t.Errorf("%d calls; the log:\n%s", calls.Load(), log)
	}
}

// "-trace-context: send the W3C trace context that a task carries on with its request"; and without it, not.
func TestTraceContextFlag(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if o := optionsOf(t); o.outbound.Headers != nil {
		t.Error("without the flag headers are added")
	}
	o := optionsOf(t, "-trace-context")
	header := http.Header{}
	o.outbound.Headers(t.Context(), asynq.NewTaskWithHeaders("http", nil, map[string]string{"traceparent": parent}), header)
	if got := header.Get("Traceparent"); got != parent {
		t.Errorf("%q is sent, want %q", got, parent)
	}
}

// schedulesKey is where package schedule keeps its records.
const schedulesKey = "hw:schedules"

// A run that was missed while no worker lived is enqueued by the next one.
func TestSchedulesAreRun(t *testing.T) {
	t.Parallel()
	url, rdb := ownClient(t)
	schedules := limitsFile(t, `schedules: {tidy: {cron: "* * * * *", task: {type: http, scope: payments, http: {url: "https://a.example/"}}}}`)
	begin := func() *running {
		return start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-schedules", schedules)
	}
	first := begin()
	redistest.WaitFor(t, "the record", bound, func() bool { return rdb.ZCard(t.Context(), schedulesKey).Val() == 1 })
	first.quits()

	member := rdb.ZRange(t.Context(), schedulesKey, 0, 0).Val()[0]
	rdb.ZAdd(t.Context(), schedulesKey, redis.Z{Member: member, Score: float64(time.Now().Add(-10 * time.Minute).Unix())})
	begin()
	redistest.WaitFor(t, "the missed run", bound, func() bool { return len(rdb.Keys(t.Context(), "asynq:{default}:t:schedule:tidy:*").Val()) > 0 })
}

// scheduled is a schedules.yaml with a task of a scope.
func scheduled(scope string) string {
	return "schedules:\n  s:\n    cron: '@daily'\n    task: {type: http, scope: " + scope + ", http: {url: 'http://a/'}}\n"
}

// What a worker cannot run at all keeps it from starting.
func TestSchedulesThatCannotRun(t *testing.T) {
	t.Parallel()
	url := ownRedis(t)
	for text, want := range map[string]string{
		"schedules:\n  s: {}\n": ":2:3: schedules.s.cron: cron is missing",
		scheduled("other"):      ":4:31: schedules.s.task.scope: scope \"other\" meets no rule",
	} {
		path := limitsFile(t, text)
		r := start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-schedules", path)
		r.refuses(cli.ExitFailed, "worker: "+path+want, "try: correct these lines of "+path+"; nothing was started")
	}
	path := filepath.Join(t.TempDir(), "none.yaml")
	r := start(t, with(newFakeSystem()), nil, "-redis", "redis://127.0.0.1:1", "-limits", limitsFile(t, someLimits), "-schedules", path)
	r.refuses(cli.ExitFailed, "worker: there is no schedules file "+path)
}

// docs/llm.md, "Money": a faulty file keeps the worker from starting.
func TestFaultyPrices(t *testing.T) {
	t.Parallel()
	url, path := ownRedis(t), limitsFile(t, "prices: {m: {inptu: 1}}\n")
	r := start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-prices", path)
	r.refuses(cli.ExitFailed, "worker: "+path+":1:14: prices.m.inptu: inptu is no kind of tokens", "try: correct these lines of "+path+"; nothing was started")
	r = start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-prices", path+"x")
	r.refuses(cli.ExitFailed, "worker: there is no file of prices "+path+"x")
	money := limitsFile(t, "limits: {openai: {answers: openai, rules: [{name: month, algorithm: calendar, limit: 50000000, resets: '@monthly', unit: usd}]}}")
	r = start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", money)
	r.says(`msg="rule counts usd, and -prices does not say what calls cost; charges stay as they were estimated" scope=openai rule=month`)
}

// docs/limits.md: "A start that fails changes nobody's limits": the version in Redis stays, whatever the worker's own file is.
func TestFailedStartPublishesNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	older, err := readLimits(limitsFile(t, "limits: {older: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"))
	must(t, err)
	newer := limitsFile(t, "limits: {newer: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}")
	url, rdb := ownClient(t)
	store := policystore.New(rdb, policystore.Config{})
	_, _, err = store.PublishFile(t.Context(), "another worker", older, false)
	must(t, err)
	starts := func(scope string, version int64, flags ...string) *running {
		flags = append(flags, "-redis", url, "-limits", newer, "-schedules", limitsFile(t, scheduled(scope)))
		r := start(t, with(newFakeSystem()), nil, flags...)
		if version == 1 {
			r.ends(cli.ExitFailed)
		} else {
			r.says("msg=ready")
		}
		if v, err := store.Current(t.Context()); err != nil || v.Number != version {
			t.Errorf("version %d, %q: %v", v.Number, v.Change, err)
		}
		return r
	}
	starts("older", 1) // which the file of its limits does not have
	starts("newer", 1, "-listen", taken.Addr().String())
	starts("newer", 2).quits() // the same without a fault publishes it
}

// "Gives the waiting tasks of Headway's making back the plain form that asynq has"
func TestLeave(t *testing.T) {
	t.Parallel()
	url, rdb := ownClient(t)
	for id, name := range map[string]string{"a": "default", "b": "low", "c": "low"} {
		enqueue(t, rdb, queue.Task{Type: "work", Scope: "p", ID: id, Queue: name, MaxRetry: queue.Retries(4)})
	}
	if out, _ := ask(t, cli.ExitOK, "leave", "-redis", url, "-queues", "low", "-json"); out != `{"queue":"low","changed":2}`+"\n" {
		t.Error(out)
	}
	out, _ := ask(t, cli.ExitOK, "leave", "-redis", url)
	says(t, out, "queue default: 1 tasks", "queue low: 0 tasks")
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("low", "b")
	if err != nil || info.MaxRetry != 4 {
		t.Errorf("got %+v, %v", info, err)
	}
}

// "Stop every worker first."
func TestLeaveWhileServing(t *testing.T) {
	t.Parallel()
	url, rdb := ownClient(t)
	bareServer(t, rdb, asynq.NewServeMux())
	out, errs := ask(t, cli.ExitFailed, "leave", "-redis", url)
	says(t, errs, "1 workers still serve", "\ntry: ")
	if out != "" {
		t.Error(out)
	}
}
