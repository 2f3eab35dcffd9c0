package throttle

import (
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// modelsText is a dear model, which has 800 of 1000, and a cheap one for the rest.
const modelsText = `
limits:
  llm:
    rules: [{name: month, algorithm: calendar, limit: 1000, resets: "@monthly", unit: usd}]
    pool: {members: [dear, cheap], choose: drain, overflow_after: 1h}
    scopes:
      "@dear":
        paused: false
        rules:
          - {name: month, algorithm: calendar, limit: 800, resets: "@monthly", unit: usd}
          - {name: calls, algorithm: sliding-window, limit: 4, per: 1m}
      "@cheap": {rules: [{name: calls, algorithm: sliding-window, limit: 100, per: 1m}]}
`

func onModels(t *testing.T, text string, test func(*bench)) {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	noError(t, err)
	onBoth(t, Config{}, p, func(b *bench) {
		b.atTime("2027-03-10T12:00:00Z")
		test(b)
	})
}

func call(id string) Request {
	return Request{Scope: "llm/acme", ID: id, Costs: policy.Costs{policy.Requests: 1, "usd": 100}}
}

// asks wants so many calls to go to a member, or, with none, to be told how long to wait.
func (b *bench) asks(many int, member string, retry time.Duration) (last Decision) {
	b.t.Helper()
	for range many {
		last = b.decide(call(""))
		if last.Member != member || last.Allowed != (retry == 0) || last.RetryAfter != retry {
			b.t.Fatalf("%s, allowed %v, in %s; want %s in %s", last.Member, last.Allowed, last.RetryAfter, member, retry)
		}
	}
	return last
}

// docs/llm.md: "Calls go to the dear model until its part is used up, and wait for its rates until then. The rest of the budget is the cheap
// model's. With the next period all begins anew." What is given back goes to the dear model again.
func TestBudgetOfTwoModels(t *testing.T) {
	t.Parallel()
	onModels(t, modelsText, func(b *bench) {
		first := b.asks(1, "dear", 0)
		b.asks(3, "dear", 0)
		b.asks(2, "dear", time.Minute)
		if d := b.asks(1, "dear", time.Minute); d.Rules[d.Binding].Scope != "llm/@dear" || d.Rules[d.Binding].Rule != "calls" {
			t.Errorf("denied by %+v", d.Rules[d.Binding])
		}
		noError(t, b.SaveGrant(ctx, first.Grant, "batch", time.Hour))
		b.pass(time.Minute)
		b.asks(4, "dear", 0)
		b.asks(2, "cheap", 0)
		b.asks(1, "dear", b.until("2027-04-01T00:00:00Z")) // all is used up

		kept, err := b.LoadGrant(ctx, "llm/acme", "batch")
		noError(t, err)
		if kept.Member() != "dear" {
			t.Errorf("kept with %s", kept.Member())
		}
		_, err = b.Settle(ctx, kept, policy.Costs{"usd": 0})
		noError(t, err)
		b.pass(time.Minute)
		b.asks(1, "dear", 0)
		b.asks(1, "dear", b.until("2027-04-01T00:00:00Z"))
		b.atTime("2027-04-01T00:00:00Z")
		b.asks(4, "dear", 0)
		b.asks(1, "dear", time.Minute)
	})
}

func (b *bench) until(text string) time.Duration {
	b.t.Helper()
	return when(b.t, text).Sub(time.UnixMicro(b.now.Load()))
}

// An attempt that is sent again has the model that it had, also if the budget is used up by then.
func TestBudgetOfARepeatedAttempt(t *testing.T) {
	t.Parallel()
	onModels(t, modelsText, func(b *bench) {
		one := call("one")
		one.Costs["usd"] = 800
		b.decide(one)
		b.asks(1, "cheap", 0)
		if d := b.decide(one); !d.Allowed || d.Member != "dear" {
			t.Errorf("%+v", d)
		}
		two := call("two")
		two.Costs["usd"] = 100
		b.decide(two)
		b.giveBack(b.decide(one).Grant)
		if d := b.decide(two); !d.Allowed || d.Member != "cheap" {
			t.Errorf("%+v", d)
		}
		b.asks(1, "dear", 0)
	})
}

// docs/pools.md, "overflow_after": a pause that ends within it is waited for. The next member takes what would start later, and what
// no clock tells the start of.
func TestOverflow(t *testing.T) {
	t.Parallel()
	onModels(t, modelsText, func(b *bench) {
		pause := func(d time.Duration) {
			_, err := b.Report(ctx, "llm/@dear", upstream.Hint{Limited: true, Status: 429, Retry: d, RetryKnown: true})
			noError(t, err)
		}
		pause(time.Hour)
		if d := b.decide(call("")); d.Allowed || d.Member != "dear" || !d.Paused || d.RetryAfter != time.Hour {
			t.Errorf("%+v", d)
		}
		pause(time.Hour + time.Minute)
		b.asks(1, "cheap", 0)
		b.pass(time.Minute)
		if d := b.decide(call("")); d.Allowed || d.Member != "dear" || d.RetryAfter != time.Hour {
			t.Errorf("%+v", d)
		}
		noError(t, b.CloseBreaker(ctx, "llm/@dear"))
		b.asks(1, "dear", 0)
		off, err := limitsyaml.Parse("limits.yaml", []byte(strings.Replace(modelsText, "paused: false", "paused: true", 1)))
		noError(t, err)
		b.SetPolicy(off)
		b.asks(1, "cheap", 0)
	})
	const chain = `
limits:
  llm:
    pool: {members: [one, two, {name: three, priority: -1}], choose: drain, overflow_after: 10s}
    scopes:
      "@*": {rules: [{name: calls, algorithm: sliding-window, limit: 1, per: 10s}]}
      "@one": {rules: [{name: day, algorithm: sliding-window, limit: 2, per: 24h}]}
      "@three": {rules: [{name: runs, algorithm: concurrency, limit: 1}]}
`
	onModels(t, chain, func(b *bench) {
		b.asks(1, "one", 0)
		b.asks(1, "one", 10*time.Second)
		b.pass(10 * time.Second)
		b.asks(1, "one", 0)
		b.asks(1, "two", 0)
		b.asks(2, "two", 10*time.Second) // each member is waited for in its turn
		_, err := b.Report(ctx, "llm/@two", upstream.Hint{Limited: true, Status: 429, Retry: time.Minute, RetryKnown: true})
		noError(t, err)
		b.asks(1, "three", 0)
		b.asks(1, "two", time.Minute) // three may have a place at any time, or in an hour
	})
	const places = `
limits:
  llm:
    pool: {members: [one, two], choose: drain, overflow_after: 1h}
    scopes: {"@one": {rules: [{name: runs, algorithm: concurrency, limit: 1}]}, "@two": {rules: [{name: calls, algorithm: sliding-window, limit: 9, per: 1m}]}}
`
	onModels(t, places, func(b *bench) {
		b.asks(1, "one", 0)
		b.asks(1, "two", 0)
	})
}

// A pause that a call has to try has no end that a clock tells: the next member is taken at once.
func TestOverflowOfAGuess(t *testing.T) {
	t.Parallel()
	onModels(t, modelsText, func(b *bench) {
		_, err := b.Report(ctx, "llm/@dear", upstream.Hint{Limited: true, Status: 429})
		noError(t, err)
		d := b.decide(call(""))
		if !d.Allowed || d.Member != "cheap" {
			t.Errorf("%+v", d)
		}
	})
}
