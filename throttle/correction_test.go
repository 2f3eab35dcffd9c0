package throttle

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/wallclock"
)

// owns is an answer that tells an API's own limit.
func owns(limit int64, window time.Duration) upstream.Hint {
	return upstream.Hint{Quotas: []upstream.Quota{{Unit: "requests", Limit: limit, Window: window, Remaining: upstream.Unknown, Reset: upstream.Unknown}}}
}

// admitted is how many are admitted now, of so many who ask.
func (b *bench) admitted(scope string, of int) (n int) {
	b.t.Helper()
	for range of {
		if b.decide(Request{Scope: scope, ID: NewID()}).Allowed {
			n++
		}
	}
	return n
}

// admits wants so many to be admitted now, of those who ask.
func (b *bench) admits(what, scope string, of, want int) {
	b.t.Helper()
	if n := b.admitted(scope, of); n != want {
		b.t.Errorf("%s: %d of %s were admitted, want %d", what, n, scope, want)
	}
}

// "An API's own limit that is smaller than that of the lowest rule of the same window is taken
// for it until an answer says otherwise, or for an hour", for each algorithm that has windows.
func TestAdoptedLimit(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow} {
		rule := policy.Rule{Name: "own", Algorithm: algorithm, Limit: 10, Per: time.Minute}
		above := policy.Rule{Name: "all", Algorithm: algorithm, Limit: 1000, Per: time.Minute}
		if algorithm == policy.TokenBucket {
			rule.Burst, above.Burst = 10, 1000
		}
		onBothIn(t, string(algorithm), Config{}, tenants(t, []policy.Rule{above}, []policy.Rule{rule}), func(b *bench) {
			if !b.hear("p/a", owns(4, time.Minute)).Changed || b.hear("p/a", owns(4, time.Minute)).Changed {
				b.t.Error("it was not new, or new twice")
			}
			b.admits("the API has 4", "p/a", 20, 4)
			b.admits("another tenant", "p/b", 20, 10)
			told, err := b.UpstreamState(ctx, "p/a")
			if err != nil || len(told.Corrections) != 1 || told.Corrections[0].Limit != 4 || told.Corrections[0].Own != 4 || told.Corrections[0].Bound.Rule.Name != "own" {
				b.t.Errorf("%+v, %v", told, err)
			}
			b.pass(ms) // starts of one microsecond count as some of different ones
			b.hear("p/a", owns(7, time.Minute))
			b.admits("the API has 7", "p/a", 20, 3)
			b.hear("p/a", owns(70, time.Minute))
			b.admits("the rule's 10, no more than that, whatever the API says", "p/a", 20, 3)
			b.hear("p/a", owns(2, time.Minute))
			b.pass(time.Hour + time.Minute)
			b.admits("an hour later", "p/a", 20, 10)
		})
	}
}

// "A rate corrects the rate alone": a bucket of 5 a second and 15 at once whose API reports 2 a second is refilled by 2 a
// second, and holds 15.
func TestAdoptedRateKeepsTheBurst(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "plan", Algorithm: policy.TokenBucket, Limit: 5, Per: sec, Burst: 15}
	onBoth(t, Config{StartTolerance: -1}, policyOf(t, rule), func(b *bench) {
		b.admits("at first", "p", 20, 15)
		b.hear("p", upstream.Read(http.StatusOK, http.Header{"X-Amzn-Ratelimit-Limit": {"2.0"}}, time.Now()))
		if d := b.decide(Request{Scope: "p"}); d.Allowed || d.RetryAfter > 500*ms {
			b.t.Errorf("the next one comes in %v", d.RetryAfter)
		}
		b.pass(time.Minute)
		b.admits("after a minute", "p", 20, 15)
		b.hear("p", owns(2, sec)) // a limit in a window holds for what comes at once, too
		b.pass(time.Minute)
		b.admits("the API has 2 in a window", "p", 20, 2)
	})
}

