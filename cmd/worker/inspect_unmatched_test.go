package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
)

// Where a rule was removed, inspect says since which version no rule matches, of the tasks that wait and of their scope.
func TestInspectUnmatched(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	store := policystore.New(i.rdb, policystore.Config{})
	if _, err := store.Set(t.Context(), policystore.Edit{By: "anna"}, "mail", "plan", map[string]string{"algorithm": "sliding-window", "limit": "1", "per": "24h"}); err != nil {
		t.Fatal(err)
	}
	with, err := store.Now(t.Context())
	must(t, err)
	i.limits.SetPolicy(with)
	i.use("mail")
	i.enqueue(queue.Task{Scope: "mail", ID: "in line"})
	gone, err := store.Remove(t.Context(), policystore.Edit{By: "bert"}, "mail", "plan")
	must(t, err)
	since := float64(gone.Version.Number)
	want(t, i.objects("task", "in line")[0], map[string]any{"scope": "mail", "unmatched": true, "unmatched_since": since})
	want(t, i.objects("scope", "mail")[0], map[string]any{"scope": "mail", "waiting": 1.0, "unmatched": true, "unmatched_since": since})
	because := fmt.Sprintf("waits      no rule matches the scope since version %d of the limits, by bert at 2", gone.Version.Number)
	for _, what := range [][]string{{"task", "in line"}, {"scope", "mail"}} {
		if out, _ := i.run(0, what...); !strings.Contains(out, because) || !strings.Contains(out, "add a rule, or delete") {
			t.Errorf("inspect %q says\n%s", what, out)
		}
	}
	if _, errs := i.run(1, "scope", "mial"); !strings.Contains(errs, `scope "mial" meets no rule`) {
		t.Errorf("a scope that was never known: %s", errs)
	}
	must(t, i.queueTask("mial", "misspelt"))
	want(t, i.objects("task", "misspelt")[0], map[string]any{"unmatched": true, "unmatched_since": nil})
	if out, _ := i.run(0, "task", "misspelt"); !strings.Contains(out, "waits      no rule matches the scope, in no stored version") {
		t.Errorf("inspect says\n%s", out)
	}
}

// queueTask enqueues a task whatever the limits say.
func (i *inspected) queueTask(scope, id string) error {
	_, err := queue.NewClient(i.rdb, queue.ClientConfig{}).Enqueue(i.t.Context(), queue.Task{Type: "work", Scope: scope, ID: id})
	return err
}

// The scope of a task without headers is the one that a worker's Spends gave it, as soon as the task waits.
func TestInspectTaskOfSpends(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	client := asynq.NewClientFromRedisClient(i.rdb)
	add := func(id string) {
		t.Helper()
		if _, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(id)); err != nil {
			t.Fatal(err)
		}
	}
	const scope = "p {*}/a, rule b"
	add("waits")
	if out, _ := i.run(0, "task", "waits"); !strings.Contains(out, "scope      not known yet: no header names it, and a worker's Spends, if there is one, decides it at pick-up\n") {
		t.Errorf("before a worker saw it, inspect says\n%s", out)
	}
	i.use(scope)
	middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{
		Redis: i.rdb, Limiter: i.limits, Spends: func(*asynq.Task) (string, int64) { return scope, 0 },
	})
	must(t, err)
	server := middleware.NewServer(asynq.Config{Concurrency: 2, LogLevel: asynq.FatalLevel})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	t.Cleanup(server.Shutdown)
	inLine := func(id string) map[string]any {
		var got map[string]any
		redistest.WaitFor(t, id+" to wait", bound, func() bool {
			got = i.objects("task", id)[0]
			return got["turn"] == "waiting" && got["state"] != "active"
		})
		return got
	}
	want(t, inLine("waits"), map[string]any{"scope": scope, "scope_from": "last_error", "cost": nil, "position": 1.0, "rule": "account"})
	if out, _ := i.run(0, "task", "waits"); !strings.Contains(out, "scope      p {*}/a, rule b, as a worker's Spends decided\n") {
		t.Errorf("inspect says\n%s", out)
	}
	// A task that has failed before keeps that error; its place in line has the scope.
	server.Shutdown()
	must(t, i.rdb.HSet(t.Context(), "asynq:{default}:t:waits", "msg", failedBefore(t, i, "waits")).Err())
	want(t, i.objects("task", "waits")[0], map[string]any{"scope": scope, "scope_from": "line", "last_error": "boom"})
}

// failedBefore is the message of a task that waits, as if it had failed.
func failedBefore(t *testing.T, i *inspected, id string) []byte {
	t.Helper()
	message, err := i.rdb.HGet(t.Context(), "asynq:{default}:t:"+id, "msg").Result()
	must(t, err)
	info, err := asynq.NewInspectorFromRedisClient(i.rdb).GetTaskInfo("default", id)
	must(t, err)
	// In the protobuf of a message a string stands behind its length, of one byte up to 127.
	was, is := string(rune(len(info.LastErr)))+info.LastErr, "\x04boom"
	if len(info.LastErr) > 127 || !strings.Contains(message, was) {
		t.Fatalf("cannot rewrite %q", info.LastErr)
	}
	return []byte(strings.Replace(message, was, is, 1))
}
