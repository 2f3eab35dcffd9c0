package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/upstream"
)

const poolLimits = `limits:
  github:
    pool: {members: [alice, bob, ci, dan], choose: drain}
    scopes:
      "@*": {breaker: {of: 20}, rules: [{name: hour, algorithm: fixed-window, limit: 2, per: 30d}]}
      "@ci": {paused: true}
`

// "Below a pool, the same of each member, and whether a pause or a breaker holds it; SCOPE can be a member."
func TestInspectMembers(t *testing.T) {
	t.Parallel()
	i := inspectedUnder(t, poolLimits)
	i.use("github/acme")
	i.use("github/acme")
	_, err := i.limits.Report(t.Context(), "github/@bob", upstream.Hint{Limited: true, Status: 429, Retry: time.Hour, RetryKnown: true})
	must(t, err)
	must(t, i.limits.OpenBreaker(t.Context(), "github/@dan", 0))
	i.enqueue(queue.Task{Scope: "github/acme", ID: "a"})
	got := i.objects("scope", "github/acme")[0]
	want(t, got, map[string]any{"waiting": 1.0, "reason": "member", "rule": "/members", "rule_scope": "github", "rules": nil})
	members, _ := got["members"].([]any)
	if len(members) != 4 {
		t.Fatalf("%v", got)
	}
	for n, reason := range []any{nil, "upstream", "paused", "breaker"} {
		m := members[n].(map[string]any)
		name := []string{"alice", "bob", "ci", "dan"}[n]
		want(t, m, map[string]any{"member": name, "member_scope": "github/@" + name, "reason": reason})
		rules, _ := m["rules"].([]any)
		if left := []float64{0, 2, 2, 2}[n]; len(rules) != 1 || rules[0].(map[string]any)["remaining"] != left {
			t.Errorf("%s has %v, want %v left", name, rules, left)
		}
		if reason == "upstream" || reason == "breaker" {
			at(t, m["until"])
		}
	}
	i.says(0, "scope github/acme", "with the first member of the pool at github that has room",
		"member     github/@alice: ready: hour, 2 of 2 used, 0 left; resets in ", "member     github/@bob: paused until 2", ", as the API asked: hour, 0 of 2 used",
		"member     github/@ci: paused until it is resumed: hour", "member     github/@dan: its breaker is open, with the next probe at 2")
	i.says(0, "task a", "with the first member of the pool at github that has room")
	i.says(0, "scope", "with the first member of the pool at github that has room")

	out, _ := i.run(0, "scope", "github/@alice")
	if !strings.Contains(out, "rule       hour of github/@alice: 2 of 2 used, 0 left") || strings.Contains(out, "member ") {
		t.Error(out)
	}
	if got := fmt.Sprint(i.objects("scope", "github/@bob")[0]["upstream_scope"]); got != "github/@bob" {
		t.Errorf("the API's pause is that of %s", got)
	}
	want(t, i.objects("scope", "github/@ci")[0], map[string]any{"paused_scope": "github/@ci"})
}