// What says nothing of a rule's requests in its window is no limit of it.
func TestNotAdopted(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Minute},
		policy.Rule{Name: "day", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("0 0 * * *", "UTC")}, policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 10})
	tokens := owns(4, time.Minute)
	tokens.Quotas[0].Unit = "tokens"
	onBoth(t, Config{}, policy, func(b *bench) {
		for _, a := range []upstream.Hint{owns(4, time.Hour), owns(4, 24*time.Hour), owns(4, 0), owns(upstream.Unknown, time.Minute), tokens} {
			if out := b.hear("p", a); out.Changed {
				b.t.Errorf("%+v is heeded: %+v", a, out)
			}
		}
		if n := b.rdb.Exists(ctx, wire.APIKey(b.plan("p").Prefix)).Val(); n > 0 {
			b.t.Error("something was kept")
		}
	})
}

// A quota of a unit is that of the rules that count it, whatever others count in the same
// window, and one with nothing left of another unit than requests pauses nobody.
func TestAdoptedByItsUnit(t *testing.T) {
	t.Parallel()
	pol := policyOf(t, policy.Rule{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 500, Per: time.Minute},
		policy.Rule{Name: "tokens", Algorithm: policy.TokenBucket, Limit: 90_000, Per: time.Minute, Burst: 9000, Unit: "tokens"})
	onBoth(t, Config{}, pol, func(b *bench) {
		tell := func(unit string, limit int64) {
			a := owns(limit, time.Minute)
			a.Quotas[0].Unit, a.Quotas[0].Remaining, a.Quotas[0].Reset = unit, 5, sec
			if unit != policy.Requests {
				a.Quotas[0].Remaining = 0
			}
			if out := b.hear("p", a); !out.Until.IsZero() {
				b.t.Errorf("%s pause until %v", unit, out.Until)
			}
		}
		counts := func(calls, tokens int64) {
			b.t.Helper()
			b.wantCounts("calls", "p", "calls", 500, calls)
			b.wantCounts("tokens", "p", "tokens", 90_000, tokens)
		}
		tell("words", 50)
		counts(500, 90_000)
		tell(policy.Requests, 100)
		counts(100, 90_000)
		tell("tokens", 60_000)
		counts(100, 60_000)
		b.decide(Request{Scope: "p", Costs: policy.Costs{policy.Requests: 1, "tokens": 9000}})
		if d := b.decide(Request{Scope: "p", ID: NewID(), Costs: policy.Costs{"tokens": 1000}}); d.Allowed || d.RetryAfter < 999*ms || d.RetryAfter > 1010*ms {
			b.t.Errorf("1000 tokens of 60000 a minute come in a second: %+v", d)
		}
	})
}

// "A refusal also cuts the limits of the rules at the lowest level of the scope's path that has
// any to 85 % of what they are, a tenth of what the policy says at the least; They grow back by 2 % in each window", with answers that refuse nothing. Refusals of one burst cut once.
func TestCut(t *testing.T) {
	t.Parallel()
	own := []policy.Rule{{Name: "s", Algorithm: policy.SlidingWindow, Limit: 100, Per: 10 * sec}, {Name: "f", Algorithm: policy.FixedWindow, Limit: 1000, Per: time.Hour},
		{Name: "day", Algorithm: policy.FixedWindow, Limit: 1000, Per: 24 * time.Hour}, {Name: "c", Algorithm: policy.Concurrency, Limit: 10}}
	policy := tenants(t, []policy.Rule{{Name: "all", Algorithm: policy.SlidingWindow, Limit: 1000, Per: 10 * sec}}, own)
	onBoth(t, Config{}, policy, func(b *bench) {
		limits := func(what string, s, f int64) {
			b.t.Helper()
			b.wantCounts(what, "p/a", "s", 100, s)
			b.wantCounts(what, "p/a", "f", 1000, f)
			b.wantCounts(what, "p/a", "day", 1000, 1000)
			b.wantCounts(what, "p/a", "c", 10, 10)
			b.wantCounts(what, "p/a", "all", 1000, 1000)
		}
		for range 10 {
			b.hear("p/a", turnedDown(sec))
		}
		limits("refused", 85, 850)
		b.pass(10 * sec)
		b.hear("p/a", quotaLeft("requests", 5, sec))
		limits("a window later", 87, 850)
		b.pass(5 * time.Minute)
		b.hear("p/a", quotaLeft("requests", 5, sec))
		limits("some windows later", 100, 851)
		for range 100 {
			b.pass(10 * sec)
			b.hear("p/a", turnedDown(ms))
		}
		limits("of a hundred refusals", 11, 100) // the one grows back as fast as it is cut
		noError(b.t, b.ResetUpstream(ctx, "p/a"))
		limits("forgotten", 100, 1000)
	})
}

