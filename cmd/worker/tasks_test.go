package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/internal/control"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// Tasks that wait are counted, changed and cancelled by the command line, which says of how many, and why others were left.
func TestTasks(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 1, per: 30d}]}}"))
	must(t, err)
	if _, _, err := policystore.New(rdb, policystore.Config{}).PublishFile(t.Context(), "worker", p, nil); err != nil {
		t.Fatal(err)
	}
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	must(t, err)
	if d, err := limiter.Allow(t.Context(), "p/a"); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for i := range 5 {
		if _, err := tasks.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a", ID: fmt.Sprint("t", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := queue.NewClient(rdb, queue.ClientConfig{}).Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a", ID: "pending"}); err != nil {
		t.Fatal(err)
	}
	if _, err := queue.NewClient(rdb, queue.ClientConfig{}).Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a", ID: "failed"}); err != nil {
		t.Fatal(err)
	}
	if err := asynq.NewInspectorFromRedisClient(rdb).ArchiveTask("default", "failed"); err != nil {
		t.Fatal(err)
	}
	ask := func(code int, line string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args := append([]string{"tasks", "-redis", "redis://" + server.Addr()}, strings.Fields(line)...)
		if got := run(t.Context(), args, noEnv, &out, &errs); got != code {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, got, out.String(), errs.String())
		}
		return out.String() + errs.String()
	}
	for _, c := range []struct {
		code int
		line string
		want string
	}{
		{0, "cancel -scope p -dry-run", "dry run: it would be 5 tasks; nothing was changed"},
		{0, "cancel t0 -dry-run", "dry run: it would be 1 task; nothing was changed"},
		{0, "run t3", "1 task to start next"},
		{0, "run failed", "1 task to start next"},
		{1, "run failed", "0 tasks to start next; 1 left: next to be taken by a worker"},
		{1, "run pending", "0 tasks to start next; 1 left: next to be taken by a worker"},
		{0, "move -to p/b t1 t2", "2 tasks moved"},
		{0, "priority -set 5 -scope p/b", "2 tasks changed"},
		{0, "cancel -scope p/a -limit 1", "1 task cancelled; more wait; run it again"},
		{0, "cancel -scope p -queue low", "0 tasks cancelled"},
		{1, "cancel none", "there is no task none (queues: default)"},
		{1, "move -to nowhere t1", "scope \"nowhere\" meets no rule"},
		{1, "priority -set 9000000 t1", "priority 9000000 is not from -1000000 to 1000000"},
		{2, "", "nothing to do: run, move, cancel, clear or priority"},
		{2, "delete t1", `tasks cannot be changed by "delete"`},
		{2, "cancel", "no task is named, and no -scope"},
		{2, "cancel t1 -scope p", "tasks are named by their ids or by -scope, not by both"},
		{2, "cancel t1 -to p/b", "-to does not go with worker tasks cancel"},
		{2, "move t1", "worker tasks move needs -to"},
		{2, "cancel -scope p -limit 0", "-limit 0 is not from 1 to 10000"},
		{2, "history t1", "worker tasks history takes no ids"},
		{2, "history -scope p", "-scope does not go with worker tasks history"},
		{0, "priority -set 7 -scope p/b -as anna -reason urgent", "2 tasks changed"},
		{0, "history", "  anna  priority 2 tasks of p/b to priority 7 (urgent)\n"},
		{0, "history", "cancel 1 task of p/a\n"},
		{0, "history -json", `"by":"anna","via":"cli","verb":"priority","scope":"p/b"`},
	} {
		if got := ask(c.code, c.line); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
	lines := strings.Split(strings.TrimSpace(ask(0, "cancel -scope p/b -json -reason test")), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	var one, all map[string]any
	if json.Unmarshal([]byte(lines[0]), &one) != nil || json.Unmarshal([]byte(lines[2]), &all) != nil {
		t.Fatalf("%q", lines)
	}
	want(t, one, map[string]any{"queue": "default", "scope": "p/b", "outcome": "changed"})
	want(t, all, map[string]any{"tasks": 2.0, "changed": 2.0})
	for _, c := range []struct {
		code int
		line string
		want string
	}{
		{2, "clear", "worker tasks clear takes one scope"},
		{2, "clear p q", "worker tasks clear takes one scope"},
		{2, "clear p -queue low", "-queue does not go with worker tasks clear"},
		{2, "clear p -limit 5", "-limit does not go with worker tasks clear"},
		{0, "clear p -dry-run", "dry run: it would be 2 tasks; nothing was changed"},
		{0, "clear p/b", "worker: cancelling 0 tasks of p/b and below it\n"},
		{0, "clear p -as anna -reason wrong", "2 tasks cancelled\nworker: cancelling 2 tasks of p and below it\n"},
		{0, "clear p -json", `{"tasks":0,"changed":0}`},
		{0, "history", "  anna  clear 2 tasks of p (wrong)\n"},
	} {
		if got := ask(c.code, c.line); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
}

// "worker tasks clear" goes on in steps until none is left, and prints the sum of them.
func TestTasksClearGoesOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h}]}}"))
	must(t, err)
	store := policystore.New(rdb, policystore.Config{})
	if _, _, err := store.PublishFile(t.Context(), "worker", p, nil); err != nil {
		t.Fatal(err)
	}
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	must(t, err)
	tasks := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for i := range 5 {
		if _, err := tasks.Enqueue(t.Context(), queue.Task{Type: "work", Scope: fmt.Sprint("p/", i), ID: fmt.Sprint("t", i)}); err != nil {
			t.Fatal(err)
		}
	}
	service := control.New(control.Config{Redis: rdb, Limiter: limiter, Store: store})
	var out, errs bytes.Buffer
	c := &tasksCommand{change: control.TaskChange{Verb: control.VerbClear, Scope: "p", Most: 2}, json: true, out: &out, errs: &errs}
	must(t, c.clear(t.Context(), service, atCommandLine("anna")))
	if got := out.String(); strings.Count(got, `"outcome":"changed"`) != 5 || !strings.HasSuffix(got, `{"tasks":5,"changed":5}`+"\n") || !strings.Contains(errs.String(), "cancelling 5 tasks of p ") {
		t.Errorf("%s%s", got, errs.String())
	}
}
