package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	usages "github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker"
)

const inspectLimits = `limits:
  p {*}:
    rules: [{name: account, algorithm: fixed-window, limit: 1, per: 30d}]
    scopes:
      "*":
        rules: [{name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 100}]
  runs:
    rules: [{name: parallel, algorithm: concurrency, limit: 1}]
  free:
    rules: [{name: r, algorithm: token-bucket, limit: 100000, per: 1s, burst: 100000}]
`

// inspected is a Redis with tasks in it, and the program over it.
type inspected struct {
	t      *testing.T
	url    string
	rdb    redis.UniversalClient
	queue  *queue.Client
	limits *throttle.Limiter
}

func newInspected(t *testing.T) *inspected {
	t.Helper()
	return inspectedUnder(t, inspectLimits)
}

// inspectedUnder has published the limits.
func inspectedUnder(t *testing.T, limits string) *inspected {
	t.Helper()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	i := &inspected{t: t}
	i.url, i.rdb = ownClient(t)
	i.limits, err = throttle.New(i.rdb, policy, throttle.Config{})
	must(t, err)
	_, _, err = policystore.New(i.rdb, policystore.Config{}).PublishFile(t.Context(), "worker", policy, false)
	must(t, err)
	i.queue = queue.NewClient(i.rdb, queue.ClientConfig{Limiter: i.limits})
	return i
}

func (i *inspected) enqueue(tasks ...queue.Task) {
	i.t.Helper()
	for _, task := range tasks {
		task.Type = "work"
		_, err := i.queue.Enqueue(i.t.Context(), task)
		must(i.t, err)
	}
}

// use takes the one unit that a scope has.
func (i *inspected) use(scope string) {
	i.t.Helper()
	if d, err := i.limits.Allow(i.t.Context(), scope); err != nil || !d.Allowed {
		i.t.Fatalf("%+v, %v", d, err)
	}
}

// run runs the program, and wants an exit code.
func (i *inspected) run(code int, args ...string) (stdout, stderr string) {
	i.t.Helper()
	flags := []string{"inspect", "-redis", i.url}
	if at := slices.Index(args, "usage"); at >= 0 { // it has flags of its own, which follow
		flags, args = slices.Insert(flags, 1, "usage"), slices.Delete(slices.Clone(args), at, at+1)
	}
	return ask(i.t, code, append(flags, args...)...)
}

// says runs the program with the words of a line, and holds what it prints, or of a failure says, against parts.
func (i *inspected) says(code int, line string, parts ...string) {
	i.t.Helper()
	out, errs := i.run(code, strings.Fields(line)...)
	says(i.t, out+errs, parts...)
}

// objects runs the program and reads the objects that it prints.
func (i *inspected) objects(args ...string) []map[string]any {
	i.t.Helper()
	out, _ := i.run(0, append([]string{"-json"}, args...)...)
	return objects(i.t, out)
}

// want holds some fields of an object against what they shall be, and nil for those that shall be absent.
func want(t *testing.T, got map[string]any, fields map[string]any) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if v := fields[name]; v != got[name] {
			t.Errorf("%s is %v, want %v, in %v", name, got[name], v, got)
		}
	}
}

// at reads a time of an object.
func at(t *testing.T, v any) time.Time {
	t.Helper()
	text, _ := v.(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Error(err)
	}
	return at
}

// "How many tasks of SCOPE, and of all scopes below it, wait for their turn …; when
// the next is expected to start, and which rule that one waits for."
func TestInspectScope(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	const provider, hostile = "p {*}", "p {*}/a:b!line %2F"
	none := map[string]any{"waiting": 0.0, "queues": 0.0, "dispatched": 0.0, "active": 0.0, "next_start": nil, "rule": nil, "rule_scope": nil}
	want(t, i.objects("scope", provider)[0], none)
	out, _ := i.run(0, "scope", provider)
	says(t, out, "next       no task waits\n")

	i.use(hostile)
	i.enqueue(queue.Task{Scope: hostile, ID: "a"}, queue.Task{Scope: hostile, ID: "b", Queue: "low"}, queue.Task{Scope: provider + "/c", ID: "c"})
	for scope, waiting := range map[string]float64{provider: 3, hostile: 2} {
		got := i.objects("scope", scope)[0]
		want(t, got, map[string]any{"scope": scope, "waiting": waiting, "queues": waiting - 1, "rule": "account", "rule_scope": provider})
		if next := at(t, got["next_start"]); next.Before(at(t, got["at"])) {
			t.Errorf("the next starts at %s in %v", next, got)
		}
	}
	want(t, i.objects("scope", "free")[0], none)
	out, _ = i.run(0, "scope", hostile)
	says(t, out, "scope      "+hostile, "waiting    2", "dispatched 0", "active     0, held or running", "next       in ")
	out, _ = i.run(0, "scope", provider)
	says(t, out, "waiting    3 in the queues of 2 scopes\n", ", by rule account of p {*}\n")

	i.use("runs")
	i.enqueue(queue.Task{Scope: "runs", ID: "r"})
	want(t, i.objects("scope", "runs")[0], map[string]any{"waiting": 1.0, "next_start": nil, "rule": "parallel", "rule_scope": "runs"})
	out, _ = i.run(0, "scope", "runs")
	says(t, out, "next       unknown, by rule parallel of runs\n")
}