// "What it holds is rewritten when the first correction comes and when the last one goes, and
// no unit is lost or won between", whatever the bucket's numbers.
func TestCorrectedBucketKeepsItsUnits(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 12 {
		rule := policy.Rule{
			Name: "r", Algorithm: policy.TokenBucket, Limit: 1 + random.Int64N(5000), Burst: 20 + random.Int64N(5000),
			Per: time.Duration(1+random.Int64N(3_600_000)) * ms, Margin: time.Duration(random.Int64N(2)) * 100 * us(1),
		}
		onBothIn(t, fmt.Sprint(i), Config{}, policyOf(t, rule), func(b *bench) {
			b.decide(Request{Scope: "p", Cost: 10})
			was := b.peek().Rules[0].Remaining
			for range 20 {
				b.hear("p", turnedDown(us(1)))
				b.pass(us(2))
				d := b.decide(Request{Scope: "p", ID: NewID(), Cost: 5})
				if !d.Allowed {
					b.t.Fatalf("%+v", d)
				}
				b.giveBack(d.Grant)
				noError(b.t, b.ResetUpstream(ctx, "p"))
			}
			now := b.peek().Rules[0].Remaining
			refilled := 2 + 20*2*rule.Limit/rule.Per.Microseconds()
			if now < was-1 || now > was+refilled {
				b.t.Errorf("%d units were left, and %d are", was, now)
			}
		})
	}
}

// "answers" of limits.yaml says what follows, for a level and those below it, and in which unit a plain reset is.
func TestAnswersOfPolicy(t *testing.T) {
	t.Parallel()
	pol := parsedPolicy(t, `
limits:
  p:
    answers: pause
    rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]
    scopes:
      deaf: {answers: ignore, scopes: {not: {answers: heed}}}
      wary: {answers: {mode: refusals, unit: ms}, rules: [{name: own, algorithm: sliding-window, limit: 10, per: 1s}]}
`)
	onBoth(t, Config{}, pol, func(b *bench) {
		if out := b.hear("p/deaf/x", turnedDown(sec)); out.Changed {
			b.t.Errorf("%+v", out)
		}
		left := http.Header{"X-Ratelimit-Limit": {"5"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"86400000"}}
		for _, answer := range []struct {
			scope               string
			status              int
			pauses, corrections int
			rest                time.Duration
		}{{"p/a", 429, 1, 0, time.Second}, {"p/wary", 200, 0, 0, 0}, {"p/wary", 429, 1, 1, 24 * time.Hour}} {
			hint := b.ReadAnswer(answer.scope, answer.status, left, time.Now())
			b.hear(answer.scope, hint)
			told, err := b.UpstreamState(ctx, answer.scope)
			if err != nil || len(told.Pauses) != answer.pauses || len(told.Corrections) != answer.corrections {
				b.t.Errorf("%+v: %+v, %v", answer, told, err)
			}
			for _, p := range told.Pauses {
				if rest := p.Until.Sub(p.Since); rest < answer.rest*9/10 || rest > answer.rest*12/10 {
					b.t.Errorf("%+v: %+v", answer, told)
				}
			}
		}
	})
}

// accountOf is an account of 100 a second with tenants below it, of 50 a second each where a rule is
// named, whose nodes say this and that.
func accountOf(t *testing.T, account, tenants string) *policy.Policy {
	t.Helper()
	return parsedPolicy(t, fmt.Sprintf(`
limits:
  p:
    %s
    rules: [{name: all, algorithm: sliding-window, limit: 100, per: 1s}]
    scopes: {"*": {%s}}
`, account, tenants))
}

