package throttle

import (
	"bytes"
	"log/slog"
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
		want      []string // of each line, in any order: level, scope, rule, per, start_tolerance
		then      []string // under the later policy
	}{
		"by default": {0, []string{"WARN p short 1ms 5ms", "WARN p/* tenant 4.999ms 5ms"}, []string{"WARN p second 2ms 5ms"}},
		"none":       {-1, nil, nil},
		"the least":  {ms, nil, nil},
		"the most": {
			sec, []string{"WARN p short 1ms 1s", "WARN p/* exact 5ms 1s", "WARN p/* tenant 4.999ms 1s"}, []string{"WARN p second 2ms 1s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&out, nil))
			told := func() (lines []string) {
				for line := range strings.Lines(out.String()) {
					fields := strings.Fields(line[strings.Index(line, "level="):])
					level, rest := fields[0], fields[len(fields)-4:]
					line := strings.TrimPrefix(level, "level=")
					for _, field := range rest {
						line += " " + field[strings.Index(field, "=")+1:]
					}
					lines = append(lines, line)
				}
				out.Reset()
				slices.Sort(lines)
				return lines
			}
			_, rdb := redistest.Miniredis(t)
			l, err := New(rdb, first, Config{StartTolerance: row.tolerance, Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
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
