package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	usages "github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker"
)

// Where a rule was removed, inspect says since which version no rule matches, of the tasks that wait and of their scope.
func TestInspectUnmatched(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	store := policystore.New(i.rdb, policystore.Config{})
	_, err := store.Set(t.Context(), policystore.Edit{By: "anna"}, "mail", "plan", map[string]string{"algorithm": "sliding-window", "limit": "1", "per": "24h"})
	must(t, err)
	with, err := store.Now(t.Context())
	must(t, err)
	i.limits.SetPolicy(with)
	i.use("mail")
	i.enqueue(queue.Task{Scope: "mail", ID: "in-line"})
	gone, err := store.Remove(t.Context(), policystore.Edit{By: "bert"}, "mail", "plan")
	must(t, err)
	since := float64(gone.Version.Number)
	want(t, i.objects("task", "in-line")[0], map[string]any{"scope": "mail", "unmatched": true, "unmatched_since": since})
	want(t, i.objects("scope", "mail")[0], map[string]any{"scope": "mail", "waiting": 1.0, "unmatched": true, "unmatched_since": since})
	because := fmt.Sprintf("waits      no rule matches the scope since version %d of the limits, by bert at 2", gone.Version.Number)
	for _, what := range []string{"task in-line", "scope mail"} {
		i.says(0, what, because, "add a rule, or delete")
	}
	i.says(1, "scope mial", `scope "mial" meets no rule`)
	enqueue(t, i.rdb, queue.Task{Type: "work", Scope: "mial", ID: "misspelt"})
	want(t, i.objects("task", "misspelt")[0], map[string]any{"unmatched": true, "unmatched_since": nil})
	i.says(0, "task misspelt", "waits      no rule matches the scope, in no stored version")
}

// The scope of a task without headers is the one that a worker's Spends gave it, as soon as the task waits.
func TestInspectTaskOfSpends(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	client := asynq.NewClientFromRedisClient(i.rdb)
	const scope = "p {*}/a, rule b"
	for _, id := range []string{"fails", "waits"} {
		_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID(id))
		must(t, err)
		i.says(0, "task "+id, "scope      not known yet: no header names it, and a worker's Spends, if there is one, decides it at pick-up\n")
	}
	middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{
		Redis: i.rdb, Limiter: i.limits, Spends: func(*asynq.Task) (string, int64) { return scope, 0 },
	})
	must(t, err)
	server := middleware.NewServer(asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("boom") })))
	t.Cleanup(server.Shutdown)
	inLine := func(id string) map[string]any {
		var got map[string]any
		redistest.WaitFor(t, id+" to wait", bound, func() bool {
			got = i.objects("task", id)[0]
			return got["turn"] == "waiting" && got["state"] != "active"
		})
		return got
	}
	want(t, inLine("waits"), map[string]any{"scope": scope, "scope_from": "last_error", "cost": nil, "rule": "account"})
	i.says(0, "task waits", "scope      p {*}/a, rule b, as a worker's Spends decided\n")
	// A task that has failed before keeps that error; its place in line has the scope.
	want(t, inLine("fails"), map[string]any{"scope": scope, "scope_from": "line", "last_error": "boom"})
}

const usageLimits = `limits:
  p:
    rules: [{name: account, algorithm: token-bucket, limit: 1000, per: 1s, burst: 1000}]
    scopes: {"*": {rules: []}}
`

// worked runs a worker until it has done n tasks of p/acme, and ends it.
func worked(t *testing.T, url, ids string, args ...string) {
	t.Helper()
	a := newAPI(t, nil)
	args = append(args, "-redis", url, "-limits", limitsFile(t, usageLimits), "-allow-host", a.host())
	r := start(t, whole, nil, args...)
	r.says("msg=ready")
	for _, id := range ids {
		task := a.task("p/acme", string(id))
		task.Cost = 3
		enqueue(t, open(t, url), task)
	}
	redistest.WaitFor(t, "the tasks to run", bound, func() bool { return int(a.calls.Load()) == len(ids) })
	r.quits()
}

