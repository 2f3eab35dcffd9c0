package throttle

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "New and SetPolicy log one warning for each rule whose Per is shorter than StartTolerance."
func TestHastyRulesAreTold(t *testing.T) {
	t.Parallel()
	const limits = `
limits:
  p:
    rules:
      - {name: short, algorithm: token-bucket, limit: 1, per: 1ms}
      - {name: second, algorithm: sliding-window, limit: 10, per: 1s}
      - {name: runs, algorithm: concurrency, limit: 3}
      - {name: days, algorithm: calendar, limit: 3, resets: "@daily"}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: fixed-window, limit: 5, per: 4999us}
          - {name: exact, algorithm: sliding-window, limit: 5, per: 5ms}
      acme:
        rules:
          - {name: tenant, unlimited: true}
`
	first, later := parsedPolicy(t, limits), parsedPolicy(t, strings.Replace(limits, "per: 1s", "per: 2ms", 1))
	for name, row := range map[string]struct {
		tolerance time.Duration
		want      []string // the rules, in any order
		then      []string // under the later policy
	}{
		"by default": {0, []string{"short 1ms 5ms", "tenant 4.999ms 5ms"}, []string{"second 2ms 5ms"}},
		"the most":   {sec, []string{"exact 5ms 1s", "short 1ms 1s", "tenant 4.999ms 1s"}, []string{"second 2ms 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			told := func() (lines []string) {
				for _, m := range hasty.FindAllStringSubmatch(out.String(), -1) {
					lines = append(lines, strings.Join(m[1:], " "))
				}
				out.Reset()
				slices.Sort(lines)
				return lines
			}
			_, rdb := redistest.Miniredis(t)
			l := newLimiter(t, rdb, first, Config{StartTolerance: row.tolerance, Logger: slog.New(slog.NewTextHandler(&out, nil))})
			for i, step := range []struct {
				policy *policy.Policy
				want   []string
			}{{nil, row.want}, {first, nil}, {later, row.then}, {later, nil}} {
				l.SetPolicy(step.policy)
				if got := told(); !slices.Equal(got, step.want) {
					t.Errorf("step %d: told %q, want %q", i, got, step.want)
				}
			}
		})
	}
}

var hasty = regexp.MustCompile(`level=WARN .* rule=(\S+) per=(\S+) start_tolerance=(\S+)`)

// "each rule that cannot reach 90 % of its limit"
func TestLintFindsRulesBelowTheirLimit(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"token-bucket, limit: 100, per: 1s, margin: 10ms":            "",
		"token-bucket, limit: 10, per: 1s, margin: 50ms":             "",
		"token-bucket, limit: 20, per: 1s, margin: 500ms, burst: 14": "",
		"token-bucket, limit: 20, per: 1s, margin: 500ms": "reaches 66 % of its limit at most: the start tolerance and its margin, 505ms, are added to per (1s); " +
			"write a shorter margin, or a burst of 12, which pays for it",
		"token-bucket, limit: 1, per: 10ms": "reaches 66 % of its limit at most: the start tolerance of 5ms is added to per (10ms); write a limit for a longer time",
		"sliding-window, limit: 1, per: 20ms, margin: 5ms": "reaches 66 % of its limit at most: the start tolerance and its margin, 10ms, are added to per (20ms); " +
			"write a shorter margin, or a limit for a longer time",
		"sliding-window, limit: 100, per: 1s, margin: 100ms":                 "",
		"fixed-window, limit: 9, per: 1s, margin: 300ms":                     "",
		"fixed-window, limit: 9, per: 1s, margin: 300ms, opens_on_use: true": "reaches 76 % of its limit at most: the start tolerance and its margin, 305ms, are added to per (1s); write a shorter margin, or a limit for a longer time",
		"token-bucket, limit: 0, per: 1ms":                                   "",
		"concurrency, limit: 4":                                              "",
		`calendar, limit: 4, resets: "@daily", margin: 20s`:                  "",
	} {
		p, err := limitsyaml.Parse("f", []byte("limits: {p: {scopes: {a: {rules: [{name: r, algorithm: "+rule+"}, {name: u, unlimited: true}]}}}}"))
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		got := ""
		for _, w := range Lint(p)[1:] { // the first says that nothing is removed
			got += w.String()
		}
		if want != "" {
			want = "p/a r: " + want
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", rule, got, want)
		}
	}
}
