package main

import (
	"context"
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
	"github.com/headway-go/headway/throttle/policystore"
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
	got := i.objects("task", "a")
	if len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	for _, one := range got {
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

// What can't be told is told in two lines, with what to try, and nothing on stdout.
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
