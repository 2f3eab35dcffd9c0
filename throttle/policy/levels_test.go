package policy_test

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const shareLimits = `
limits:
  llm:
    rules:
      - {name: account, algorithm: concurrency, limit: 9}
    scopes:
      "*":
        weight: 2
        shares: {interactive: {part: 60%}, batch: {weight: 3}, "no": {part: 1%, weight: 2}}
        rules:
          - {name: own, algorithm: concurrency, limit: 3}
      acme:
        weight: 30
      globex:
        shares: {a: {weight: 4}, b: {part: 50%}}
  mail: {rules: [{name: r, algorithm: concurrency, limit: 1}]}
`

// limits.yaml: "a weight is of its name among those beside it, and shares are of the names
// below": those of a name replace those of "*", and both are written back.
func TestWeights(t *testing.T) {
	t.Parallel()
	p := mustParse(t, shareLimits)
	rest := .39 / 6
	for _, c := range []struct {
		scope string
		want  []float64 // under a rule of llm, and of the tenant
	}{
		{"llm", []float64{1, 1}},
		{"llm/initech", []float64{2, 1}},
		{"llm/acme", []float64{30, 1}},
		{"llm/acme/interactive", []float64{30, 3 * (.60 + rest)}},
		{"llm/acme/batch/deep", []float64{30, 3 * 3 * rest}},
		{"llm/acme/no", []float64{30, 3 * (.01 + 2*rest)}},
		{"llm/acme/other", []float64{30, 3 * (.01 + 2*rest)}},
		{"llm/globex/a", []float64{2, 2 * .5 * 4 / 5}},
		{"llm/globex/b", []float64{2, 2 * (.5 + .5/5)}},
		{"llm/globex/interactive", []float64{2, 2 * .5 * 4 / 5}},
		{"mail/x", []float64{1, 1}},
	} {
		for level, want := range c.want {
			if got := p.Weight(mustScope(t, c.scope), level+1); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s has %v below level %d, want %v", c.scope, got, level+1, want)
			}
		}
	}
	text := string(limitsyaml.Format(p))
	if again := mustParse(t, text); string(limitsyaml.Format(again)) != text || !strings.Contains(text, `    shares: {batch: {weight: 3}, interactive: {part: 60%}, "no": {part: 1%, weight: 2}}`) {
		t.Errorf("%s", text)
	}
	unmatched, limits := p.Limits()
	again, err := policy.New(unmatched, limits)
	if err != nil || string(limitsyaml.Format(again)) != text {
		t.Errorf("%v: %s", err, limitsyaml.Format(again))
	}
	limits["llm"].Scopes["*"].Shares["batch"] = policy.Share{Weight: 7}
	if string(limitsyaml.Format(p)) != text {
		t.Error("what a caller does to its tree changes the policy")
	}
}

