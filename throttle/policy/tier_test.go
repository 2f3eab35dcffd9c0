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

// A name that begins as a pool's members do has a tier where no pool is, and a member has none.
func TestTierOfAName(t *testing.T) {
	t.Parallel()
	for pool, want := range map[string]string{"": "tenant 100@payments/@acme", "    pool: {members: [acme]}\n": ""} {
		p := mustParse(t, "limits:\n  payments:\n"+pool+`    tiers: {gold: {rules: [{name: tenant, algorithm: sliding-window, limit: 100, per: 1s}]}}
`).WithTiers(func(policy.Scope) string { return "gold" })
		scope := mustScope(t, "payments/@acme")
		got, _ := p.Match(scope)
		covers := p.Covers("payments//gold", scope)
		if names := p.TieredNames(scope); lines(got) != want || (len(names) == 1) != (want != "") || covers != (want != "") {
			t.Errorf("with %q it meets %q, %v have tiers, and payments//gold covers it: %t", pool, lines(got), names, covers)
		}
	}
}

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
	if bound, _ := p.Match(mustScope(t, "payments/big")); bound[1].Pattern != "payments//gold" || bound[2].Pattern != "payments/*" {
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
	if got := p.Tiers("payments"); !slices.Equal(got, []string{"free", "gold"}) || p.Tiers("search") != nil || !p.Tiered() {
		t.Errorf("tiers %v", got)
	}
	// The digest is that of the limits, whatever the tiers of names are.
	if p.Digest() != mustParse(t, tiered).Digest() || p.Digest() == mustParse(t, strings.Replace(tiered, "limit: 100", "limit: 101", 1)).Digest() {
		t.Error("the digest depends on who is in which tier, or not on the tiers")
	}
}

// "`payments//gold` is the tier's place, as `payments/*` is that of every name."
func TestPlacesOfTiers(t *testing.T) {
	t.Parallel()
	p := mustParse(t, tiered)
	for place, want := range map[string][]string{
		"payments/*":     {"payments//free", "payments//gold", "payments/acme"},
		"payments//gold": {"payments/acme"},
		"payments/acme":  nil,
	} {
		if got := p.Named(place); !slices.Equal(got, want) {
			t.Errorf("%s covers %v, want %v", place, got, want)
		}
	}
	if got := p.Owners("payments//gold"); !slices.Equal(got, []string{"sales"}) {
		t.Errorf("owners %v", got)
	}
	var rules []string
	for place, r := range p.Rules() {
		rules = append(rules, place+":"+r.Name)
	}
	if !slices.Contains(rules, "payments//gold:tenant") || !slices.Contains(rules, "payments//gold/refunds:refunds") {
		t.Errorf("rules %v", rules)
	}
	if text := string(limitsyaml.Format(p)); !strings.Contains(text, "    tiers:\n      free:\n") || string(limitsyaml.Format(mustParse(t, text))) != text {
		t.Errorf("written as\n%s", text)
	}
}

// "No name of a task is taken for a tier, whatever it holds."
func TestNamesBesideTiers(t *testing.T) {
	t.Parallel()
	p := mustParse(t, tiered).WithTiers(func(name policy.Scope) string {
		if name.String() == "payments/**" {
			return "gold"
		}
		return ""
	})
	for _, name := range []string{"gold", "*gold", "**", "*", "/", "/gold", "//gold", "tiers"} {
		limit := int64(5)
		if name == "**" {
			limit = 100
		}
		s := mustScope(t, policy.JoinScope("payments", name, "refunds"))
		bound, err := p.Match(s)
		if err != nil || len(bound) != 4 || bound[1].Rule.Limit != limit || bound[1].Scope != s.Prefix(2) {
			t.Errorf("%q meets %s, %v", name, lines(bound), err)
		}
		for place, want := range map[string]bool{"payments": true, "payments/*": true, "payments//gold": limit == 100, "payments//free": false, "payments/*/refunds": true} {
			if policy.Within(place, s.String()) != (want && place != "payments//gold") || p.Covers(place, s) != want {
				t.Errorf("%s is at or below %s: %t, by tiers %t", s, place, policy.Within(place, s.String()), p.Covers(place, s))
			}
		}
	}
	for _, place := range []string{"payments//gold", "payments//", "//gold", "/gold"} {
		if _, err := policy.ParseScope(place); err == nil {
			t.Errorf("%s is the scope of a task", place)
		}
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
		"payments//free tenant: says what it inherits from payments/*; remove the line",
		"payments//gold tenant: is a token-bucket, and another tier counts it by a sliding-window: a change of tier forgets what was spent; give it a name of its own",
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
		`limits: {p: {tiers: {gold: {rule: []}}}}`:            `limits:1:29: limits.p.tiers.gold.rule: rule is not a field of a scope; did you mean rules?`,
		`limits: {p: {tiers: {"*": {}}}}`:                     `limits:1:22: limits.p.tiers."*": "*" is no tier; write it under scopes, for the names without one`,
		`limits: {p: {tiers: {a/b: {}}}}`:                     `limits:1:22: limits.p.tiers."a/b": name holds a '/', which divides names; write another character`,
		`limits: {p: {tier: {}}}`:                             `limits:1:14: limits.p.tier: tier is not a field of a scope; did you mean tiers?`,
		`limits: {p: {tiers: 7}}`:                             `limits:1:21: limits.p.tiers: tiers is the number 7; write names under it, or {} for none`,
	} {
		_, err := limitsyaml.Parse("limits", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", text, err, want)
		}
	}
}
