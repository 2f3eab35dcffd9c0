package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// "After it, one call goes first": for all processes, whether tasks wait or ask at once. What becomes of the probe says what the
// others do: they follow one that was not refused, they wait twice as long for one that was, and they take the place of one that is
// never heard of, or whose start was given back.
func TestProbe(t *testing.T) {
	t.Parallel()
	report := func(a upstream.Hint) func(*bench, Decision) {
		return func(b *bench, _ Decision) {
			_, err := b.Report(ctx, "p/a", a)
			noError(b.t, err)
		}
	}
	sent := func(ago time.Duration, a upstream.Hint) upstream.Hint { a.Sent = time.Now().Add(-ago); return a }
	for name, test := range map[string]struct {
		happens func(*bench, Decision)
		starts  int           // of three callers
		wait    time.Duration // of the next
	}{
		"goes through":         {report(upstream.Hint{}), 3, 0},
		"is refused":           {report(turnedDown(0)), 0, 2 * sec},
		"is refused until":     {report(turnedDown(5 * sec)), 0, 5 * sec},
		"is not heard of":      {func(*bench, Decision) {}, 0, 10 * sec},
		"has crashed":          {func(b *bench, _ Decision) { b.pass(10 * sec) }, 1, 10 * sec},
		"is given back":        {func(b *bench, d Decision) { _ = b.Refund(ctx, d.Grant) }, 1, 10 * sec},
		"an older one is not":  {report(sent(10*sec, upstream.Hint{})), 0, 10 * sec},
		"an older one is":      {report(sent(10*sec, turnedDown(0))), 0, 10 * sec},
		"is forgotten by then": {func(b *bench, _ Decision) { b.pass(70 * sec) }, 3, 0},
	} {
		rules := tenants(t, []policy.Rule{{Name: "r", Algorithm: policy.FixedWindow, Limit: 1000, Per: sec}}, nil)
		onBothIn(t, name, Config{}, rules, func(b *bench) {
			level := "p/a"
			if name == "goes through" {
				level = "p"
			}
			rested := b.hear(level, turnedDown(0))
			for range 5 { // on their way when the pause began
				if out := b.hear(level, turnedDown(0)); out.Changed || !out.Until.Equal(rested.Until) {
					b.t.Errorf("%+v", out)
				}
			}
			b.now.Store(rested.Until.UnixMicro() + 200_000)
			first := b.decide(Request{Scope: "p/a", ID: NewID()})
			if !first.Allowed || !first.Grant.probe {
				b.t.Fatalf("%+v", first)
			}
			if d := b.decide(Request{Scope: level + "/b", ID: NewID(), MaxDelay: 20 * sec}); d.Allowed || !d.Paused || d.RetryAfter != 10*sec || d.RetryDelay(0) > recheck {
				b.t.Errorf("beside the probe: %+v", d)
			}
			test.happens(b, first)
			n, last := 0, Decision{}
			for range 3 {
				if last = b.decide(Request{Scope: "p/a", ID: NewID()}); last.Allowed {
					n++
				}
			}
			if n != test.starts || last.RetryAfter < test.wait || last.RetryAfter > test.wait*11/10 {
				b.t.Errorf("%d start, and the next in %s; want %d and %s", n, last.RetryAfter, test.starts, test.wait)
			}
		})
	}
}

// Tasks that wait are granted ahead, the probe alone, at the end of the guess; the others when it has gone through.
func TestProbeOfWaiters(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"goes through": false, "is refused": true} {
		onBothIn(t, name, Config{}, policyOf(t, bucket(1000, 1000)), func(b *bench) {
			b.hear("p", turnedDown(0))
			b.queued("p", "a", "b", "c", "d", "e", "f")
			first := b.dispatched(2 * sec)
			if len(first) != 1 || !first[0].Probe || len(b.dispatched(20*sec)) > 0 {
				b.t.Fatalf("ahead: %+v", first)
			}
			b.dispatched(0, waitlist.News{Ref: first[0].Ref(), What: waitlist.Unused})
			b.pass(2 * sec)
			again := b.dispatched(0)
			if len(again) != 1 || !again[0].Probe {
				b.t.Fatalf("since the first was not used: %+v", again)
			}
			d := b.decide(Request{Scope: "p", Waiter: waiter(again[0].ID)})
			if !d.Allowed || !d.Grant.probe {
				b.t.Fatalf("%+v", d)
			}
			a, want := upstream.Hint{}, 5
			if refused {
				a, want = turnedDown(0), 0
			}
			_, err := b.Report(ctx, "p", a)
			noError(b.t, err)
			if got := b.dispatched(0); len(got) != want {
				b.t.Errorf("%d follow, want %d", len(got), want)
			}
			if b.pass(2500 * ms); refused && len(b.dispatched(0)) != 1 {
				b.t.Error("no probe goes when the pause is over that follows a refused one")
			}
		})
	}
}

// With a member of a pool, one answer for that ends its guess and that of the pool's level.
func TestProbeOfAMember(t *testing.T) {
	t.Parallel()
	p := poolOf(t, "members: [alice]", `"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 7, per: 1s}]}, "@*": {rules: [{name: key, algorithm: sliding-window, limit: 9, per: 1s}]}`)
	onBoth(t, Config{}, p, func(b *bench) {
		b.hear("github", turnedDown(0))
		b.now.Store(b.hear("github/@alice", turnedDown(0)).Until.UnixMicro() + 200_000)
		first := b.decide(Request{Scope: "github/acme", ID: NewID()})
		if d := b.decide(Request{Scope: "github/acme", ID: NewID()}); !first.Allowed || !first.Grant.probe || d.Allowed {
			b.t.Fatalf("%+v, %+v", first, d)
		}
		_, err := b.Report(ctx, first.Grant.AnswerScope(), upstream.Hint{})
		noError(b.t, err)
		for range 2 {
			if d := b.decide(Request{Scope: "github/acme", ID: NewID()}); !d.Allowed {
				b.t.Errorf("after the probe: %+v", d)
			}
		}
	})
}
