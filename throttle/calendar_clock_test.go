package throttle

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
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

// Plans are kept for as long as their periods last.
func TestCalendarPlans(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, daily(2, "UTC"), policy.Rule{Name: "hourly", Algorithm: policy.Calendar, Limit: 3, Resets: wallclock.MustParse("0 * * * *", "Asia/Kathmandu")})
	b := newBench(t, redistest.Client(t), Config{}, policy)
	plan := func(at string) *compiledScope {
		b.atTime(at)
		p, err := b.scopes.of("p/x")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := plan("2026-01-10T12:00:00Z") // 17:45 there
	for at, same := range map[string]bool{
		"2026-01-10T12:14:59Z": true, "2026-01-10T12:15:00Z": false,
		"2026-01-10T11:15:00Z": true, "2026-01-10T11:14:59.5Z": true, "2026-01-10T11:14:58Z": false,
	} {
		b.scopes.keep(first)
		if got := plan(at); (got == first) != same {
			t.Errorf("%s: the same plan is %t", at, got == first)
		}
	}
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

// The server's clock is what its replies have told.
func TestServerTime(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	l, err := New(rdb, policyOf(t, minutely(1000)), Config{Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	provider := keyspace(l.cfg.Prefix).provider("p")
	ours := time.Now()
	if got := l.skews.of(provider).toServer(ours); !got.Equal(ours) {
		t.Errorf("nothing was told, and it is %v there when it is %v here", got, ours)
	}
	clock := l.skews.of(provider)
	clock.observe(ours, ours.Add(20*ms), ours.Add(hour+10*ms)) // an hour ahead
	if got, want := clock.toServer(ours.Add(sec)), ours.Add(hour+sec-10*ms); got.Sub(want).Abs() > 2*time.Microsecond {
		t.Errorf("it is %v there, want %v", got, want)
	}
}

// What is left is spread to the microsecond, rounded up, as far as the scripts' numbers
// reach, and a microsecond later beyond.
func TestCalendarSpreadIsExact(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	rdb := redistest.Client(t)
	for range 300 {
		rule := policy.Rule{Name: "r", Algorithm: policy.Calendar, Spread: true, Resets: wallclock.MustParse([]string{"* * * * *", "@monthly", "0 0 29 2 *"}[random.IntN(3)], "UTC")}
		rule.Limit = 2 + random.Int64N([]int64{10, 1000, 1_000_000_000, policy.MaxLimit - 2}[random.IntN(4)])
		b := newBench(t, rdb, Config{}, policyOf(t, rule))
		b.atTime("2028-02-29T00:00:00Z")
		b.now.Add(random.Int64N(60e6))
		cost := 1 + random.Int64N(rule.Limit-1)
		d := b.decide(Request{Scope: "p/x", Cost: cost})
		if !d.Allowed {
			t.Fatalf("seed %d: %+v", seed, d)
		}
		rest := big.NewInt(d.Rules[0].ResetAfter.Microseconds())
		product := new(big.Int).Mul(rest, big.NewInt(cost))
		want := product.Add(product, big.NewInt(rule.Limit-1)).Div(product, big.NewInt(rule.Limit)).Int64()
		most := want
		if new(big.Int).Mul(new(big.Int).Mod(rest, big.NewInt(rule.Limit)), big.NewInt(cost)).Cmp(big.NewInt(1<<53)) >= 0 {
			most++
		}
		got := b.decide(Request{Scope: "p/x"}).RetryAfter.Microseconds()
		if got < want || got > most {
			t.Errorf("seed %d: %s, %d of %d: next after %dµs of %v, want %d", seed, rule.Resets, cost, rule.Limit, got, rest, want)
		}
	}
}

// A wait is over at once where the look was by the calendar of another time: the next
// look is soon, and by the right one.
func TestCalendarStaleWake(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, minutely(1)), func(b *bench) {
		b.atTime("2026-01-10T00:00:30Z")
		for _, ticket := range []string{"first", "second"} {
			b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: ticket}})
		}
		wake := func() Dispatched {
			b.t.Helper()
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 5})
			if err != nil {
				b.t.Fatal(err)
			}
			return woken
		}
		if woken := wake(); !woken.Waiting || len(woken.Granted) > 0 || woken.Next != 30*sec {
			b.t.Fatalf("got %+v", woken)
		}
		for _, taken := range []string{"2026-01-09T00:00:30Z", "2026-01-11T00:00:30Z"} {
			b.taken(taken)
			b.nexts.of("p").add([]string{"p/x"})
			b.atTime("2026-01-10T00:01:00Z")
			woken := wake()
			if !woken.Waiting || len(woken.Granted) > 0 || woken.Next > 10*ms {
				b.t.Errorf("taken for %s: %+v", taken, woken)
			}
			if b.scopes.known["p/x"].stale(time.UnixMicro(b.now.Load())) {
				b.t.Errorf("taken for %s: the plan is as it was", taken)
			}
		}
		b.scopes.now = b.serverTime
		b.now.Add(10_000)
		if woken := wake(); len(woken.Granted) != 1 || woken.Granted[0].ID != "second" {
			b.t.Errorf("by the right calendar: %+v", woken)
		}
		if d := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "second"}}); !d.Allowed {
			b.t.Errorf("got %+v", d)
		}
	})
}

