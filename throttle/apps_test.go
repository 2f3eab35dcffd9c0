package throttle

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

const sharedByApps = `
limits:
  p:
    rules:
      - {name: r, algorithm: sliding-window, limit: 1, per: 1s}
    scopes:
      a: {apps: [billing]}
      b: {}
`

// of is the same limiter as another application has it.
func (b *bench) of(app string) *Limiter {
	b.t.Helper()
	cfg := b.cfg
	cfg.App = app
	l := newLimiter(b.t, b.rdb, b.Policy(), cfg)
	l.clock = b.clock
	return l
}

// looks has a limiter dispatch, as often as it is to, with nobody to start whom it is told to be overdue.
func (b *bench) looks(l *Limiter) (out Dispatched) {
	b.t.Helper()
	req := DispatchRequest{Provider: "p", Max: 8, Lead: 20 * time.Millisecond}
	for {
		d, err := l.Waitlist().Dispatch(ctx, req)
		noError(b.t, err)
		d.Granted = append(out.Granted, d.Granted...)
		if out = d; len(d.Overdue) == 0 {
			return out
		}
		req.Unused = d.Overdue
	}
}

func ticketsOf(places []WaiterRef) (tickets []string) {
	for _, p := range places {
		tickets = append(tickets, p.ID)
	}
	return tickets
}

// "Those of a scope that the application may not spend from, or that Leave names, are left to others": it
// grants those behind them, however often it looks, and keeps nobody else from granting them.
func TestWakeLeavesOthersTasks(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{App: "mail"}, parsedPolicy(t, sharedByApps), func(b *bench) {
		billing := b.of("billing")
		b.decide(Request{Scope: "p/b"})
		placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p/a", ID: "a1"}, {Scope: "p/a", ID: "a2"}}, 0, 0)
		if err != nil || !placed[0].Waits || !placed[1].Waits {
			t.Fatalf("%+v, %v", placed, err)
		}
		for range 20 {
			b.now.Add(sec.Microseconds())
			if woken := b.looks(b.Limiter); len(woken.Granted) > 0 || !woken.Waiting || woken.Next < 50*time.Millisecond || woken.Next > time.Second {
				t.Fatalf("%+v", woken)
			}
		}
		b.now.Add((6 * time.Millisecond).Microseconds())
		if got := ticketsOf(placesOf(b.looks(billing).Granted)); !slices.Equal(got, []string{"a1"}) {
			t.Errorf("billing releases %q, want a1", got)
		}
		if d, err := billing.Decide(ctx, Request{Scope: "p/a", Turn: Turn{WaiterID: "a1"}}); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		// One behind it is not kept waiting, and a2 keeps its place.
		if d := b.decide(Request{Scope: "p/b", Turn: Turn{WaiterID: "b1"}}); d.Allowed {
			t.Fatalf("%+v", d)
		}
		b.now.Add(2 * sec.Microseconds())
		b.looks(b.Limiter)
		b.now.Add((6 * time.Millisecond).Microseconds())
		if woken := b.looks(b.Limiter); len(woken.Granted) > 1 {
			t.Errorf("%+v", woken)
		}
		if d := b.decide(Request{Scope: "p/b", Turn: Turn{WaiterID: "b1"}}); !d.Allowed {
			t.Errorf("%+v: it was not released", d)
		}
		if s, err := b.Waitlist().InspectWaiter(ctx, Waiter{Scope: "p/a", ID: "a2"}); err != nil || !s.Waits || s.Ahead != 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// "Restore gives one who was released its place in line back."
func TestRestore(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{App: "mail"}, parsedPolicy(t, sharedByApps), func(b *bench) {
		billing := b.of("billing")
		b.decide(Request{Scope: "p/b"})
		for _, ticket := range []string{"a1", "a2"} {
			if d, err := billing.Decide(ctx, Request{Scope: "p/a", Turn: Turn{WaiterID: ticket}}); err != nil || !d.Position.Waits {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		b.now.Add(2 * sec.Microseconds())
		if got := ticketsOf(placesOf(b.looks(billing).Granted)); !slices.Equal(got, []string{"a1"}) {
			t.Fatalf("billing releases %q", got)
		}
		for ticket, released := range map[string]bool{"a1": true, "a2": false, "a3": false} {
			req := Request{Scope: "p/a", Turn: Turn{WaiterID: ticket}}
			if _, err := b.Decide(ctx, req); !errors.As(err, new(*policy.AppError)) {
				t.Errorf("%s: %v", ticket, err)
			}
			if restored, err := b.Waitlist().Restore(ctx, req); err != nil || restored != released {
				t.Errorf("%s was restored: %t, %v", ticket, restored, err)
			}
		}
		for ticket, ahead := range map[string]int64{"a1": 0, "a2": 1} {
			if s, err := b.Waitlist().InspectWaiter(ctx, Waiter{Scope: "p/a", ID: ticket}); err != nil || !s.Waits || s.Ahead != ahead {
				t.Errorf("%s: %+v, %v", ticket, s, err)
			}
		}
		if s, err := b.Waitlist().InspectWaiter(ctx, Waiter{Scope: "p/a", ID: "a3"}); err != nil || s.Waits || s.Dispatched {
			t.Errorf("a3: %+v, %v", s, err)
		}
		if got := ticketsOf(placesOf(b.looks(billing).Granted)); !slices.Equal(got, []string{"a1"}) {
			t.Errorf("billing releases %q: its units are not there for it", got)
		}
	})
}

const appsLimits = `
limits:
  payments:
    owner: payments-team
    apps: [billing, refunds, "a b"]
    rules:
      - {name: account, algorithm: concurrency, limit: 2}
    scopes:
      "*":
        apps: [billing]
      acme:
        owner: anna@example.com
        apps: [billing, refunds]
  search: {rules: [{name: plan, algorithm: concurrency, limit: 1}]}
`

// limits.yaml: "apps: the applications that may spend from here": others are refused before
// anything is spent, and plan, wake and look like everybody.
func TestApps(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	pol := parsedPolicy(t, appsLimits)
	prefix := redistest.Prefix(t)
	for app, may := range map[string]bool{"billing": true, "mail": false, "": false} {
		l := newLimiter(t, rdb, pol, Config{Prefix: prefix, App: app})
		d, err := l.Allow(t.Context(), "payments/globex")
		if may != (err == nil && d.Allowed) || !may && !errors.As(err, new(*policy.AppError)) {
			t.Errorf("%q: %+v, %v", app, d, err)
		}
		if placed, err := l.Waitlist().Join(t.Context(), []Waiter{{Scope: "payments/globex", ID: "x"}}, 0, 0); err != nil || placed[0].Err != nil {
			t.Errorf("%q cannot plan: %+v, %v", app, placed, err)
		}
	}
}
