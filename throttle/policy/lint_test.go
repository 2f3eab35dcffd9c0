package policy_test

import (
	"slices"
	"testing"
)

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
		"units": {`limits:
  llm:
    rules:
      - {name: tokens, algorithm: token-bucket, limit: 90000, per: 1m, unit: tokens}
      - {name: requests, algorithm: sliding-window, limit: 500, per: 1m}
`, []string{
			"llm tokens: counts tokens; tasks that do not say how many tokens they cost are not limited by it",
			"llm tokens: has a burst of 1, and a task that costs more tokens can never pass; give it a burst of the largest task's cost",
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
