package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// taken makes a limiter take it for another time, until a reply tells it better.
func (b *bench) taken(text string) {
	at := when(b.t, text)
	b.scopes.now = func(string) time.Time { return at }
	clear(b.scopes.known)
}

// A caller that takes it for another time is told so by the server's clock, asks again
// at once, and is answered as everybody else is.
func TestCalendarStale(t *testing.T) {
	t.Parallel()
	const now = "2026-01-10T12:00:00Z"
	for name, taken := range map[string]string{
		"a day behind": "2026-01-09T12:00:00Z", "a year behind": "2025-01-10T12:00:00Z",
		"a day ahead": "2026-01-11T12:00:00Z", "a year ahead": "2027-01-10T12:00:00Z",
		"a moment behind": "2026-01-09T23:59:59.999999Z",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, daily(2, "UTC")), func(b *bench) {
				b.atTime(now)
				for i, want := range []answer{{true, 1, 0, 12 * hour}, {true, 0, 0, 12 * hour}, {false, 0, 12 * hour, 12 * hour}} {
					b.taken(taken)
					if got := answerOf(b.decide(Request{Scope: "p/x"})); got != want {
						b.t.Errorf("step %d: got %v, want %v", i, got, want)
					}
				}
				b.taken(taken)
				d, err := b.Peek(ctx, Request{Scope: "p/x"})
				if got, want := answerOf(d), (answer{false, 0, 12 * hour, 12 * hour}); err != nil || got != want {
					b.t.Errorf("peek: got %v, %v; want %v", got, err, want)
				}
			})
		})
	}
}

// With the boundaries of another time nothing is admitted, changed or given back that
// should not be, whoever asks, and the wait is short.
func TestCalendarStaleScripts(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, daily(2, "UTC")), func(b *bench) {
		b.atTime("2026-01-10T12:00:00Z")
		d := b.decide(Request{Scope: "p/x"})
		p, err := b.scopes.of("p/x")
		if err != nil {
			b.t.Fatal(err)
		}
		key := p.keys[0]
		before := b.rdb.Get(ctx, key).Val()
		for _, taken := range []string{"2026-01-09T12:00:00Z", "2026-01-11T12:00:00Z", "2026-02-11T12:00:00Z"} {
			stale := compileScope(b.scopes.keys, p.scope, p.bounds, 0, when(b.t, taken))
			reply, err := b.runner.run(ctx, b.attempt(stale, &Request{Scope: "p/x", ID: NewID(), Cost: 1, MaxDelay: time.Minute}).call())
			if err != nil {
				b.t.Fatal(err)
			}
			got := fromReply(stale, reply)
			if got.Allowed || got.RetryAfter != 10*ms || !stale.stale(got.At) {
				b.t.Errorf("taken for %s: %+v", taken, got)
			}
			if after := b.rdb.Get(ctx, key).Val(); after != before {
				b.t.Errorf("taken for %s: the denial changed %x to %x", taken, before, after)
			}
			ask := Request{Scope: "p/x", ID: NewID(), Cost: 1, Turn: Turn{WaiterID: "t"}}
			if reply, err = b.runner.run(ctx, b.attempt(stale, &ask).call()); err != nil {
				b.t.Fatal(err)
			}
			if turn := fromReply(stale, reply); turn.Allowed || turn.RetryAfter != 10*ms || turn.Position.Waits || turn.Binding != 0 {
				b.t.Errorf("taken for %s, a turn: %+v", taken, turn)
			}
			if b.rdb.Exists(ctx, p.queue[1].(string)).Val() != 0 {
				b.t.Errorf("taken for %s: somebody stands in line", taken)
			}
		}
		// Units come back whatever the time is taken for.
		b.scopes.refresh(p, when(b.t, "2026-02-11T12:00:00Z"))
		b.scopes.now = func(string) time.Time { return when(b.t, "2026-02-11T12:00:00Z") }
		b.giveBack(d.Grant)
		b.scopes.now = b.serverTime
		if d := b.decide(Request{Scope: "p/x"}); d.Rules[0].Remaining != 1 {
			b.t.Errorf("after giving back: %+v", d)
		}
	})
}

// The script that decides many knows no calendars: whoever has one is decided singly.
func TestCalendarIsDecidedSingly(t *testing.T) {
	t.Parallel()
	for kind, rules := range map[string][]policy.Rule{"calendar": {daily(2, "UTC"), window10()}, "window": {window10()}} {
		if kind == "calendar" {
			rules[1].Name = "window"
		}
		b := newBench(t, redistest.Client(t), Config{}, policyOf(t, rules...))
		p, err := b.scopes.of("p/x")
		if err != nil {
			t.Fatal(err)
		}
		one := &pending{call: b.attempt(p, &Request{Scope: "p/x", Cost: 1, once: true}).call()}
		if one.together() != (kind == "window") {
			t.Errorf("%s: decided together is %t", kind, one.together())
		}
	}
}
