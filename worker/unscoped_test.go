package worker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// Under New a task whose scope no rule knows, or that names none, follows unmatched: it waits, fails or runs. A task that no limit is
// for runs, and a negative cost fails with its reason, whatever unmatched says.
func TestNewFollowsUnmatched(t *testing.T) {
	t.Parallel()
	const (
		waits = "headway: waiting: "
		fails = "fails: "
		runs  = ""
	)
	noRule, noScope := `scope "newvendor/acme" meets no rule`, "no scope is named by this task of type "
	for unmatched, want := range map[string]map[string]string{
		"deny":  {"misspelt": waits + noRule, "last": waits + noRule, "unnamed": waits + noScope + `"unnamed"`, "unnamed last": waits + noScope, "free": runs, "negative": fails + "returns a cost of -1"},
		"fail":  {"misspelt": fails + noRule, "last": fails + noRule, "unnamed": fails + noScope + `"unnamed"`, "unnamed last": fails + noScope, "free": runs, "negative": fails + "returns a cost of -1"},
		"allow": {"misspelt": runs, "last": runs, "unnamed": runs, "unnamed last": runs, "free": runs, "negative": fails + "returns a cost of -1"},
	} {
		t.Run(unmatched, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limits, err := limitsyaml.Parse("limits.yaml", []byte("unmatched: "+unmatched+"\nlimits: {payments: {rules: [{name: r, algorithm: sliding-window, limit: 5, per: 1s}]}}"))
				must(t, err)
				_, rdb := redistest.Miniredis(t)
				t.Cleanup(synctest.Wait)
				var log says
				registry := prometheus.NewRegistry()
				l, err := New(rdb, Config{Limits: limits, Registerer: registry, Logger: logTo(&log), Summary: -1, Spends: func(task *asynq.Task) (string, int64) {
					switch kind, _, _ := strings.Cut(task.Type(), " "); kind {
					case "unnamed":
						return "", 1
					case "free":
						return Unlimited, 0
					case "negative":
						return "newvendor/acme", -1
					}
					return "newvendor/acme", 1
				}})
				must(t, err)
				client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
				for kind := range want {
					retry := 5
					if strings.HasSuffix(kind, "last") {
						retry = 0
					}
					_, err := client.Enqueue(asynq.NewTask(kind, nil), asynq.TaskID(kind), asynq.MaxRetry(retry))
					must(t, err)
				}
				var mu sync.Mutex
				var ran []string
				server := l.NewServer(asynq.Config{Concurrency: 4})
				must(t, server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, task.Type())
					return nil
				})))
				defer server.Shutdown()
				<-time.After(5 * time.Second)
				waiting := 0
				for kind, text := range want {
					state, last := "", ""
					if info, err := inspector.GetTaskInfo("default", kind); err == nil {
						state, last = info.State.String(), info.LastErr
					}
					mu.Lock()
					did := slices.Contains(ran, kind)
					mu.Unlock()
					switch rest, failed := strings.CutPrefix(text, fails); {
					case text == runs && did:
					case failed && state == "archived" && strings.Contains(last, rest) && !did:
					case strings.HasPrefix(text, waits) && (state == "retry" && strings.HasPrefix(last, text) || state == "scheduled" && strings.HasSuffix(kind, "last")) && !did:
						waiting++
					default:
						t.Errorf("%s is %s with %q and ran: %t; want %q", kind, state, last, did, text)
					}
				}
				if unmatched != "deny" {
					return
				}
				if n := log.times("level=WARN"); n != 3 || log.times("no rule matches the scope") != 3 || log.times(`reason="no scope is named by this task of type`) != 2 {
					t.Errorf("%d warnings: %s", n, log.b.String())
				}
				families, err := registry.Gather()
				must(t, err)
				for _, f := range families {
					if f.GetName() == "headway_refused_tasks" && int(f.GetMetric()[0].GetGauge().GetValue()) != waiting {
						t.Errorf("%s: %v, want %d", f.GetName(), f.GetMetric(), waiting)
					}
				}
				allows, err := limitsyaml.Parse("limits.yaml", []byte("unmatched: allow\nlimits: {}"))
				must(t, err)
				l.Limiter().SetPolicy(allows)
				<-time.After(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if len(ran) != 1+waiting {
					t.Errorf("when they may, %q run", ran)
				}
			})
		})
	}
}