// "Which applications, queues and task types, how many units in how many tasks, and when last, most units first": a worker records them,
// and what it has not sent when it is stopped it sends then.
func TestInspectUsed(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, url: ownRedis(t)}
	began := time.Now().Add(-time.Second)
	worked(t, i.url, "ab")
	worked(t, i.url, "cde", "-app", "billing <é>")
	for _, scope := range []string{"p", "p/acme"} {
		got := i.objects("usage", scope)
		if len(got) != 3 {
			t.Fatalf("%s: %v", scope, got)
		}
		want(t, got[0], map[string]any{"app": "billing <é>", "queue": "default", "type": "http", "units": 9.0, "tasks": 3.0, "summary": nil})
		want(t, got[1], map[string]any{"app": "worker", "queue": "default", "type": "http", "units": 6.0, "tasks": 2.0})
		want(t, got[2], map[string]any{"summary": true, "scope": scope, "units": 15.0, "tasks": 5.0, "other_units": 0.0, "other_tasks": 0.0})
		if last := at(t, got[0]["last"]); last.Before(began) || last.After(time.Now()) {
			t.Errorf("last at %s", last)
		}
		from, to := at(t, got[2]["from"]), at(t, got[2]["to"])
		if before := to.Sub(from) - time.Hour; before < 0 || before > 5*time.Minute {
			t.Errorf("from %s to %s", from, to)
		}
	}
	i.says(0, "usage p -since 24h", "15 units in 5 tasks spent from p since ", "\nUNITS  TASKS  APP          QUEUE    TYPE  LAST",
		"\n9      3      billing <é>  default  http  20", "!others")
	i.says(0, "usage p/other", "no spending from p/other is recorded since ")
}

// "`worker -usage=false` records nothing: no key, no command"
func TestUsageOff(t *testing.T) {
	t.Parallel()
	for flag, recorded := range map[string]bool{"-usage=false": false, "-usage": true} {
		url, rdb := ownClient(t)
		commands := redistest.Commands(t, rdb, func() { worked(t, url, "ab", flag) })
		keys := append(rdb.Keys(t.Context(), "hw:*!used:*").Val(), rdb.Keys(t.Context(), "hw:*!scopes:*").Val()...)
		if (len(keys) > 0) != recorded || (commands["hincrby"] > 0) != recorded || (commands["zincrby"] > 0) != recorded {
			t.Errorf("%s: the keys %q and commands %v", flag, keys, commands)
		}
	}
}

// "For each shadow rule that counts at SCOPE itself it tells of how many starts, and how many of them would have waited", in a scope that
// has no other rules too; and worker inspect scope how it stands.
func TestInspectShadows(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, url: ownRedis(t)}
	limits := limitsFile(t, "limits: {p: {rules: [{name: trial, algorithm: sliding-window, limit: 2, per: 30d, shadow: true}]}}\n")
	a := newAPI(t, nil)
	r := start(t, whole, nil, "-redis", i.url, "-limits", limits, "-allow-host", a.host())
	r.says("msg=ready")
	for _, id := range "abcde" {
		enqueue(t, open(t, i.url), a.task("p/acme", string(id)))
	}
	redistest.WaitFor(t, "the tasks to run", bound, func() bool { return a.calls.Load() == 5 })
	out := ""
	redistest.WaitFor(t, "the shadow to be charged", bound, func() bool {
		out, _ = i.run(0, "scope", "p/acme")
		return strings.Contains(out, "shadow     rule trial of p, which stops no task: 0 of 2 left\n")
	})
	r.quits()
	i.says(0, "usage p", "shadow rule trial of p: of 5 starts since ", " 3 would have waited\n")
	got := i.objects("usage", "p")
	if shadows := fmt.Sprint(got[len(got)-1]["shadows"]); shadows != "[map[rule:trial starts:5 would_have_waited:3]]" {
		t.Errorf("got %s", shadows)
	}
	if shadows := fmt.Sprint(i.objects("scope", "p/acme")[0]["shadows"]); shadows != "[map[limit:2 remaining:0 rule:trial rule_scope:p]]" {
		t.Errorf("got %s", shadows)
	}
}

// "Without SCOPE: the scopes in which most tasks wait."
func TestInspectWaiting(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	if out, _ := i.run(0, "scope"); out != "no task waits\n" {
		t.Errorf("got %q", out)
	}
	i.use("p {*}/x")
	for n := range 3 {
		i.enqueue(queue.Task{Scope: "p {*}/x", ID: fmt.Sprint("x", n)})
	}
	i.enqueue(queue.Task{Scope: "p {*}/y", ID: "y"})
	got := i.objects("scope", "-limit", "1")
	if len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	want(t, got[0], map[string]any{"scope": "p {*}/x", "waiting": 3.0, "reason": "rule", "rule": "account", "rule_scope": "p {*}"})
	want(t, got[1], map[string]any{"summary": true, "scopes": 2.0, "more": false})
	at(t, got[0]["first_since"])
	at(t, got[0]["next_start"])
	i.says(0, "scope -limit 1", "WAITING  SCOPE ", "\n3        p {*}/x  2", ", by rule account of p {*}\nthe fullest of 2 scopes; -limit N lists more\n")
}

