package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// docs/limits.md: "history prints what each version has changed", in text and as objects.
func TestHistorySaysWhatChanged(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "set", "payments/acme", "tenant", "limit=100", "-as", "bert")
	l.run(0, "set", "payments/acme", "tenant", "limit=500", "-for", "1h")
	l.run(0, "pause", "payments", "-for", "1h")
	l.run(0, "assign", "payments", "owner=team", "weight=3")
	l.run(0, "rollback", "2")
	out, _ := l.run(0, "history")
	says(t, out,
		"\n  + payments {name: account, algorithm: sliding-window, limit: 200, per: 1s}\n",
		"  - payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}\n  + payments/acme {name: tenant, algorithm: token-bucket, limit: 500, per: 1s, burst: 5}, until 20",
		"\n  + payments paused until 20", "\n  + payments owner: team\n  + payments weight: 3\n", "\n  - payments owner: team\n  - payments paused until 20")
	history := l.objects("history")
	want(t, history[1], map[string]any{"version": 2.0, "by": "bert", "rules": 1.0})
	one := history[1]["diff"].([]any)[0].(map[string]any)
	if len(one) != 3 || one["scope"] != "payments/acme" || one["rule"] != "tenant" || one["after"] != "{name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}" {
		t.Errorf("%v", one)
	}
	at(t, history[2]["diff"].([]any)[0].(map[string]any)["after_until"])
}

// "diff compares two versions, or a version and a file".
func TestDiffOfVersions(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "set", "payments", "account", "limit=100")
	l.run(0, "set", "payments", "account", "limit=50", "-for", "1h")
	was, is := "payments {name: account, algorithm: sliding-window, limit: %d, per: 1s}", "payments {name: account, algorithm: sliding-window, limit: %d, per: 1s}"
	lines := func(before, after int) string { return fmt.Sprintf("- "+was+"\n+ "+is+"\n", before, after) }
	file := limitsFile(t, strings.Replace(liveLimits, "limit: 200", "limit: 70", 1))
	for args, want := range map[string]string{
		"1 2": lines(200, 100), "2 1": lines(100, 200), "2 2": "", "1": lines(50, 200),
		file: lines(50, 70), "2 " + file: lines(100, 70), file + " 2": lines(70, 100), file + " " + file: "",
	} {
		code := 0
		if want != "" {
			code = 1
		}
		if out, _ := l.run(code, append([]string{"diff"}, strings.Fields(args)...)...); out != want {
			t.Errorf("diff %s:\n%swant\n%s", args, out, want)
		}
	}
	out, _ := l.run(1, "diff", "1", "3")
	says(t, out, "limit: 50, per: 1s}, until 20", "+ payments {name: account, algorithm: sliding-window, limit: 100, per: 1s}, from 20")
	_, errs := l.run(1, "diff", "1", "30")
	says(t, errs, "version 30 of the limits is not kept any more", "try: worker limits history")
	number := filepath.Join(t.TempDir(), "12")
	must(t, os.WriteFile(number, []byte(liveLimits), 0o600))
	l.run(1, "diff", number)
}
