package worker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/usage"
)

const mailLimits = "limits:\n  mail:\n    rules:\n      - {name: account, algorithm: sliding-window, limit: 100, per: 1s}\n"

// writeLimits writes a limits file that nobody is writing any more.
func writeLimits(t *testing.T, path, text string) string {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "limits.yaml")
	}
	must(t, os.WriteFile(path, []byte(text), 0o600))
	settled := time.Now().Add(-time.Minute)
	must(t, os.Chtimes(path, settled, settled))
	return path
}

func spendsMail(*asynq.Task) (scope string, cost int64) { return "mail/acme", 1 }

// oneCall is a server as New makes it, and the tasks that it has run.
func oneCall(t *testing.T, conn any, cfg Config) (limits *Limits, server *Server, ran *atomic.Int64) {
	t.Helper()
	cfg.Spends, cfg.Logger, ran = spendsMail, slog.New(slog.DiscardHandler), new(atomic.Int64)
	limits, err := New(conn, cfg)
	must(t, err)
	server = limits.NewServer(asynq.Config{Concurrency: 8})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { ran.Add(1); return nil })))
	t.Cleanup(server.Shutdown)
	return limits, server, ran
}

func enqueueMails(t *testing.T, rdb redis.UniversalClient, n int) {
	t.Helper()
	client := asynq.NewClientFromRedisClient(rdb)
	for range n {
		_, err := client.Enqueue(asynq.NewTask("mail:send", nil))
		must(t, err)
	}
}

// "While a server runs, the file is published and read again when it changes; the limiter follows what is set live; a Redis
// that was emptied gets the file back; tasks' spending and the metrics are recorded": by one call.
func TestOneCall(t *testing.T) {
	t.Parallel()
	redisServer := redistest.NewServer(t)
	rdb, registry := redisServer.Client(t), prometheus.NewRegistry()
	path := writeLimits(t, "", mailLimits)
	limits, _, ran := oneCall(t, asynq.RedisClientOpt{Addr: redisServer.Addr()}, Config{LimitsFile: path, App: "mailer", Registerer: registry})

	enqueueMails(t, rdb, 5)
	redistest.WaitFor(t, "the tasks to run", time.Minute, func() bool { return ran.Load() == 5 })
	counts := func() map[string]float64 {
		families, err := registry.Gather()
		must(t, err)
		sums := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				sums[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		return sums
	}
	redistest.WaitFor(t, "the metrics to count them", time.Minute, func() bool {
		sums := counts()
		return sums["headway_runs_total"] == 5 && sums["headway_redis_up"] == 1
	})

	says := func(limit string) func() bool {
		return func() bool {
			return strings.Contains(string(limitsyaml.Format(limits.Limiter().Policy())), "limit: "+limit+",")
		}
	}
	store := policystore.New(rdb, policystore.Config{})
	_, err := store.Set(t.Context(), policystore.Edit{By: "test"}, "mail", "account", map[string]string{"limit": "70"})
	must(t, err)
	redistest.WaitFor(t, "a live change to be followed", time.Minute, says("70"))
	_, err = store.Unset(t.Context(), policystore.Edit{By: "test"}, "mail", "account")
	must(t, err)
	writeLimits(t, path, strings.Replace(mailLimits, "100", "90", 1))
	redistest.WaitFor(t, "the file to be read again", time.Minute, says("90"))

	rdb.FlushAll(t.Context())
	redistest.WaitFor(t, "the limits to be restored", time.Minute, func() bool {
		p, err := store.Now(t.Context())
		return err == nil && strings.Contains(string(limitsyaml.Format(p)), "limit: 90,")
	})
}

// What tasks spend is in Redis when the server has ended, and what is asked of the limiter besides; each once.
func TestOneCallRecordsUsage(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	limits, server, ran := oneCall(t, rdb, Config{Limits: policy.PerSecond("mail", 100), App: "mailer", Registerer: prometheus.NewRegistry()})
	enqueueMails(t, rdb, 3)
	redistest.WaitFor(t, "the tasks to run", time.Minute, func() bool { return ran.Load() == 3 })
	if d, err := limits.Limiter().Decide(t.Context(), throttle.Request{Scope: "mail", Cost: 2}); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	server.Shutdown()
	report, err := usage.Read(t.Context(), rdb, usage.Config{}, "mail", time.Hour)
	if err != nil || report.All != (usage.Sum{Units: 5, Tasks: 4}) || len(report.Spenders) != 2 || report.Spenders[0].Type != "mail:send" || report.Spenders[1].Units != 2 ||
		report.Spenders[0].App != "mailer" || report.Spenders[1].App != "mailer" {
		t.Errorf("%+v, %v", report, err)
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the caller's client was closed: %v", err)
	}
}

// "NoMetrics registers none, NoUsage records nobody's spending", an Observer "is told besides the metrics", and an End without a Begin does nothing.
func TestOneCallInParts(t *testing.T) {
	t.Parallel()
	rdb, registry := redistest.NewServer(t).Client(t), prometheus.NewRegistry()
	var also seen
	limits, _, ran := oneCall(t, rdb, Config{
		Limits: policy.PerSecond("mail", 100), Registerer: registry, NoMetrics: true, NoUsage: true, Middleware: MiddlewareConfig{Observer: &also},
	})
	enqueueMails(t, rdb, 3)
	redistest.WaitFor(t, "the tasks to run", time.Minute, func() bool { return ran.Load() == 3 })
	redistest.WaitFor(t, "the observer to hear of them", time.Minute, func() bool {
		return also.get(func(o *seen) int { return len(o.outcomes) }) == 3
	})
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("%d metrics are registered, %v", len(families), err)
	}
	if limits.usage != nil {
		t.Error("usage is recorded")
	}
	_, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("mail:send", nil), asynq.ProcessIn(time.Hour))
	must(t, err)
	if n, err := limits.waiting(t.Context()); n != 1 || err != nil { // as the log says each half a minute
		t.Errorf("%d wait, %v", n, err)
	}
	idle, err := New(rdb, Config{Limits: policy.PerSecond("mail", 100), NoMetrics: true})
	must(t, err)
	idle.End()
}

