package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	usages "github.com/headway-go/headway/throttle/usage"
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

// "day: a line for each day, by UTC, instead of who spent; day,spender: who spent on each day."
func TestInspectUsedByDay(t *testing.T) {
	t.Parallel()
	i := &inspected{t: t, server: redistest.NewServer(t)}
	r, err := usages.New(i.server.Client(t), usages.Config{App: "mailer"})
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
		t.Fatalf("%v", spenders)
	}
	want(t, spenders[n-4], map[string]any{"day": day, "app": "mailer", "type": "mail", "units": 5.0, "enqueued_by": "shop"})
	want(t, spenders[n-3], map[string]any{"day": day, "app": "mailer", "type": "call", "units": 2.0})
	want(t, spenders[n-2], map[string]any{"day": day, "units": 7.0, "tasks": 2.0, "other_units": 0.0})
	if text := fmt.Sprint(spenders[n-2]["by_unit"]); text != "map[tokens:70]" {
		t.Errorf("got %s", text)
	}

	out, _ := i.run(0, "usage", "p", "-since", "31d", "-by", "day")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 3+32 || !strings.HasPrefix(lines[0], "7 units in 2 tasks spent from p since ") || strings.Join(strings.Fields(lines[2]), " ") != "DAY UNITS TOKENS TASKS" ||
		strings.Join(strings.Fields(lines[len(lines)-1]), " ") != day+" 7 70 2" {
		t.Errorf("got %s", out)
	}
	out, _ = i.run(0, "usage", "p", "-since", "1m", "-by", "day,spender")
	if !strings.Contains(out, "ENQUEUED BY") || !strings.Contains(out, day+"  5      70      1      mailer  q      mail") {
		t.Errorf("got %s", out)
	}
	if _, stderr := i.run(cli.ExitUsage, "usage", "p", "-by", "hour"); !strings.Contains(stderr, "write day, or day,spender") {
		t.Errorf("got %s", stderr)
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

func TestInspectUsageFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"nothing":      {2, []string{"usage"}, "no scope given"},
		"an empty one": {2, []string{"usage", ""}, "no scope given"},
		"two":          {2, []string{"usage", "a", "b"}, `one scope at a time, and "b" is a second one`},
		"a star":       {2, []string{"usage", "p/*"}, "stands for every name"},
		"too long":     {2, []string{"usage", "p", "-since", "32d"}, "-since 768h0m0s is not above 0 and at most 31 days"},
		"no time":      {2, []string{"usage", "p", "-since", "0s"}, "-since 0s is not above 0"},
		"a word":       {2, []string{"usage", "p", "-since", "x"}, "-since"},
		"flags first":  {2, []string{"-json", "usage", "p"}, "try: worker inspect usage SCOPE [flags]"},
		"no Redis":     {1, []string{"usage", "-redis", "redis://127.0.0.1:1", "p"}, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"inspect"}, c.args...), noEnv, &out, &errs)
			if code != c.code || !strings.Contains(errs.String(), c.want) || !strings.Contains(errs.String(), "try: ") || out.Len() > 0 {
				t.Errorf("exit %d, %s%s", code, out.String(), errs.String())
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"inspect", "usage", "-redis", "redis://" + redistest.NewServer(t).Addr(), "p"}, noEnv, &out, &errs); code != 130 {
		t.Errorf("interrupted: exit %d, %s", code, errs.String())
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