// "An API's answer to one tenant slows no other": neither by a limit that its API tells, nor by refusals,
// whether the tenant has rules or not. Levels above are corrected where they say that they heed.
func TestAnswersStayAtTheirScope(t *testing.T) {
	t.Parallel()
	const rules = `rules: [{name: own, algorithm: sliding-window, limit: 3000, per: 1m}]`
	for name, row := range map[string]struct {
		account, tenants  string
		neighbour, refuse int // units that the account lets through after a limit of 1, after 40 refusals
	}{
		"tenants with rules":      {"", rules, 100, 100},
		"tenants without":         {"", "", 100, 100},
		"the account heeds":       {"answers: heed", "", 1, 10},
		"so it does by numbers":   {"answers: {least: 20%}", "", 1, 20},
		"tenants do":              {"", "answers: heed", 100, 100},
		"all do, with own rules":  {"answers: heed", rules, 1, 100}, // a refusal cuts the lowest level
		"and tenants that do not": {"answers: heed", "answers: pause", 100, 100},
	} {
		onBothIn(t, name+", a limit", Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
			b.hear("p/a", owns(1, sec))
			b.hear("p/a/below", owns(1, sec))
			b.admits("the neighbour after a limit of 1", "p/b", 110, row.neighbour)
		})
		onBothIn(t, name+", refusals", Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
			for range 40 {
				b.hear("p/a", turnedDown(ms))
				b.pass(sec)
			}
			if n := b.admitted("p/b", 110); n < row.refuse || n > row.refuse+4 {
				b.t.Errorf("%d calls of the neighbour pass after refusals, want %d to %d: it grows by 2 a second", n, row.refuse, row.refuse+4)
			}
		})
	}
}

// "A provider can name its hosts, and answers of others are ignored": their pauses, refusals and limits.
func TestHostsOfAnswers(t *testing.T) {
	t.Parallel()
	pol := accountOf(t, "answers: heed\n    hosts: [api.example.com, \"*.example.org:8443\", \"2001:DB8::1\", \"[::1]:80\", 192.0.2.1]",
		"hosts: [own.example.net]}, anybody: {")
	for host, heeded := range map[string]bool{
		"": true, "api.example.com:443": true, "API.Example.com.:80": true, "api.example.com": true,
		"x.api.example.com:443": false, "example.com:443": false, "api.example.com.evil.test:443": false,
		"a.example.org:8443": true, "a.b.example.org:8443": true, "example.org:8443": false, "a.example.org:443": false, "a.example.org": false,
		"notexample.org:8443": false, "[2001:db8:0::1]:443": true, "[::1]:80": true, "[::1]:81": false, "192.0.2.1:9": true,
		"[::ffff:192.0.2.1]:9": true, "192.0.2.2:9": false, "own.example.net:443": false,
	} {
		onBothIn(t, host, Config{}, pol, func(b *bench) {
			refusal, limit := turnedDown(time.Minute), owns(1, sec)
			refusal.Host, limit.Host = host, host
			if one, other := b.hear("p", refusal), b.hear("p", limit); one.Changed != heeded || other.Changed != heeded {
				b.t.Errorf("a refusal: %+v; a limit: %+v", one, other)
			}
			if told, err := b.UpstreamState(ctx, "p"); err != nil || len(told.Pauses) > 0 != heeded || len(told.Corrections) > 0 != heeded {
				b.t.Errorf("%+v, %v", told, err)
			}
		})
	}
	for scope, want := range map[string][]string{"p/a": {"own.example.net"}, "p/a/b": {"own.example.net"}, "q": nil} {
		for _, p := range []*policy.Policy{pol, parsedPolicy(t, string(limitsyaml.Format(pol)))} {
			if got := p.Hosts(parsedScope(t, scope)); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", scope, got, want)
			}
		}
	}
}