// "The error names what is wrong with the file or the Config", and nothing was started.
func TestOneCallRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	taken := prometheus.NewRegistry()
	_, err := New(rdb, Config{Limits: policy.PerSecond("mail", 1), Registerer: taken})
	must(t, err)
	for want, cfg := range map[string]Config{
		"both LimitsFile and Limits": {LimitsFile: "limits.yaml", Limits: policy.PerSecond("mail", 1)},
		"no such file":               {LimitsFile: filepath.Join(t.TempDir(), "limits.yaml")},
		"limits.yaml:4:":             {LimitsFile: writeLimits(t, "", strings.Replace(mailLimits, "100", "-1", 1))},
		"give each New of a process a Registerer of its own": {Limits: policy.PerSecond("mail", 1), Registerer: taken},
	} {
		if _, err := New(rdb, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := New("localhost:6379", Config{}); err == nil || err.Error() != "worker: New needs an asynq.RedisConnOpt or a go-redis client, got string" {
		t.Error(err)
	}
	limits, err := New(rdb, Config{Registerer: prometheus.NewRegistry()})
	must(t, err)
	if err := limits.NewServer(asynq.Config{}).Start(asynq.NewServeMux()); !errors.Is(err, policystore.ErrNone) {
		t.Errorf("%v is not policystore.ErrNone", err)
	}
}

// docs/limits.md: "The task waits if earlier limits would have admitted it: those of the process and the versions in Redis", and only a
// cost is refused for good.
func TestNeverAdmitted(t *testing.T) {
	t.Parallel()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	parse := func(text string) *policy.Policy {
		t.Helper()
		p, err := limitsyaml.Parse("limits.yaml", []byte(text))
		must(t, err)
		return p
	}
	store := policystore.New(rdb, policystore.Config{Prefix: prefix})
	edit := func(text string) {
		t.Helper()
		_, err := store.Import(t.Context(), policystore.Edit{By: "anna"}, parse(text), "limits.yaml", true)
		must(t, err)
	}
	edit("limits: {mail: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1s}]}}")
	edit("limits: {payments: {rules: [{name: plan, algorithm: sliding-window, limit: 5, per: 1s}]}}")
	limiter, err := throttle.New(rdb, parse("limits: {search: {rules: [{name: r, algorithm: sliding-window, limit: 3, per: 1s}]}}"), throttle.Config{Prefix: prefix})
	must(t, err)
	limiter.SetPolicy(parse("limits: {}"))
	never := neverAdmitted(store, limiter)
	unmatched, cost := error(&policy.UnmatchedError{}), error(&policy.CostError{})
	for _, c := range []struct {
		task  throttle.Request
		why   error
		never bool
	}{
		{throttle.Request{Scope: "other/a"}, unmatched, false},   // a rule may come
		{throttle.Request{Scope: "mail", Cost: 10}, cost, false}, // replaced since
		{throttle.Request{Scope: "mail", Cost: 11}, cost, true},
		{throttle.Request{Scope: "search", Cost: 3}, cost, false}, // in this process alone
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 5}}, cost, false},
		{throttle.Request{Scope: "payments/a", Costs: policy.Costs{"requests": 6}}, cost, true},
	} {
		if got := never(t.Context(), c.task, c.why); got != c.never {
			t.Errorf("%+v, %T: %t", c.task, c.why, got)
		}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if neverAdmitted(store, limiter)(stopped, throttle.Request{Scope: "mail", Cost: 11}, cost) {
		t.Error("Redis cannot be asked, and a task is said to be hopeless")
	}
	edit("limits: {other: {rules: [{name: plan, algorithm: sliding-window, limit: 10, per: 1s}]}}")
	limiter.SetPolicy(parse("limits: {}")) // as Follow does
	if never(t.Context(), throttle.Request{Scope: "other/a", Cost: 10}, cost) {
		t.Error("the new version is not known")
	}
}