// "And are with a worker, held there until their start comes or running."
func TestInspectActive(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	release := make(chan struct{})
	bareServer(t, i.rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-release; return nil }))
	t.Cleanup(func() { close(release) })
	for _, task := range []queue.Task{{Scope: "free", ID: "a"}, {Scope: "free/x", ID: "a", Queue: "low"}, {Scope: "runs", ID: "b"}} {
		task.Type = "work"
		enqueue(t, i.rdb, task) // it waits for no turn
	}
	redistest.WaitFor(t, "the tasks run", bound, func() bool {
		return i.objects("scope", "free")[0]["active"] == 2.0 && i.objects("scope", "free/x")[0]["active"] == 1.0
	})
	for _, one := range i.objects("task", "a") {
		want(t, one, map[string]any{"id": "a", "state": "active", "turn": "none", "position": nil, "start": nil})
	}
	if out, _ := i.run(0, "task", "a"); strings.Count(out, "turn       with a worker, held until its start or running\n") != 2 || !strings.Contains(out, "\n\ntask       a\n") {
		t.Errorf("got %s", out)
	}
}

// "The state of the task, its position in the queue of its scope, the rule waits for and when it is expected to start."
func TestInspectTask(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	const scope = "p {*}/a:b!line %2F"
	ids := []string{"-one {*}", "0b7c6a52-9f0e-4f37-a1d2-3a2f1f1d6f10", "thrée/:!\"<&>"}
	i.use(scope)
	for _, id := range ids {
		i.enqueue(queue.Task{Scope: scope, ID: id})
	}
	for n, id := range ids {
		got := i.objects("task", "--", id)
		if len(got) != 1 {
			t.Fatalf("%q: %v", id, got)
		}
		want(t, got[0], map[string]any{
			"id": id, "queue": "default", "type": "work", "state": "scheduled", "scope": scope, "cost": 1.0,
			"turn": "waiting", "position": float64(n + 1), "rule": "account", "rule_scope": "p {*}", "error": nil,
		})
		if start, due := at(t, got[0]["start"]), at(t, got[0]["next_process_at"]); start.Before(time.Now()) || due.Before(start) {
			t.Errorf("it starts at %s and is due at %s", start, due)
		}
	}
	out, _ := i.run(0, "task", ids[1])
	says(t, out, "position   2 in the queue of its scope\n", "start      in ", ", by rule account of p {*}\n", "due        in ", ", unless its turn comes before\n")

	i.use("runs")
	i.enqueue(queue.Task{Scope: "runs", ID: "r"})
	want(t, i.objects("task", "r")[0], map[string]any{"turn": "waiting", "position": 1.0, "start": nil, "rule": "parallel"})
}

// A failure prints what is wrong and what to try on stderr, and nothing on stdout.
func TestInspectFaults(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	bare, gone := &inspected{t: t, url: ownRedis(t)}, &inspected{t: t, url: "redis://127.0.0.1:1"}
	for _, c := range []struct {
		on         *inspected
		line, want string
	}{
		{i, "task inv-1", "there is no task inv-1 (there is no queue yet)"},
		{i, "scope nobody/knows", `scope "nobody/knows" meets no rule`},
		{i, "-limits none.yaml scope free", "there is no limits file"},
		{bare, "scope free", "there are no limits at "},
		{gone, "scope free", "nothing listens at"},
	} {
		out, errs := c.on.run(cli.ExitFailed, strings.Fields(c.line)...)
		if out != "" || !strings.Contains(errs, c.want) || !strings.HasPrefix(errs, "worker inspect ") {
			t.Errorf("%s: stdout %q, stderr %q", c.line, out, errs)
		}
	}
}

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