// What an outlook and an inspection say of a calendar is what it will do.
func TestCalendarOutlook(t *testing.T) {
	t.Parallel()
	rule := daily(10, "America/Los_Angeles")
	rule.Spread = true
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, rule))
	b.atTime("2026-03-08T19:00:00Z") // on a day of 23 hours; the next has 24
	o, err := b.Forecast(ctx, "p/x")
	if err != nil {
		t.Fatal(err)
	}
	if r := o.Rules[0]; r.Units != 10 || r.Per != 24*hour || r.Rest != 12*hour || !r.Spread || r.Remaining != 10 {
		t.Errorf("got %+v", r)
	}
	b.decide(Request{Scope: "p/x", Cost: 5})
	want := []time.Duration{6 * hour, 6*hour + 72*time.Minute, 6*hour + 144*time.Minute}
	for i, ticket := range []string{"a", "b", "c"} {
		d := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: ticket}})
		if d.Position.Expected != want[i] {
			t.Errorf("%s is expected in %v, want %v", ticket, d.Position.Expected, want[i])
		}
	}
	for range 30 {
		b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: NewID()}})
	}
	last := b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: "last"}})
	if from, to := 12*hour+2*24*hour, 12*hour+3*24*hour; last.Position.Expected < from || last.Position.Expected > to {
		t.Errorf("behind 33, of which five start today and ten a day, it is expected in %v", last.Position.Expected)
	}
	in, err := b.Inspect(ctx, "p/x")
	if err != nil || in.NextStart.In != 6*hour || in.Waiting != 34 || in.Binding.Rule.Name != "r" {
		t.Errorf("got %+v, %v", in, err)
	}
}

// A process whose clock is months off learns the server's time from whatever it asks.
func TestCalendarWrongClock(t *testing.T) {
	t.Parallel()
	asked := Waiter{Scope: "p/x", ID: "second"}
	tests := map[string]func(b *bench) (time.Duration, error){
		"inspect": func(b *bench) (time.Duration, error) {
			in, err := b.Inspect(ctx, "p/x")
			return in.NextStart.In, err
		},
		"inspect a ticket": func(b *bench) (time.Duration, error) {
			standing, err := b.Waitlist().InspectWaiter(ctx, asked)
			return standing.Expected.In, err
		},
		"outlook": func(b *bench) (time.Duration, error) {
			o, err := b.Forecast(ctx, "p/x")
			return o.Rules[0].Rest, err
		},
		"line up": func(b *bench) (time.Duration, error) {
			placed, err := b.Waitlist().Join(ctx, []Waiter{asked}, 0, 0)
			return placed[0].Expected, err
		},
		"decide": func(b *bench) (time.Duration, error) {
			d, err := b.Decide(ctx, Request{Scope: "p/x"})
			return d.RetryAfter, err
		},
		"dispatch": func(b *bench) (time.Duration, error) {
			b.nexts.of("p").add([]string{"p/x"})
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 5, CheckAll: true})
			return woken.Next, err
		},
	}
	for name, ask := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, minutely(1)), func(b *bench) {
				b.atTime("2026-01-10T00:00:30Z")
				for _, ticket := range []string{"first", "second"} {
					b.decide(Request{Scope: "p/x", Turn: Turn{WaiterID: ticket}})
				}
				clear(b.scopes.known)
				b.skews.byProvider = nil
				b.scopes.now = func(provider string) time.Time { return b.skews.of(provider).toServer(time.Now()) }
				if got, err := ask(b); err != nil || got != 30*sec {
					b.t.Errorf("%v, %v; want 30s", got, err)
				}
			})
		})
	}
}
