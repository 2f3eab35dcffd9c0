package e2e

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/programs"
)

const quota = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 100, per: 2s, margin: 500ms}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 60, per: 2s, burst: 24, margin: 500ms}
          - {name: parallel, algorithm: concurrency, limit: 8}
        scopes:
          refunds:
            rules:
              - {name: refunds, algorithm: sliding-window, limit: 10, per: 1s, margin: 500ms}
`

// "Nothing over any limit in any window at the counting API, under 1, 2 and 4 workers, with 600 tasks at 50/s", none lost and
// none twice. They run one after the other, beside other tests, which mostly wait.
func TestQuota(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			if testing.Short() && workers != 2 {
				t.Skip("the others take 15 s each")
			}
			s := newSite(t, quota)
			n := 600
			if testing.Short() {
				n = 150
			}
			var running []*programs.Program
			for range workers {
				running = append(running, s.worker("-listen", "127.0.0.1:0"))
			}
			began := time.Now()
			s.enqueue(s.lines(n, func(i int) task {
				scope := []string{"payments/a", "payments/b", "payments/c"}[i%3]
				if i%10 == 0 {
					scope += "/refunds"
				}
				return task{Scope: scope, MaxRetry: i % 2, Query: "?latency=5ms"}
			}))
			s.until(n)
			took := time.Since(began)
			s.perfect()
			t.Logf("%d tasks in %v: %.1f/s of 50", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
			runs := 0
			for _, p := range running {
				page := get(t, "http://"+listening(t, p)+"/metrics", http.StatusOK)
				if strings.Contains(page, `headway_runs_total{outcome="ok"`) { // beside busy processors one of four may have begun too late
					runs += counted(t, page, `headway_runs_total\{outcome="ok",queue="default"\} (\d+)`)
				}
				get(t, "http://"+listening(t, p)+"/healthz", http.StatusOK)
				p.Terminate()
			}
			for _, p := range running {
				p.Ends(0)
			}
			if runs != n {
				t.Errorf("the workers count %d runs for %d tasks", runs, n)
			}
		})
	}
}

// listening returns where a worker serves its metrics.
func listening(t *testing.T, p *programs.Program) string {
	t.Helper()
	p.Says("msg=listening")
	m := regexp.MustCompile(`msg=listening addr=(\S+)`).FindStringSubmatch(p.Stderr.String())
	if m == nil {
		t.Fatal("no address in the log")
	}
	return m[1]
}

// get fetches a page and fails the test unless the status is the one wanted.
func get(t *testing.T, url string, status int) string {
	t.Helper()
	answer, err := http.Get(url) //nolint:gosec,noctx // a worker of this test's own
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		t.Fatalf("%s: %s, %v\n%s", url, answer.Status, err, body)
	}
	return string(body)
}

// counted returns the number that a line of metrics has.
func counted(t *testing.T, page, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no %s among the metrics:\n%s", pattern, page)
	}
	n, err := strconv.Atoi(m[1])
	must(t, err)
	return n
}
