package main

import (
	"testing"
)

// -dry-run says what a change would do, in the words that the change has, and changes nothing.
func TestLimitsDryRun(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	out, _ := l.run(0, "set", "payments/acme", "tenant", "limit=7", "-dry-run")
	says(t, out, "dry run over version 1: nothing was changed", "+ payments/acme {name: tenant, ", "limit: 7", "no task waits there", "!in force")
	out, _ = l.run(0, "pause", "payments", "-for", "1h", "-dry-run")
	says(t, out, "+ payments paused until 20")
	got := l.objects("pause", "payments", "-dry-run")
	want(t, got[0], map[string]any{"dry_run": true, "version": 1.0, "rules": 1.0})
	out, _ = l.run(0, "reset", "payments", "-dry-run")
	says(t, out, "payments account would be reset; it has counted 0 requests")
	_, errs := l.run(1, "reset", "payments/acme/x", "-dry-run")
	says(t, errs, "no rate rule counts at payments/acme/x itself")
	_, errs = l.run(1, "pause", "paymemts", "-dry-run")
	says(t, errs, "the limits do not name paymemts; did you mean payments?")
	if history := l.objects("history"); len(history) != 1 {
		t.Errorf("a dry run changed the limits: %v", history)
	}
	l.run(0, "pause", "payments")
	want(t, l.objects("history")[1], map[string]any{"change": "pause payments", "via": "cli"})
	_, errs = l.run(2, "list", "-dry-run")
	says(t, errs, "-dry-run does not go with worker limits list")
}
