package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

const usageLimits = `limits:
  p:
    rules: [{name: account, algorithm: token-bucket, limit: 1000, per: 1s, burst: 1000}]
    scopes: {"*": {rules: []}}
`

// worked runs a worker until it has done n tasks of p/acme, and ends it.
func worked(t *testing.T, server *redistest.Server, ids string, args ...string) {
	t.Helper()
	a := newAPI(t, nil)
	args = append(args, "-redis", "redis://"+server.Addr(), "-limits", limitsFile(t, usageLimits), "-allow-host", a.host())
	r := start(t, whole, nil, args...)
	r.says("msg=ready")
	for _, id := range ids {
		task := a.task("p/acme", string(id))
		task.Cost = 3
		enqueue(t, server.Client(t), task)
	}
	redistest.WaitFor(t, "the tasks to run", bound, func() bool { return int(a.calls.Load()) == len(ids) })
	r.stop()
	r.ends(cli.ExitOK)
}

// "Which applications, queues and task types, how many units in how many tasks, and
// when last, most units first": a worker records them, and what it has not sent when it
// is stopped it sends then.
func TestInspectUsed(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, server: redistest.NewServer(t)}
	began := time.Now().Add(-time.Second)
	worked(t, i.server, "ab")
	worked(t, i.server, "cde", "-app", "billing <é>")
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
	out, _ := i.run(0, "usage", "p", "-since", "24h")
	lines := strings.Split(out, "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "15 units in 5 tasks spent from p since ") ||
		!strings.HasPrefix(lines[2], "UNITS  TASKS  APP          QUEUE    TYPE  LAST") ||
		!strings.HasPrefix(lines[3], "9      3      billing <é>  default  http  20") || strings.Contains(out, "others") {
		t.Errorf("got %s", out)
	}
	if out, _ := i.run(0, "usage", "p/other"); !strings.HasPrefix(out, "no spending from p/other is recorded since ") {
		t.Errorf("got %s", out)
	}
}

// "`worker -usage=false` records nothing: no key, no command"
func TestUsageOff(t *testing.T) {
	t.Parallel()
	for flag, recorded := range map[string]bool{"-usage=false": false, "-usage": true} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t)
			rdb := server.Client(t)
			commands := redistest.Commands(t, rdb, func() { worked(t, server, "ab", flag) })
			keys := append(rdb.Keys(t.Context(), "hw:*!used:*").Val(), rdb.Keys(t.Context(), "hw:*!scopes:*").Val()...)
			if (len(keys) > 0) != recorded || (commands["hincrby"] > 0) != recorded || (commands["zincrby"] > 0) != recorded {
				t.Errorf("the keys %q and commands %v", keys, commands)
			}
		})
	}
}

// "For each shadow rule that counts at SCOPE itself it tells of how many starts, and how
// many of them would have waited", in a scope that has no other rules too; and worker
// inspect scope how it stands.
func TestInspectShadows(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, server: redistest.NewServer(t)}
	limits := limitsFile(t, "limits: {p: {rules: [{name: trial, algorithm: sliding-window, limit: 2, per: 30d, shadow: true}]}}\n")
	a := newAPI(t, nil)
	r := start(t, whole, nil, "-redis", "redis://"+i.server.Addr(), "-limits", limits, "-allow-host", a.host())
	r.says("msg=ready")
	for _, id := range "abcde" {
		enqueue(t, i.server.Client(t), a.task("p/acme", string(id)))
	}
	redistest.WaitFor(t, "the tasks to run", bound, func() bool { return a.calls.Load() == 5 })
	out := ""
	redistest.WaitFor(t, "the shadow to be charged", bound, func() bool {
		out, _ = i.run(0, "scope", "p/acme")
		return strings.Contains(out, "shadow     rule trial of p, which stops no task: 0 of 2 left\n")
	})
	r.stop()
	r.ends(cli.ExitOK)
	if out, _ := i.run(0, "usage", "p"); !strings.Contains(out, "shadow rule trial of p: of 5 starts since ") || !strings.Contains(out, " 3 would have waited\n") {
		t.Errorf("got %s", out)
	}
	got := i.objects("usage", "p")
	if shadows := fmt.Sprint(got[len(got)-1]["shadows"]); shadows != "[map[rule:trial starts:5 would_have_waited:3]]" {
		t.Errorf("got %s", shadows)
	}
	if shadows := fmt.Sprint(i.objects("scope", "p/acme")[0]["shadows"]); shadows != "[map[limit:2 remaining:0 rule:trial rule_scope:p]]" {
		t.Errorf("got %s", shadows)
	}
}
