package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
)

// schedulesKey is where package schedule keeps its records.
const schedulesKey = "hw:schedules"

// A run that was missed while no worker lived is enqueued by the next one, and
// once by two.
func TestSchedulesAreRun(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	url, rdb := "redis://"+server.Addr(), server.Client(t)
	limits := limitsFile(t, someLimits)
	schedules := limitsFile(t, `schedules: {tidy: {cron: "* * * * *", task: {type: http, scope: payments, http: {url: "https://a.example/"}}}}`)
	begin := func() *running {
		r := start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limits, "-schedules", schedules)
		r.says("ready")
		return r
	}
	first := begin()
	redistest.WaitFor(t, "the record", bound, func() bool { return rdb.ZCard(t.Context(), schedulesKey).Val() == 1 })
	first.stop()
	first.ends(cli.ExitOK)
	if n := len(taskIDs(t, rdb)); n > 1 {
		t.Fatalf("%d runs at first sight", n) // one where a minute has just begun
	}

	member := rdb.ZRange(t.Context(), schedulesKey, 0, 0).Val()[0]
	since := time.Now().Add(-10 * time.Minute).Unix()
	rdb.ZAdd(t.Context(), schedulesKey, redis.Z{Member: member, Score: float64(since)})
	pair := []*running{begin(), begin()}
	redistest.WaitFor(t, "the missed run", bound, func() bool {
		return rdb.ZScore(t.Context(), schedulesKey, member).Val() > float64(since)
	})
	for _, r := range pair {
		r.stop()
		r.ends(cli.ExitOK)
	}
	ids := taskIDs(t, rdb)
	if len(ids) < 1 || len(ids) > 3 { // of ten that were missed; a minute may begin meanwhile
		t.Errorf("enqueued are %q", ids)
	}
	for _, id := range ids {
		var unix int64
		if _, err := fmt.Sscanf(id, "schedule:tidy:%d", &unix); err != nil || unix%60 != 0 || unix <= since {
			t.Errorf("the task %q: %v", id, err)
		}
	}
}

// taskIDs are those of all tasks of the default queue: a worker may have taken one.
func taskIDs(t *testing.T, rdb redis.UniversalClient) (ids []string) {
	t.Helper()
	if !rdb.SIsMember(context.Background(), "asynq:queues", "default").Val() {
		return nil
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		inspector.ListPendingTasks, inspector.ListScheduledTasks, inspector.ListRetryTasks, inspector.ListArchivedTasks, inspector.ListCompletedTasks,
	} {
		infos, err := list("default")
		must(t, err)
		for _, info := range infos {
			ids = append(ids, info.ID)
		}
	}
	return ids
}

// What a worker cannot run at all keeps it from starting.
func TestSchedulesThatCannotRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"a faulty file":    {"schedules:\n  s: {}\n", ":2:3: schedules.s.cron: cron is missing"},
		"an unknown scope": {"schedules:\n  s:\n    cron: '@daily'\n    task: {type: http, scope: other, http: {url: 'http://a/'}}\n", ":4:31: schedules.s.task.scope: scope \"other\" meets no rule"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := limitsFile(t, tt.text)
			r := start(t, with(newFakeSystem()), nil, "-redis", ownRedis(t), "-limits", limitsFile(t, someLimits), "-schedules", path)
			r.ends(cli.ExitFailed)
			for _, want := range []string{"worker: " + path + tt.want, "try: correct these lines of " + path + "; nothing was started"} {
				if !strings.Contains(r.stderr.String(), want) {
					t.Errorf("stderr lacks %q:\n%s", want, r.stderr.String())
				}
			}
		})
	}
	path := filepath.Join(t.TempDir(), "none.yaml")
	r := start(t, with(newFakeSystem()), nil, "-redis", "redis://127.0.0.1:1", "-limits", limitsFile(t, someLimits), "-schedules", path)
	r.ends(cli.ExitFailed)
	if want := "worker: there is no schedules file " + path; !strings.Contains(r.stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, r.stderr.String())
	}
}

// docs/limits.md: "A start that fails changes nobody's limits": the version in Redis stays, whatever the worker's own file is.
func TestFailedStartPublishesNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	schedules := func(scope string) string {
		return limitsFile(t, "schedules:\n  s:\n    cron: '@daily'\n    task: {type: http, scope: "+scope+", http: {url: 'http://a/'}}\n")
	}
	older, err := loadPolicy(limitsFile(t, "limits: {older: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}"))
	must(t, err)
	newer := limitsFile(t, "limits: {newer: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}")
	for name, flags := range map[string][]string{
		"an unknown scope in schedules.yaml": {"-schedules", schedules("older")},
		"a port that is taken":               {"-schedules", schedules("newer"), "-listen", taken.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := ownRedis(t)
			store := policystore.New(open(t, url), policystore.Config{})
			if _, _, err := store.PublishFile(t.Context(), "another worker", older, nil); err != nil {
				t.Fatal(err)
			}
			args := slices.Concat([]string{"-redis", url, "-limits", newer}, flags)
			start(t, with(newFakeSystem()), nil, args...).ends(cli.ExitFailed)
			if v, err := store.Current(t.Context()); err != nil || v.Number != 1 {
				t.Errorf("version %d, %q: %v", v.Number, v.Change, err)
			}
			// The same without the fault publishes it.
			r := start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", newer, "-schedules", schedules("newer"))
			r.says("msg=ready")
			r.stop()
			r.ends(cli.ExitOK)
			if v, err := store.Current(t.Context()); err != nil || v.Number != 2 {
				t.Errorf("version %d, %q: %v", v.Number, v.Change, err)
			}
		})
	}
}

func noEnv(string) string { return "" }

// "Gives the waiting tasks of Headway's making back the plain form that asynq has"
func TestLeave(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	tasks := queue.NewClient(rdb, queue.ClientConfig{})
	for id, name := range map[string]string{"a": "default", "b": "low", "c": "low"} {
		if _, err := tasks.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p", ID: id, Queue: name, MaxRetry: queue.Retries(4)}); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr(), "-queues", "low", "-json"}, noEnv, &out, &errs)
	if want := `{"queue":"low","changed":2}` + "\n"; code != 0 || out.String() != want {
		t.Fatalf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	out.Reset()
	code = run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr()}, noEnv, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "queue default: 1 tasks") || !strings.Contains(out.String(), "queue low: 0 tasks") {
		t.Fatalf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("low", "b")
	if err != nil || info.MaxRetry != 4 {
		t.Errorf("got %+v, %v", info, err)
	}
}

// "Stop every worker first."
func TestLeaveWhileServing(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	srv := asynq.NewServerFromRedisClient(server.Client(t), asynq.Config{LogLevel: asynq.FatalLevel})
	must(t, srv.Start(asynq.NewServeMux()))
	t.Cleanup(srv.Shutdown)
	inspector := asynq.NewInspectorFromRedisClient(server.Client(t))
	redistest.WaitFor(t, "the server shows", bound, func() bool {
		servers, err := inspector.Servers()
		return err == nil && len(servers) == 1
	})
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr()}, noEnv, &out, &errs)
	if code != 1 || !strings.Contains(errs.String(), "1 workers still serve") || !strings.Contains(errs.String(), "\ntry: ") || out.Len() > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}