// "What is used and left of each rule, and when it resets", in inspect scope and limits show.
func TestInspectRules(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	i.use("p {*}/x")
	i.use("runs")
	i.enqueue(queue.Task{Scope: "p {*}/x", ID: "a"})
	out, _ := i.run(0, "scope", "p {*}/x")
	says(t, out, "rule       account of p {*}: 1 of 1 used, 0 left; 1 waiting; resets in ", "rule       tenant of p {*}/x: ")
	i.says(0, "scope runs", "rule       parallel of runs: 1 of 1 places taken, 0 free\n")
	rules, _ := i.objects("scope", "runs")[0]["rules"].([]any)
	if len(rules) != 1 {
		t.Fatalf("got %v", rules)
	}
	want(t, rules[0].(map[string]any), map[string]any{"rule": "parallel", "algorithm": "concurrency", "limit": 1.0, "used": 1.0, "remaining": 0.0, "reset": nil})
	l := &limited{t: t, url: i.url}
	out, _ = l.run(0, "show", "p {*}/x")
	says(t, out, "; 1 of 1 used, 0 left; 1 waiting; resets at 2")
	l.says(0, "-json show runs", `"used":1,"remaining":0`)
}

// "day: a line for each day, by UTC, instead of who spent; day,spender: who spent on each day."
func TestInspectUsedByDay(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, url: ownRedis(t)}
	r, err := usages.New(open(t, i.url), usages.Config{App: "mailer"})
	must(t, err)
	r.SpentCosts("p", usages.By{Queue: "q", Type: "mail", EnqueuedBy: "shop"}, policy.Costs{"requests": 5, "tokens": 70})
	r.Spent("p", usages.By{Queue: "q", Type: "call"}, 2)
	must(t, r.Flush(t.Context()))
	day := time.Now().UTC().Format(time.DateOnly)
	got := i.objects("usage", "p", "-since", "7d", "-by", "day")
	if n := len(got); n < 9 || n > 10 { // eight days, or nine where one began, and the sums
		t.Fatalf("%d objects: %v", n, got)
	}
	want(t, got[0], map[string]any{"units": 0.0, "tasks": 0.0, "app": nil})
	want(t, got[len(got)-1], map[string]any{"summary": true, "units": 7.0, "tasks": 2.0})
	if text := fmt.Sprint(got[len(got)-1]["by_unit"]); text != "map[tokens:70]" {
		t.Errorf("got %s", text)
	}
	spenders := i.objects("usage", "p", "-since", "1h", "-by", "day,spender")
	n := len(spenders)
	if n < 4 {
		t.Fatal(spenders)
	}
	want(t, spenders[n-4], map[string]any{"day": day, "app": "mailer", "type": "mail", "units": 5.0, "enqueued_by": "shop"})
	want(t, spenders[n-3], map[string]any{"day": day, "app": "mailer", "type": "call", "units": 2.0})
	want(t, spenders[n-2], map[string]any{"day": day, "units": 7.0, "tasks": 2.0, "other_units": 0.0})
	i.says(0, "usage p -since 31d -by day", "7 units, 70 tokens in 2 tasks spent from p since ", "\n"+day+"  7      70      2")
	i.says(0, "usage p -since 1m -by day,spender", "ENQUEUED BY", day+"  5      70      1      mailer  q      mail")
	_, errs := i.run(cli.ExitUsage, "usage", "p", "-by", "hour")
	says(t, errs, `-by "hour" is unknown`)
}

// "Whether rules hold that do so only in certain hours", and when that changes.
func TestInspectHours(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	hour := func(d time.Duration) int { return now.Add(d * time.Hour).Hour() }
	limits := limitsFile(t, fmt.Sprintf(`limits: {p: {rules: [{name: off, algorithm: concurrency, limit: 1, active: "* %d * * *"},
  {name: on, algorithm: concurrency, limit: 1, active: "* %d,%d,%d * * *"}]}}`,
		hour(12), hour(-1), hour(0), hour(1)))
	out, _ := ask(t, cli.ExitOK, "inspect", "-redis", ownRedis(t), "-limits", limits, "scope", "p/x")
	for _, line := range []string{"hours      rule off of p does not hold, until ", "hours      rule on of p holds until "} {
		if !strings.Contains(out, line+now.Format("2006-")) && !strings.Contains(out, line+now.Add(24*time.Hour).Format("2006-")) {
			t.Errorf("no line %q in\n%s", line, out)
		}
	}
}
