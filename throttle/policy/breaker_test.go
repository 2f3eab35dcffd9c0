package policy_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "A level has the breaker of its own name, or else that of *; none is inherited": what is left out has its default, and it is
// written as short as it can be, and read back.
func TestBreakers(t *testing.T) {
	t.Parallel()
	said := mustParse(t, `
limits:
  p:
    breaker: {failures: 60%, of: 100, in: 1m, probe: 3, wait: 5s, retry: false}
    rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]
    scopes:
      "*": {breaker: {failures: 50%, of: 20, in: 30s, probe: 1, wait: 30s, retry: true}}
      acme: {breaker: {wait: 1m, shadow: true}}
      "*x": {scopes: {below: {breaker: {probe: 2}}}}
  q: {rules: [{name: r, algorithm: sliding-window, limit: 10, per: 1s}]}
`)
	usual := policy.Breaker{Failures: 50, Of: 20, In: 30 * time.Second, Probe: 1, Wait: 30 * time.Second}
	own := policy.Breaker{Failures: 60, Of: 100, In: time.Minute, Probe: 3, Wait: 5 * time.Second, KeepAttempts: true}
	shadow, two := usual, usual
	shadow.Wait, shadow.Shadow, two.Probe = time.Minute, true, 2
	at := func(scope, pattern string, b policy.Breaker) policy.MatchedBreaker {
		return policy.MatchedBreaker{Breaker: b, Scope: mustScope(t, scope), Pattern: pattern}
	}
	for scope, want := range map[string][]policy.MatchedBreaker{
		"p": {at("p", "p", own)}, "q": nil, "none": nil, "p/any": {at("p", "p", own), at("p/any", "p/*", usual)},
		"p/any/below": {at("p", "p", own), at("p/any", "p/*", usual)}, "p/acme": {at("p", "p", own), at("p/acme", "p/acme", shadow)},
		"p/*x/below": {at("p", "p", own), at("p/*x", "p/*", usual), at("p/*x/below", "p/*x/below", two)},
	} {
		for _, p := range []*policy.Policy{said, mustParse(t, string(limitsyaml.Format(said)))} {
			if got := p.Breakers(mustScope(t, scope)); !slices.Equal(got, want) {
				t.Errorf("%s: %+v, want %+v", scope, got, want)
			}
		}
	}
	for b, want := range map[policy.Breaker]string{
		{}: "", usual: "{failures: 50%}", own: "{failures: 60%, of: 100, in: 1m, probe: 3, wait: 5s, retry: false}",
		{Shadow: true}: "{failures: 50%, shadow: true}",
	} {
		if got := limitsyaml.FormatBreaker(b); got != want {
			t.Errorf("%+v is written as %q, want %q", b, got, want)
		}
	}
	if !said.Breaks() || mustParse(t, `limits: {p: {answers: heed}}`).Breaks() {
		t.Error("whether a policy has a breaker is not seen")
	}
}

// Faults of a breaker: a row is what stands there, at 1:23.
func TestBreakerFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"50%":                          `1:23: limits.a.breaker: breaker is the text "50%"; write its fields, such as {failures: 50%, of: 20, in: 30s}`,
		"{}":                           `1:23: limits.a.breaker: breaker is empty; write fields such as {failures: 50%}, or remove the line`,
		"{after: 5}":                   `1:24: limits.a.breaker.after: after is not a field of a breaker; write failures, of, in, probe, wait, retry or shadow`,
		"{failures: 5}":                `1:34: limits.a.breaker.failures: failures is the number 5; write whole percents, such as 60%`,
		"{failures: 0%}":               `1:34: limits.a.breaker.failures: failures is 0%; it must be 1% to 100%`,
		"{of: 0}":                      `1:28: limits.a.breaker.of: of is 0; it must be 1 to 1000`,
		"{of: 1001}":                   `1:28: limits.a.breaker.of: of is 1001; it must be 1 to 1000`,
		"{probe: 11}":                  `1:31: limits.a.breaker.probe: probe is 11; it must be 1 to 10`,
		"{in: 500ms}":                  `1:28: limits.a.breaker.in: in is 500ms; the least is 1s`,
		"{wait: 11m}":                  `1:30: limits.a.breaker.wait: wait is 11m; the most is 10m`,
		"{retry: never}":               `1:31: limits.a.breaker.retry: retry is the text "never"; write false, or remove the line`,
		"{shadow: true, retry: false}": `1:32: limits.a.breaker.shadow: shadow opens nothing, so that every attempt counts; remove it, or retry: false`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {breaker: "+text+"}}\n", want)
		})
	}
	_, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"a": {Breaker: policy.Breaker{Failures: 101}}})
	if want := "policy: limits.a.breaker.failures: failures is 101%; it must be 1% to 100%"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
