package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
)

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
	out, _ := i.run(0, "scope", "-limit", "1")
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "WAITING  SCOPE ") || !strings.HasPrefix(lines[1], "3        p {*}/x  2") ||
		!strings.HasSuffix(lines[1], ", by rule account of p {*}") || lines[2] != "the fullest of 2 scopes; -limit N lists more" {
		t.Errorf("got\n%s", out)
	}
	if _, errs := i.run(2, "scope", "-limit", "0"); !strings.Contains(errs, "-limit 0 is not from 1 to 1000") {
		t.Errorf("got %s", errs)
	}
}

// "What is used and left of each rule, and when it resets", in inspect scope and limits show.
func TestInspectRules(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	i.use("p {*}/x")
	i.use("runs")
	i.enqueue(queue.Task{Scope: "p {*}/x", ID: "a"})
	out, _ := i.run(0, "scope", "p {*}/x")
	for _, text := range []string{"rule       account of p {*}: 1 of 1 used, 0 left; 1 waiting; resets in ", "rule       tenant of p {*}/x: "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if out, _ := i.run(0, "scope", "runs"); !strings.Contains(out, "rule       parallel of runs: 1 of 1 places taken, 0 free\n") {
		t.Errorf("got\n%s", out)
	}
	rules, _ := i.objects("scope", "runs")[0]["rules"].([]any)
	if len(rules) != 1 {
		t.Fatalf("got %v", rules)
	}
	want(t, rules[0].(map[string]any), map[string]any{"rule": "parallel", "algorithm": "concurrency", "limit": 1.0, "used": 1.0, "remaining": 0.0, "reset": nil})
	shown := i.show("p {*}/x")
	if !strings.Contains(shown, "; 1 of 1 used, 0 left; 1 waiting; resets at 2") {
		t.Errorf("limits show says\n%s", shown)
	}
	if shown := i.show("-json", "runs"); !strings.Contains(shown, `"used":1,"remaining":0`) {
		t.Errorf("limits show says\n%s", shown)
	}
}

// show runs "worker limits show".
func (i *inspected) show(args ...string) string {
	i.t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"limits", "show", "-redis", "redis://" + i.server.Addr()}, args...)
	if code := run(i.t.Context(), args, noEnv, &out, &errs); code != 0 {
		i.t.Fatalf("%q: exit %d, %s", args, code, errs.String())
	}
	return out.String()
}
