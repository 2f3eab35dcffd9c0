package throttle

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

const pausable = `
unmatched: UNMATCHED
limits:
  p:
    rules: [{name: account, algorithm: token-bucket, limit: 100, per: 1s, burst: 10}]
    scopes:
      "*": {paused: true, rules: [{name: tenant, algorithm: fixed-window, limit: 5, per: 1s, max_wait: 1m}], scopes: {deep: {paused: false}}}
      free: {paused: false}
      timed: {paused: true, paused_until: 2027-01-16T00:01:00Z}
  whole: {paused: true, scopes: {a: {paused: false}}}
  open: {rules: [{name: paused, algorithm: fixed-window, limit: 5, per: 1s}]}
`

func pausableUnder(unmatched string) string {
	return strings.Replace(pausable, "UNMATCHED", unmatched, 1)
}

// docs/limits.md: a pause stands while Redis does not answer, whatever the rules say of that.
func TestPausedWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	p := parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1s, on_redis_error: open}], scopes: {a: {paused: true}}}}`)
	l, err := New(server.Client(t), p, Config{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	server.Kill9()
	if d, err := l.Allow(t.Context(), "p/b"); err != nil || !d.Allowed || !d.Degraded {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Allow(t.Context(), "p/a"); d.Allowed || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
}

// docs/limits.md: those who wait are told where they stand, and that it is the pause.
func TestPausedLines(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, parsedPolicy(t, pausableUnder("deny")), func(b *bench) {
		for scope, want := range map[string]time.Duration{"p/a": Never, "p/timed": time.Minute, "whole/x": Never} {
			d := b.decide(Request{Scope: scope, Turn: Turn{WaiterID: "one"}})
			if !d.Position.Waits || d.Position.Expected != want {
				b.t.Errorf("%s: %+v", scope, d.Position)
			}
			placed, err := b.Waitlist().Join(b.t.Context(), []Waiter{{Scope: scope, ID: "two"}}, 0, 0)
			if err != nil || !placed[0].Waits || placed[0].Expected != want {
				b.t.Errorf("%s: %+v, %v", scope, placed, err)
			}
			s, err := b.Waitlist().InspectWaiter(b.t.Context(), Waiter{Scope: scope, ID: "two"})
			if err != nil || !s.Waits || s.Ahead != 1 || s.Expected.In != want || !s.Binding.Paused() {
				b.t.Errorf("%s: %+v, %v", scope, s, err)
			}
			i, err := b.Inspect(b.t.Context(), scope)
			if err != nil || i.Waiting != 2 || i.NextStart.In != want || !i.Binding.Paused() {
				b.t.Errorf("%s: %+v, %v", scope, i, err)
			}
			o, err := b.Forecast(b.t.Context(), scope)
			if r := o.Rules[len(o.Rules)-1]; err != nil || scope == "whole/x" && (!r.Paused || r.Units != 0) {
				b.t.Errorf("%s: %+v, %v", scope, o, err)
			}
		}
		woken, err := b.Waitlist().Dispatch(b.t.Context(), DispatchRequest{Provider: "p", Max: 10, CheckAll: true})
		if err != nil || len(woken.Granted) > 0 || !woken.Waiting {
			b.t.Errorf("%+v, %v", woken, err)
		}
		b.SetPolicy(parsedPolicy(t, "unmatched: allow\nlimits: {p: {rules: [{name: account, algorithm: token-bucket, limit: 100, per: 1s, burst: 10}]}}"))
		for provider, n := range map[string]int{"p": 4, "whole": 2} { // whole has no rule any more, and is allowed
			woken, err := b.Waitlist().Dispatch(b.t.Context(), DispatchRequest{Provider: provider, Max: 10, CheckAll: true})
			if err != nil || len(woken.Granted) != n || woken.Granted[0].ID != "one" {
				b.t.Errorf("%s: %+v, %v", provider, woken, err)
			}
		}
		if names, err := b.Reset(b.t.Context(), "p/a", ""); err != nil || len(names) != 0 {
			b.t.Errorf("%v, %v", names, err)
		}
	})
}

// A start that was granted for long ahead is given back when its scope is paused meanwhile,
// and one that is near is not: it comes within the second that a change takes.
func TestPauseTakesStartsBack(t *testing.T) {
	t.Parallel()
	const rules = "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s}]}}"
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			ticket string
			into   time.Duration // the wait of a second
			starts bool
		}{{"", 800 * time.Millisecond, false}, {"one", 100 * time.Millisecond, false}, {"", 0, true}} {
			_, rdb := redistest.Miniredis(t)
			l, err := New(rdb, parsedPolicy(t, rules), Config{Prefix: "pause"})
			if err != nil {
				t.Fatal(err)
			}
			if d, err := l.Allow(t.Context(), "p"); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			if row.starts {
				<-time.After(900 * time.Millisecond)
			}
			time.AfterFunc(row.into, func() { l.SetPolicy(parsedPolicy(t, strings.Replace(rules, "{p: {", "{p: {paused: true, ", 1))) })
			d, err := l.Start(t.Context(), Request{Scope: "p", MaxDelay: 2 * time.Second, Turn: Turn{WaiterID: row.ticket, MaxDelayQueued: 2 * time.Second}})
			if err != nil || d.Allowed != row.starts || d.Position.Waits != (row.ticket != "") {
				t.Errorf("%+v: %+v, %v", row, d, err)
			}
			l.SetPolicy(parsedPolicy(t, rules))
			if d, err := l.Peek(t.Context(), Request{Scope: "p"}); err != nil || d.Allowed == row.starts {
				t.Errorf("%+v: %+v, %v: its unit is not back", row, d, err)
			}
		}
	})
}
