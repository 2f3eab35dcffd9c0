package throttle

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// docs/limits.md: a pause stands while Redis does not answer, whatever the rules say of that.
func TestPausedWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	p := parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1s, on_redis_error: open}], scopes: {a: {paused: true}}}}`)
	l := newLimiter(t, server.Client(t), p, Config{Timeout: time.Second})
	server.Kill9()
	if d, err := l.Allow(t.Context(), "p/b"); err != nil || !d.Allowed || !d.Degraded {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Allow(t.Context(), "p/a"); d.Allowed || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
}

// A start that was granted for long ahead is given back when its scope is paused meanwhile,
// and one that is near is not: it comes within the second that a change takes.
func TestPauseTakesStartsBack(t *testing.T) {
	t.Parallel()
	const rules = "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s}]}}"
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			task   string
			into   time.Duration // the wait of a second
			starts bool
		}{{"", 800 * time.Millisecond, false}, {"one", 100 * time.Millisecond, false}, {"", 0, true}} {
			_, rdb := redistest.Miniredis(t)
			l := newLimiter(t, rdb, parsedPolicy(t, rules), Config{Prefix: "pause"})
			noError(t, allowed(l, "p"))
			if row.starts {
				<-time.After(900 * time.Millisecond)
			}
			time.AfterFunc(row.into, func() { l.SetPolicy(parsedPolicy(t, strings.Replace(rules, "{p: {", "{p: {paused: true, ", 1))) })
			d, err := l.Start(t.Context(), Request{Scope: "p", MaxDelay: 2 * time.Second, Waiter: Waiter{Queue: "default", ID: row.task, MaxDelay: 2 * time.Second}})
			if err != nil || d.Allowed != row.starts || d.Joins != (row.task != "") {
				t.Errorf("%+v: %+v, %v", row, d, err)
			}
			l.SetPolicy(parsedPolicy(t, rules))
			if d, err := l.Peek(t.Context(), Request{Scope: "p"}); err != nil || d.Allowed == row.starts {
				t.Errorf("%+v: %+v, %v: its unit is not back", row, d, err)
			}
		}
	})
}
