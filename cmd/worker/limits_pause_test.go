package main

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// What a person does who stops a vendor for a while, and what the program says.
func TestLimitsPause(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.says(0, "pause payments -for 1h -as bert", "version 2 by bert (user default), in force at ", "+ payments paused until 20", "!before by")
	l.says(0, "list", "payments paused until 20", "  # set by bert (user default) at 20", "!since", "payments {name: account")
	l.says(0, "pause payments -as anna", "paused before by bert (user default) at 20", "- payments paused until 20", "+ payments paused\n")
	l.says(0, "show payments/acme/x", "payments paused  # set by anna (user default) at 20", ", since 20", "{name: account", "{name: tenant")
	out, _ := l.run(0, "export")
	says(t, out, "paused: true")
	paused := limitsFile(t, out)
	l.says(1, "diff "+limitsFile(t, liveLimits), "- payments paused\n", "!+")
	l.run(0, "diff", paused)

	l.run(0, "pause", "payments/*")
	l.says(0, "resume payments", "- payments paused", "!+")
	l.says(0, "resume payments/acme -as bert", "+ payments/acme not paused")
	l.says(0, "show payments/acme", "!paused")
	got := l.objects("list")
	want(t, got[1], map[string]any{"scope": "payments/*", "rule": "/paused", "text": "paused: true", "from": "set", "until": nil})
	want(t, got[3], map[string]any{"scope": "payments/acme", "rule": "/paused", "text": "paused: false", "from": "set", "updated_by": "bert"})

	l.run(0, "import", "-replace", paused)
	l.says(0, "list", "payments paused  # imported by", "payments/* paused  # set by", "payments/acme not paused  # set by bert")
	for args, want := range map[string]string{
		"pause payments/*":                         "it is so already",
		"resume payments/globex/x":                 "payments/globex/x is not paused itself; payments/globex is",
		"resume mail":                              "mail is not paused",
		"set payments/acme /paused unlimited=true": "name holds a '/'",
	} {
		l.says(1, args, want, "!goroutine")
	}
}

// "drain: pause, then wait until no task of SCOPE runs any more." Whatever ends that, the pause stays.
func TestLimitsDrain(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	ends := map[string]chan struct{}{"payments/a": make(chan struct{}), "payments/b/x": make(chan struct{})}
	bareServer(t, rdb, asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		<-ends[task.Headers()[queue.HeaderScope]]
		return nil
	}))
	t.Cleanup(func() {
		for _, end := range ends {
			close(end)
		}
	})
	for scope := range ends {
		enqueue(t, rdb, queue.Task{Type: "work", Scope: scope})
	}
	redistest.WaitFor(t, "both to run", bound, func() bool {
		info, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
		return err == nil && info.Active == 2
	})

	_, errs := l.run(1, "drain", "payments", "-timeout", "1500ms", "-as", "anna")
	says(t, errs, "worker limits drain: 2 tasks of payments still run\n", "2 tasks of payments still run after 1.5s; payments stays paused", "try: worker limits drain payments again")
	l.says(0, "drain payments/a/*", "+ payments/a/* paused", "no task of payments/a/* runs; it stays paused until worker limits resume payments/a/*\n")
	l.run(0, "resume", "payments")

	r := start(t, whole, nil, "limits", "-redis", l.url, "drain", "payments/*")
	r.says("2 tasks of payments/* still run")
	r.stop()
	r.ends(cli.ExitInterrupted)
	says(t, r.stderr.String(), "interrupted; payments/* stays paused\ntry: worker limits resume payments/*\n")
	l.says(0, "list", "payments/* paused")

	r = start(t, whole, nil, "limits", "-redis", l.url, "drain", "payments/a", "-json") // the others may go on
	r.says("1 task of payments/a still runs")
	ends["payments/a"] <- struct{}{}
	r.ends(cli.ExitOK)
	says(t, r.stdout.String(), `{"scope":"payments/a","drained":true,"running":0,"waited_ms":`)
}

// "Which rule it waits for" is the pause, and who made it.
func TestInspectPaused(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	l := &limited{t: t, url: i.url}
	l.run(0, "import", "-replace", limitsFile(t, inspectLimits))
	l.run(0, "pause", "free", "-for", "1h", "-as", "anna")
	l.run(0, "pause", "runs", "-as", "bert")
	policy, err := limitsyaml.Parse("limits", []byte(l.objects("export")[0]["limits"].(string)))
	must(t, err)
	i.limits.SetPolicy(policy)
	want(t, i.objects("scope", "free")[0], map[string]any{"paused_scope": "free", "paused_by": "anna", "waiting": 0.0, "rule": nil})
	i.enqueue(queue.Task{Scope: "free/x", ID: "f"}, queue.Task{Scope: "runs", ID: "r"})
	got := i.objects("scope", "free")[0]
	want(t, got, map[string]any{"paused_scope": "free", "paused_by": "anna", "waiting": 1.0, "rule": "/paused", "rule_scope": "free", "next_start": got["paused_until"]})
	if until := at(t, got["paused_until"]); until.Sub(at(t, got["paused_since"])) != time.Hour {
		t.Errorf("%v", got)
	}
	want(t, i.objects("scope", "runs")[0], map[string]any{"paused_by": "bert", "paused_until": nil, "next_start": nil, "rule": "/paused"})
	got = i.objects("task", "f")[0]
	want(t, got, map[string]any{"turn": "waiting", "position": 1.0, "paused_scope": "free", "paused_by": "anna", "rule": "/paused", "rule_scope": "free", "start": got["paused_until"]})
	i.says(0, "task f", "paused     free, since 20", ", by anna (user default), until 20", "start      in 59m", ", after the pause of free\n")
	i.says(0, "task r", "paused     runs, since 20", ", by bert (user default)\n", "start      when runs is resumed\n")
	want(t, i.objects("scope", "p {*}")[0], map[string]any{"paused_scope": nil})
	i.says(0, "-limits "+limitsFile(t, inspectLimits+"  given: {paused: true}\n")+" scope given", "paused     given\n", "!since")
}