func TestShareFaults(t *testing.T) {
	t.Parallel()
	deep := "limits: {a: " + strings.Repeat("{scopes: {a: ", 7) + "{shares: {x: {}}}" + strings.Repeat("}}", 7) + "}"
	for text, want := range map[string]string{
		"limits: {a: {weight: 0}}":                                          `x:1:22: limits.a.weight: weight is 0; it must be 1 to 1000`,
		"limits: {a: {weight: 1001}}":                                       `x:1:22: limits.a.weight: weight is 1001; it must be 1 to 1000`,
		"limits: {a: {shares: {}}}":                                         `x:1:22: limits.a.shares: shares is empty; name a scope below, or remove the line`,
		"limits: {a: {shares: [b]}}":                                        `x:1:22: limits.a.shares: shares is a list; write names under it, such as {interactive: {part: 60%}, batch: {weight: 3}}`,
		"limits: {a: {shares: {b: 60%}}}":                                   `x:1:26: limits.a.shares.b: b is the text "60%"; write its share, such as {part: 60%, weight: 1}`,
		"limits: {a: {shares: {b: {part: 0%}}}}":                            `x:1:33: limits.a.shares.b.part: part is 0%; it must be 1% to 100%`,
		"limits: {a: {shares: {b: {part: 101%}}}}":                          `x:1:33: limits.a.shares.b.part: part is 101%; it must be 1% to 100%`,
		"limits: {a: {shares: {b: {weight: 0}}}}":                           `x:1:35: limits.a.shares.b.weight: weight is 0; it must be 1 to 1000`,
		`limits: {a: {shares: {"*": {part: 1%}}}}`:                          `x:1:23: limits.a.shares."*": name is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`,
		"limits: {a: {shares: {b: {part: 60%}, c: {part: 41%}}}}":           `x:1:23: limits.a.shares: the parts are 101% together; the most is 100%`,
		"limits: {a: {shares: {b: {part: 100%}, c: {}}}}":                   `x:1:40: limits.a.shares.c: the parts are 100% together, and "c" has none: leave it one, or use priorities of tasks`,
		"limits: {a: {shares: {b: {part: 60%}}, scopes: {b: {weight: 3}}}}": `x:1:61: limits.a.scopes.b.weight: weight of "b" is in shares of the scope above; keep one of the two`,
		deep: `x:1:114: limits.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.scopes.a.shares: shares stands at level 8, below which no scope has names; the most is 8`,
	} {
		if _, err := limitsyaml.Parse("x", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", text, err, want)
		}
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"a": {Weight: -1, Shares: map[string]policy.Share{"b": {Guaranteed: -3, Weight: 2000}}}})
	if err == nil || !strings.Contains(err.Error(), "weight is -1") || !strings.Contains(err.Error(), "part is -3%") || !strings.Contains(err.Error(), "weight is 2000") {
		t.Errorf("%v", err)
	}
}

// docs/limits.md: "a pause counts at the level where it stands, and for all below it".
func TestPausedLevels(t *testing.T) {
	t.Parallel()
	p := mustParse(t, pausedText("allow"))
	const tenant = "account 100@p, /paused 0@p/a, tenant 5@p/a"
	for scope, want := range map[string]string{
		"p":        "account 100@p",
		"p/a":      tenant,
		"p/a/deep": tenant, // paused above
		"p/free":   "account 100@p, tenant 5@p/free",
		"whole":    "/paused 0@whole",
		"whole/a":  "/paused 0@whole",
		"whole/b":  "/paused 0@whole",
		"open":     "paused 5@open",
		"other":    "",
	} {
		bounds, err := p.Match(mustScope(t, scope))
		if got := lines(bounds); err != nil || got != want {
			t.Errorf("%s meets %q, %v, want %q", scope, got, err, want)
		}
	}
	bounds, err := p.Match(mustScope(t, "p/timed"))
	if err != nil || len(bounds) != 3 || !bounds[1].Paused() || bounds[1].Pattern != "p/timed" ||
		bounds[1].Until != time.Date(2027, 1, 16, 0, 1, 0, 0, time.UTC) || bounds[0].Paused() {
		t.Errorf("%+v, %v", bounds, err)
	}
}

