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
