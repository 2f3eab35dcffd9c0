package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// The log has a line each half a minute, or what else is asked for, with what tasks have done, and none where nothing happened.
func TestSummary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log says
		var s summary
		asked := 0
		ctx, stop := context.WithCancel(t.Context())
		go s.run(ctx, 30*time.Second, logTo(&log), func(context.Context) (int64, error) {
			if asked++; asked > 1 {
				return 0, errors.ErrUnsupported
			}
			return 7, nil
		})
		<-time.After(5 * time.Minute)
		if log.times("\n") != 0 || asked != 0 {
			t.Errorf("nothing happened, and the log is %s", log.b.String())
		}
		for range 3 {
			s.PickedUp("q")
		}
		s.Ran("q", "ok", time.Second)
		s.Ran("q", "failed", time.Second)
		s.Rescheduled("q", time.Second)
		<-time.After(90 * time.Second)
		synctest.Wait()
		if log.times(`level=INFO msg="task counts" in=30s picked_up=3 ran=2 failed=1 put_back=1 waiting=7`) != 1 || log.times("\n") != 1 {
			t.Errorf("the log is %s", log.b.String())
		}
		s.PickedUp("q")
		<-time.After(time.Minute)
		synctest.Wait()
		if log.times("picked_up=1 ran=0 failed=0 put_back=0\n") != 1 {
			t.Errorf("where Redis does not say how many wait the log is %s", log.b.String())
		}
		stop()
	})
}

// waiting counts what waits in the queues of all servers of a process.
func TestSummaryCountsWhatWaits(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	limits, err := New(rdb, Config{Limits: new(policy.Policy), Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	limits.NewServer(asynq.Config{Queues: map[string]int{"a": 1, "b": 1}})
	limits.NewServer(asynq.Config{})
	client := asynq.NewClientFromRedisClient(rdb)
	for name, opts := range map[string][]asynq.Option{"a": {asynq.ProcessIn(time.Hour)}, "b": nil, queue.DefaultQueue: nil, "other": nil} {
		if _, err := client.Enqueue(asynq.NewTask("x", nil), append(opts, asynq.Queue(name))...); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := limits.waiting(t.Context()); n != 3 || err != nil {
		t.Errorf("%d wait, %v", n, err)
	}
}

// Failures are logged with the task's id and scope: for good as errors, and of those tried again one a minute of a scope. No user or
// query of a URL comes into the log.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log says
		heard := 0
		l := &Limits{log: logTo(&log), Middleware: &Middleware{dispatcher: new(dispatch.Dispatcher), cfg: MiddlewareConfig{Spends: func(task *asynq.Task) (string, int64) { return task.Type() + "/acme", 0 }}}}
		handler := l.logFailures(asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { heard++ }))
		fail := func(kind string, err error) { handler.HandleError(t.Context(), asynq.NewTask(kind, nil), err) }
		secret := errors.New(`Get "https://user:hunter2@api.example.com/v1/mail?key=hunter2": EOF`)
		fail("mail", fmt.Errorf("%w: %w", secret, asynq.SkipRetry))
		fail("mail", asynq.RevokeTask)
		if log.times(`level=ERROR msg="task failed and is archived"`) != 1 || log.times("scope=mail/acme") != 1 || log.times("api.example.com/v1/mail?…") != 1 {
			t.Errorf("the log is %s", log.b.String())
		}
		if strings.Contains(log.b.String(), "hunter2") {
			t.Errorf("a secret is in the log: %s", log.b.String())
		}
		if heard != 2 {
			t.Errorf("the program's own handler heard of %d", heard)
		}
	})
}

// Where rules count tokens and Spends gives tasks no costs by unit, New's start warns: no such rule would limit them.
func TestUnitsThatSpendsDoesNotCost(t *testing.T) {
	t.Parallel()
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"llm": {Rules: []policy.Rule{
		{Name: "tokens", Algorithm: policy.TokenBucket, Limit: 9, Per: time.Second, Burst: 9, Unit: "tokens"},
	}}})
	must(t, err)
	for name, costs := range map[string]func(*asynq.Task) policy.Costs{"none": nil, "some": func(*asynq.Task) policy.Costs { return nil }} {
		var log says
		limits, err := New(redistest.NewServer(t).Client(t), Config{Limits: p, Registerer: prometheus.NewRegistry(), Logger: logTo(&log), Spends: spendsMail, Costs: costs})
		if err == nil {
			err = limits.Settle(t.Context())
		}
		if warned := log.times("Config.Costs is nil") == 1 && log.times("scope=llm rule=tokens unit=tokens") == 1; err != nil || warned != (costs == nil) {
			t.Errorf("Costs are %s: %v, and the log is %s", name, err, bytes.TrimSpace(log.b.Bytes()))
		}
	}
}
