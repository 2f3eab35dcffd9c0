package sim

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// docs/limits.md: a shadow rule "stops nobody: no task waits, fails or is refused for it",
// whatever its algorithm, beside a rule that holds and alone.
func TestShadowStopsNobody(t *testing.T) {
	long(t)
	const shadows = `{name: s1, algorithm: sliding-window, limit: 1, per: 1h, max_wait: 1s, shadow: true},
{name: s2, algorithm: token-bucket, limit: 0, per: 1s, shadow: true}, {name: s3, algorithm: fixed-window, limit: 1, per: 24h, shadow: true},
{name: s4, algorithm: concurrency, limit: 1, shadow: true}, {name: s5, algorithm: calendar, limit: 1, resets: "@monthly", shadow: true}`
	for name, rules := range map[string]string{
		"beside a rule": "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, burst: 2}, " + shadows + "]}",
		"alone":         "{rules: [" + shadows + "]}",
	} {
		t.Run(name, func(t *testing.T) {
			run(t, rules, func(c *course) {
				const n = 300
				c.serve(asynq.Config{})
				c.serve(asynq.Config{})
				began := time.Now()
				c.plan(n, "p/a")
				c.costly(1, 2) // no wait would let it pass s1
				runs := c.finish(n + 1)
				if d := after(began, runs, n+1); d > 4*time.Second {
					c.Errorf("the last start was after %s", d)
				}
				c.pickedUp(n+1, 1.05)
			})
		})
	}
}
