package main

import (
	"net"
	"path/filepath"
	"slices"
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

// A run that was missed while no worker lived is enqueued by the next one.
func TestSchedulesAreRun(t *testing.T) {
	t.Parallel()
	url := ownRedis(t)
	rdb := open(t, url)
	schedules := limitsFile(t, `schedules: {tidy: {cron: "* * * * *", task: {type: http, scope: payments, http: {url: "https://a.example/"}}}}`)
	begin := func() *running {
		return start(t, with(newFakeSystem()), nil, "-redis", url, "-limits", limitsFile(t, someLimits), "-schedules", schedules)
	}
	first := begin()
	redistest.WaitFor(t, "the record", bound, func() bool { return rdb.ZCard(t.Context(), schedulesKey).Val() == 1 })
	first.stop()
	first.ends(cli.ExitOK)

	member := rdb.ZRange(t.Context(), schedulesKey, 0, 0).Val()[0]
	rdb.ZAdd(t.Context(), schedulesKey, redis.Z{Member: member, Score: float64(time.Now().Add(-10 * time.Minute).Unix())})
	begin()
	redistest.WaitFor(t, "the missed run", bound, func() bool { return len(rdb.Keys(t.Context(), "asynq:{default}:t:schedule:tidy:*").Val()) > 0 })
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
			r.refuses(cli.ExitFailed, "worker: "+path+tt.want, "try: correct these lines of "+path+"; nothing was started")
		})
	}
	path := filepath.Join(t.TempDir(), "none.yaml")
	r := start(t, with(newFakeSystem()), nil, "-redis", "redis://127.0.0.1:1", "-limits", limitsFile(t, someLimits), "-schedules", path)
	r.refuses(cli.ExitFailed, "worker: there is no schedules file "+path)
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
			_, _, err := store.PublishFile(t.Context(), "another worker", older, nil)
			must(t, err)
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

// "Gives the waiting tasks of Headway's making back the plain form that asynq has"
func TestLeave(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	for id, name := range map[string]string{"a": "default", "b": "low", "c": "low"} {
		enqueue(t, rdb, queue.Task{Type: "work", Scope: "p", ID: id, Queue: name, MaxRetry: queue.Retries(4)})
	}
	if out, _ := ask(t, cli.ExitOK, "leave", "-redis", "redis://"+server.Addr(), "-queues", "low", "-json"); out != `{"queue":"low","changed":2}`+"\n" {
		t.Error(out)
	}
	out, _ := ask(t, cli.ExitOK, "leave", "-redis", "redis://"+server.Addr())
	says(t, out, "queue default: 1 tasks", "queue low: 0 tasks")
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
	out, errs := ask(t, cli.ExitFailed, "leave", "-redis", "redis://"+server.Addr())
	says(t, errs, "1 workers still serve", "\ntry: ")
	if out != "" {
		t.Error(out)
	}
}
