package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/network"
)

// busy has 32 slots at work when Redis goes away: tasks that run, and tasks that wait for four providers.
const busy = `
limits:
  a: {rules: [{name: all, algorithm: sliding-window, limit: 100, per: 2s, margin: 500ms}]}
  b: {rules: [{name: all, algorithm: sliding-window, limit: 100, per: 2s, margin: 500ms}]}
  c: {rules: [{name: all, algorithm: token-bucket, limit: 40, per: 1s, burst: 30, margin: 500ms}]}
  d: {rules: [{name: parallel, algorithm: concurrency, limit: 8, lease: 2s}]}
`

// An outage of seconds is a few lines of the log, not dozens: one that it began, and one
// that it is over, with how long it lasted and how many calls failed.
func TestOutageIsAFewLines(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct{ begin, end func(*network.Proxy) }{
		"connections are refused": {
			func(p *network.Proxy) { p.Refuse(); p.Cut() },
			func(p *network.Proxy) { p.Accept() },
		},
		"everything is swallowed": {(*network.Proxy).Partition, (*network.Proxy).Heal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, busy)
			between := network.NewProxy(t, s.redis.Addr())
			w := s.worker("-redis", "redis://"+between.Addr(), "-concurrency", "32")
			const n = 800
			s.enqueue(s.lines(n, func(i int) task {
				return task{Scope: fmt.Sprintf("%c/x", 'a'+i%4), MaxRetry: i % 2, Query: "?latency=100ms"}
			}))
			s.until(n / 4)
			before := len(w.Stderr.String())
			outage.begin(between)
			<-time.After(5 * time.Second)
			outage.end(between)
			w.Says("redis available again")
			s.until(n)
			text := strings.TrimSpace(w.Stderr.String()[before:])
			if lines := strings.Count(text, "\n") + 1; lines > 10 {
				t.Errorf("%d lines", lines)
			}
			if n := strings.Count(text, "level=ERROR"); n > 1 {
				t.Errorf("%d lines at level error; it mends itself", n)
			}
			over := regexp.MustCompile(`msg="redis available again" down_seconds=(\d+\.?\d*) failed_calls=(\d+)`).FindStringSubmatch(text)
			if !strings.Contains(text, `level=ERROR msg="redis unavailable; tasks wait"`) || over == nil || over[1] == "0" || over[2] == "0" {
				t.Error("want a line that it began, and one that it is over, with how long and how many calls failed")
			}
			t.Logf("\n%s", text)
		})
	}
}
