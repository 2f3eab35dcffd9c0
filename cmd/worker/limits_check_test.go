package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// "worker limits check": every fault with its line, what is odd as a warning, and no Redis.
func TestLimitsCheck(t *testing.T) {
	t.Parallel()
	sound := limitsFile(t, someLimits)
	odd := limitsFile(t, someLimits+"    scopes: {acme: {rules: [{name: tenant, algorithm: sliding-window, limit: 300, per: 1s}]}}\n")
	slow := limitsFile(t, `limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 20, per: 1s, margin: 500ms}, {name: m, algorithm: calendar, limit: 1, resets: "0 0 31 * *"}]}}`)
	faulty := limitsFile(t, strings.Replace(someLimits, "limit: 200", "limt: 200", 1))
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{sound}, cli.ExitOK, []string{""}},
		{[]string{odd}, cli.ExitOK, []string{odd + ": warning: payments/acme tenant: can never bind: payments:account lets no more through"}},
		{[]string{sound, odd, "-strict"}, cli.ExitFailed, []string{": warning: "}},
		{[]string{odd, faulty}, cli.ExitFailed, []string{": warning: ", faulty + ":4:", "limt is not a field of a rule; did you mean limit?"}},
		{[]string{sound + ".none"}, cli.ExitFailed, []string{"there is no limits file " + sound + ".none", "try: " + sound + "\n"}},
		{[]string{slow}, cli.ExitOK, []string{slow + ": warning: p r: reaches 66 % of its limit at most", slow + ": warning: p m: resets on days that Feb, Apr, Jun, Sep, Nov lack"}},
		{[]string{sound, "-redis", "redis://localhost"}, cli.ExitUsage, []string{"-redis does not go with worker limits check"}},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), append([]string{"limits", "check"}, c.args...), noEnv, &out, &out); code != c.code {
			t.Errorf("%q: exit %d, want %d: %s", c.args, code, c.code, out.String())
		}
		says(t, out.String(), c.want...)
	}
	var out bytes.Buffer
	run(t.Context(), []string{"limits", "check", "-json", odd, faulty}, noEnv, &out, &out)
	var levels []string
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		var r checkReport
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		levels = append(levels, r.Level)
		if r.Level == "fault" && (r.Line != 4 || r.Column < 2) {
			t.Errorf("the place of %s", line)
		}
	}
	if got := strings.Join(levels, " "); !strings.HasPrefix(got, "warning fault") {
		t.Errorf("%s", out.String())
	}
}
