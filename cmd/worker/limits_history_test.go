package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
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

// "history prints the first five rules of a version, and how many more there are": -all and -json have all.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "  p%02d: {rules: [{name: r, algorithm: concurrency, limit: 3}]}\n", i)
	}
	l.run(0, "import", limitsFile(t, "limits:\n"+b.String()))
	out, _ := l.run(0, "history")
	says(t, out, "\n  + p04 {", "!p05", "\n  and 35 more; worker limits history -all prints them\n")
	out, _ = l.run(0, "history", "-all")
	says(t, out, "\n  + p39 {", "! more;")
	if diff := l.objects("history")[1]["diff"].([]any); len(diff) != 40 {
		t.Errorf("%d", len(diff))
	}
}

// What a version changed of one that is not kept is not known, and history says so.
func TestHistoryOfWhatIsNotKept(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "set", "payments", "account", "limit=100")
	rdb := open(t, l.url)
	rdb.HDel(t.Context(), "hw:limits", "v:1")
	out, _ := l.run(0, "history")
	says(t, out, "the version before is not kept any more", "! + payments")
	if _, known := l.objects("history")[0]["rules"]; known {
		t.Error("the number of rules is not known")
	}
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

// docs/limits.md: "-reason says why", of every verb that changes limits; history, list and show print it.
func TestReasonIsShown(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	out, _ := l.run(0, "set", "payments/acme", "tenant", "limit=100", "-reason", "bought more")
	says(t, out, `in force at 20`, `, reason "bought more"`)
	l.run(0, "assign", "payments", "owner=team", "-reason", "ticket 12")
	l.run(0, "pause", "payments", "-reason", "an incident")
	out, _ = l.run(0, "history")
	says(t, out, `set payments/acme tenant limit=100, reason "bought more"`, `pause payments, reason "an incident"`)
	want(t, l.objects("history")[1], map[string]any{"reason": "bought more"})
	for _, command := range [][]string{{"list"}, {"show", "payments/acme"}} {
		out, _ = l.run(0, command...)
		says(t, out, `burst: 5}  # set by`, `, reason "bought more"`, `, reason "ticket 12"`, `, reason "an incident"`)
	}
	want(t, l.objects("show", "payments/acme")[0], map[string]any{"rule": "owner:", "reason": "ticket 12", "created_user": "default"})
	_, errs := l.run(1, "resume", "payments", "-reason", strings.Repeat("x", 501))
	says(t, errs, "the reason is 501 bytes long; the most is 500")
	for name, verb := range limitsVerbs {
		if verb.takes("as") != verb.takes("reason") {
			t.Errorf("%s takes only one of -as and -reason", name)
		}
	}
}

// docs/limits.md: "reset prints how much had been used, and the history keeps it", with who reset it and why.
func TestResetLeavesATrace(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	p, err := limitsyaml.Parse("limits.yaml", []byte(liveLimits))
	must(t, err)
	limiter, err := throttle.New(open(t, l.url), p, throttle.Config{})
	must(t, err)
	d, err := limiter.Decide(t.Context(), throttle.Request{Scope: "payments", Cost: 7})
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	out, _ := l.run(0, "reset", "payments", "account", "-as", "anna", "-reason", "charged twice")
	says(t, out, "payments account is reset, as if it had not been used; it had counted ")
	out, _ = l.run(0, "history")
	says(t, out, `anna (user default)  reset payments account, reason "charged twice"`+"\n  payments account is reset, as if it had not been used; it had counted ")
	history := l.objects("history")
	want(t, history[1], map[string]any{"by": "anna", "user": "default", "change": "reset payments account", "rules": 0.0, "reason": "charged twice"})
	one := history[1]["resets"].([]any)[0].(map[string]any)
	if one["scope"] != "payments" || one["rule"] != "account" || one["unit"] != "requests" || one["used"] == nil {
		t.Errorf("%v", one)
	}
	_, errs := l.run(1, "reset", "payments", "other")
	says(t, errs, "no rate rule other counts at payments itself")
	if n := len(l.objects("history")); n != 2 {
		t.Errorf("%d versions: a reset of nothing is none", n)
	}
}