func TestPauseIsWritten(t *testing.T) {
	t.Parallel()
	p := mustParse(t, pausedText("deny"))
	unmatched, limits := p.Limits()
	again, err := policy.New(unmatched, limits)
	if err != nil || !bytes.Equal(limitsyaml.Format(again), limitsyaml.Format(p)) {
		t.Fatalf("%s\nbecomes\n%s\n%v", limitsyaml.Format(p), limitsyaml.Format(again), err)
	}
	for _, want := range []string{"paused: true\n", "paused: false\n", "paused_until: 2027-01-16T00:01:00Z\n"} {
		if !strings.Contains(string(limitsyaml.Format(p)), want) {
			t.Errorf("no %q in\n%s", want, limitsyaml.Format(p))
		}
	}
	for text, want := range map[string]string{
		"limits: {p: {paused: yes}}":                                               `paused is the text "yes"; write true, or remove the line`,
		"limits: {p: {paused_until: 2030-01-31T12:00:00Z}}":                        "paused_until stands without paused: true",
		"limits: {p: {paused: false, paused_until: 2030-01-31T12:00Z}}":            "paused_until is the text \"2030-01-31T12:00Z\"; write a time with its zone",
		"limits: {p: {paused: true, paused_until: 2030-01-31}}":                    "paused_until is the date 2030-01-31; write a time",
		"limits: {p: {paused: true, paused_until: 2300-01-31T12:00:00Z}}":          "paused_until is not between 1970 and 2255",
		"limits: {p: {paused: true, paused_until: \"0000-01-01T00:00:00+09:00\"}}": "paused_until is not between 1970 and 2255",
		"limits: {p: {pause: true}}":                                               "pause is not a field of a scope; did you mean paused?",
		"limits: {p: {rules: [{name: /paused, unlimited: true}]}}":                 "name holds a '/'",
	} {
		if _, err := limitsyaml.Parse("it", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
	if _, err := policy.New("", map[string]policy.ScopeConfig{"p": {Pause: "maybe"}}); err == nil || !strings.Contains(err.Error(), `paused is "maybe"; write true or false`) {
		t.Error(err)
	}
}

const pausedLevels = `
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

func pausedText(unmatched string) string {
	return strings.Replace(pausedLevels, "UNMATCHED", unmatched, 1)
}

// What is odd in a policy is told, and nothing of one that is sound.
func TestLint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits string
		want   []string
	}{
		"sound": {`limits:
  payments:
    rules: [{name: account, algorithm: sliding-window, limit: 200, per: 1s}]
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}
          - {name: parallel, algorithm: concurrency, limit: 4}
        scopes: {refunds: {rules: [{name: refunds, algorithm: sliding-window, limit: 2, per: 1s}]}}
      acme: {rules: [{name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 20}]}
      free: {rules: [{name: parallel, unlimited: true}]}
`, nil},
		"an override that changes nothing": {`limits:
  payments:
    scopes:
      "*": {rules: [{name: tenant, algorithm: token-bucket, limit: 20, per: 1s}]}
      acme: {rules: [{name: tenant, algorithm: token-bucket, limit: 20, per: 1000ms, burst: 1}]}
`, []string{"payments/acme tenant: says what it inherits from payments/*; remove the line"}},
		"a removal of nothing": {`limits:
  payments:
    scopes:
      "*": {rules: [{name: tenant, algorithm: token-bucket, limit: 20, per: 1s}]}
      acme: {rules: [{name: tennant, unlimited: true}]}
`, []string{"payments/acme tennant: removes a rule that it does not inherit; remove the line, or mend the name"}},
		"a tenant's limit above its account's": {`limits:
  payments:
    rules: [{name: account, algorithm: sliding-window, limit: 200, per: 1s}]
    scopes:
      acme: {rules: [{name: tenant, algorithm: token-bucket, limit: 300, per: 1s, burst: 400}]}
      more: {rules: [{name: tenant, algorithm: sliding-window, limit: 500, per: 1s}]}
      same: {rules: [{name: tenant, algorithm: sliding-window, limit: 200, per: 1s}]}
      less: {rules: [{name: tenant, algorithm: sliding-window, limit: 300, per: 1m}]}
      peak: {rules: [{name: tenant, algorithm: token-bucket, limit: 300, per: 1s, burst: 100}]}
`, []string{
			"payments/acme tenant: can never bind: payments:account lets no more through",
			"payments/more tenant: can never bind: payments:account lets no more through",
			"payments/same tenant: can never bind: payments:account lets no more through",
		}},
		"more places than there are": {`limits:
  payments:
    rules: [{name: all, algorithm: concurrency, limit: 4}]
    scopes: {acme: {rules: [{name: own, algorithm: concurrency, limit: 4}]}}
`, []string{"payments/acme own: can never bind: payments:all lets no more through"}},
		"days that some months lack": {`limits:
  mail:
    rules:
      - {name: a, algorithm: calendar, limit: 1, resets: "0 0 31 * *"}
      - {name: b, algorithm: calendar, limit: 1, resets: "0 0 L * *"}
`, []string{"mail a: resets on days that Feb, Apr, Jun, Sep, Nov lack, and no period begins on them there; write L for the last day of a month"}},
		"units": {`limits:
  llm:
    rules:
      - {name: tokens, algorithm: token-bucket, limit: 90000, per: 1m, unit: tokens}
      - {name: requests, algorithm: sliding-window, limit: 500, per: 1m}
`, []string{
			"llm tokens: counts tokens; tasks that do not say how many tokens they cost are not limited by it",
			"llm tokens: has a burst of 1, and a task that costs more tokens can never pass; give it a burst of the largest task's cost",
		}},
		"units of language models": {`limits:
  openai:
    answers: openai
    scopes:
      "*": {rules: [{name: minute, algorithm: sliding-window, limit: 90000, per: 1m, unit: token}, {name: batch, algorithm: sliding-window, limit: 9, per: 1m, unit: rows}]}
  llm:
    rules:
      - {name: minute, algorithm: sliding-window, limit: 90000, per: 1m, unit: token}
      - {name: month, algorithm: calendar, limit: 50, resets: "@monthly", unit: usd}
`, []string{
			"llm minute: counts token; tasks that do not say how many token they cost are not limited by it",
			"llm month: counts usd; tasks that do not say how many usd they cost are not limited by it",
			"llm month: admits $0.00005, since usd are millionths of a dollar; 50 dollars are 50000000",
			"openai/* minute: counts token; tasks that do not say how many token they cost are not limited by it",
			"openai/* minute: counts token, which no answer of its API settles; did you mean tokens?",
			"openai/* batch: counts rows; tasks that do not say how many rows they cost are not limited by it",
		}},
	} {
		var got []string
		for _, w := range mustParse(t, c.limits).Lint() {
			got = append(got, w.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}

// A place with "*" covers each name of its own that the policy has there.
func TestNamed(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `limits:
  a: {scopes: {"*": {owner: x, rules: [{name: r, algorithm: fixed-window, limit: 1, per: 1s}], scopes: {deep: {owner: z}}}, vip: {owner: y}, b: {scopes: {own: {owner: q}}}}}
  "*": {scopes: {mail: {owner: m}}}
`)
	for place, want := range map[string][]string{
		"a": nil, "a/vip": nil, "a/new": nil, "a/*": {"a/b", "a/mail", "a/vip"}, "*/mail": {"a/mail"}, "*": {"a"}, "x/*": {"x/mail"},
		"a/*/own": {"a/b/own", "a/mail/own", "a/vip/own"}, "*/*/deep": {"*/mail/deep", "a/*/deep", "a/b/deep", "a/mail/deep", "a/vip/deep"}, "": nil,
	} {
		if got := p.Named(place); !slices.Equal(got, want) {
			t.Errorf("%q covers %q, want %q", place, got, want)
		}
	}
}

// "At most limit units in any second", minute or hour, of the provider and of all below it.
func TestPerSecond(t *testing.T) {
	t.Parallel()
	for per, p := range map[time.Duration]*policy.Policy{
		time.Second: policy.PerSecond("payments", 100), time.Minute: policy.PerMinute("payments", 100), time.Hour: policy.PerHour("payments", 100),
	} {
		for _, scope := range []string{"payments", "payments/acme/refunds"} {
			rules, err := p.Match(mustScope(t, scope))
			if err != nil || len(rules) != 1 {
				t.Fatalf("%s: %+v, %v", scope, rules, err)
			}
			want := policy.Rule{Name: "limit", Algorithm: policy.SlidingWindow, Limit: 100, Per: per, OnRedisError: policy.FailClosed, Unit: policy.Requests}
			if rules[0].Rule != want || rules[0].Scope != mustScope(t, "payments") {
				t.Errorf("%s: %+v, want %+v", scope, rules[0], want)
			}
		}
		if _, err := p.Match(mustScope(t, "other")); err == nil {
			t.Error("another provider meets no rule, and was not denied")
		}
	}
}

// "It panics where the provider is no name, or the limit is not 0 to MaxLimit": with what is wrong.
func TestPerSecondPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "limit is -1") {
			t.Errorf("%q", got)
		}
	}()
	policy.PerSecond("payments", -1)
}
