package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const tiered = `
limits:
  payments:
    rules: [{name: account, algorithm: sliding-window, limit: 200, per: 1s}]
    pool: {members: [key1]}
    tiers:
      gold:
        owner: sales
        weight: 3
        rules: [{name: tenant, algorithm: sliding-window, limit: 100, per: 1s}]
        scopes: {refunds: {rules: [{name: refunds, algorithm: sliding-window, limit: 9, per: 1s}]}}
      free: {paused: true}
    scopes:
      "*":
        rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}, {name: runs, algorithm: concurrency, limit: 4}]
        scopes: {refunds: {rules: [{name: refunds, algorithm: sliding-window, limit: 2, per: 1s}]}}
      acme: {weight: 5, rules: [{name: tenant, algorithm: sliding-window, limit: 500, per: 1s}]}
  search: {rules: [{name: r, algorithm: concurrency, limit: 1}]}
`

// "Over the rules of "*" those of the tier are laid, and over both those of a name itself."
func TestTiers(t *testing.T) {
	t.Parallel()
	tiers := map[string]string{"payments/acme": "gold", "payments/big": "gold", "payments/old": "free", "payments/odd": "none such"}
	var asked []string
	p := mustParse(t, tiered).WithTiers(func(name policy.Scope) string {
		asked = append(asked, name.String())
		return tiers[name.String()]
	})
	for scope, want := range map[string]string{
		"payments/any":         "account 200@payments, tenant 5@payments/any, runs 4@payments/any",
		"payments/odd":         "account 200@payments, tenant 5@payments/odd, runs 4@payments/odd",
		"payments/big":         "account 200@payments, tenant 100@payments/big, runs 4@payments/big",
		"payments/acme":        "account 200@payments, tenant 500@payments/acme, runs 4@payments/acme",
		"payments/big/refunds": "account 200@payments, tenant 100@payments/big, runs 4@payments/big, refunds 9@payments/big/refunds",
		"payments/old/refunds": "account 200@payments, /paused 0@payments/old, tenant 5@payments/old, runs 4@payments/old, refunds 2@payments/old/refunds",
	} {
		got, err := p.Match(mustScope(t, scope))
		if err != nil || lines(got) != want {
			t.Errorf("%s meets\n%s, want\n%s, %v", scope, lines(got), want, err)
		}
		if names := p.TieredNames(mustScope(t, scope)); len(names) != 1 || names[0] != mustScope(t, scope).Prefix(2) {
			t.Errorf("of %s these have a tier: %v", scope, names)
		}
	}
	if bound, _ := p.Match(mustScope(t, "payments/big")); bound[1].Pattern != "payments/*gold" || bound[2].Pattern != "payments/*" {
		t.Errorf("patterns %+v", bound)
	}
	for scope, want := range map[string]float64{"payments/big": 3, "payments/acme": 5, "payments/any": 1} {
		if got := p.Weight(mustScope(t, scope), 1); got != want {
			t.Errorf("%s has the weight %v", scope, got)
		}
	}
	if asked = nil; p.Owner(mustScope(t, "payments/big")) != "sales" || !slices.Equal(asked, []string{"payments/big"}) {
		t.Errorf("asked %v", asked)
	}
	asked = nil
	_, _ = p.Match(mustScope(t, "payments/@key1"))
	_, _ = p.Match(mustScope(t, "search/acme"))
	p.Named("payments/*")
	if names := p.TieredNames(mustScope(t, "payments/@key1")); asked != nil || names != nil {
		t.Errorf("asked %v, %v", asked, names)
	}
	if got := p.Tiers(mustScope(t, "payments")); !slices.Equal(got, []string{"free", "gold"}) || p.Tiers(mustScope(t, "search")) != nil || !p.Tiered() {
		t.Errorf("tiers %v", got)
	}
	// The digest is that of the limits, whatever the tiers of names are.
	if p.Digest() != mustParse(t, tiered).Digest() || p.Digest() == mustParse(t, strings.Replace(tiered, "limit: 100", "limit: 101", 1)).Digest() {
		t.Error("the digest depends on who is in which tier, or not on the tiers")
	}
}

// "payments/*gold is such a place."
func TestPlacesOfTiers(t *testing.T) {
	t.Parallel()
	p := mustParse(t, tiered)
	for place, want := range map[string][]string{
		"payments/*":     {"payments/*free", "payments/*gold", "payments/acme"},
		"payments/*gold": {"payments/acme"},
		"payments/acme":  nil,
	} {
		if got := p.Named(place); !slices.Equal(got, want) {
			t.Errorf("%s covers %v, want %v", place, got, want)
		}
	}
	if got := p.Owners("payments/*gold"); !slices.Equal(got, []string{"sales"}) {
		t.Errorf("owners %v", got)
	}
	var rules []string
	for place, r := range p.Rules() {
		rules = append(rules, place+":"+r.Name)
	}
	if !slices.Contains(rules, "payments/*gold:tenant") || !slices.Contains(rules, "payments/*gold/refunds:refunds") {
		t.Errorf("rules %v", rules)
	}
	if text := string(limitsyaml.Format(p)); !strings.Contains(text, "    tiers:\n      free:\n") || string(limitsyaml.Format(mustParse(t, text))) != text {
		t.Errorf("written as\n%s", text)
	}
}

// A name may replace what its tier has, whatever "*" has. Tiers that count by other algorithms under one name forget what was spent.
func TestLintTiers(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
limits:
  payments:
    tiers:
      gold: {rules: [{name: tenant, algorithm: token-bucket, limit: 9, per: 1s}, {name: day, algorithm: concurrency, limit: 3}]}
      free: {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 1s}]}
    scopes:
      "*": {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 1s}]}
      acme: {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 1s}, {name: day, unlimited: true}]}
`)
	var got []string
	for _, w := range p.Lint() {
		got = append(got, w.String())
	}
	want := []string{
		"payments/*free tenant: says what it inherits from payments/*; remove the line",
		"payments/*gold tenant: is a token-bucket, and another tier has a sliding-window of this name: a change of tier forgets what was spent; give it a name of its own",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestFaultsOfTiers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`limits: {p: {tiers: {gold: {weight: 0}}}}`:           `limits:1:37: limits.p.tiers.gold.weight: weight is 0; it must be 1 to 1000`,
		`limits: {p: {tiers: {gold: {wait: 0}}, scopes: {}}}`: `limits:1:29: limits.p.tiers.gold.wait: wait is not a field of a scope; write rules or scopes, and names of the next level under scopes`,
		`limits: {p: {scopes: {"*gold": {}}}}`:                `limits:1:23: limits.p.scopes."*gold": "*gold" begins with "*", as no name can; if it is a tier, write it under tiers, without the "*"`,
		`limits: {p: {tiers: {"*": {}}}}`:                     `limits:1:22: limits.p.tiers: "*" is no name of a tier; "*" stands under scopes`,
		`limits: {p: {tiers: 7}}`:                             `limits:1:21: limits.p.tiers: tiers is the number 7; write names under it, or {} for none`,
		`limits: {p: {shares: {"*gold": {part: 1%}}}}`:        `limits:1:23: limits.p.shares."*gold": name is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`,
	} {
		_, err := limitsyaml.Parse("limits", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", text, err, want)
		}
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"*gold": {}})
	if err == nil || !strings.Contains(err.Error(), `"*gold" begins with "*", as tiers do, and stands at the top`) {
		t.Error(err)
	}
}
