package policy_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/randompolicy"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// lines renders bounds as "rule limit@scope", which overlay tables are easy to read in.
func lines(bounds []policy.MatchedRule) string {
	var out []string
	for _, b := range bounds {
		out = append(out, fmt.Sprintf("%s %d@%s", b.Rule.Name, b.Rule.Limit, b.Scope))
	}
	return strings.Join(out, ", ")
}

// The example of interfaces.md, with its promises.
func TestMatchExample(t *testing.T) {
	t.Parallel()
	p, err := limitsyaml.Load("../limitsyaml/testdata/limits.yaml")
	must(t, err)
	const unmatched = "unmatched"
	for i, row := range []struct{ promise, scope, want string }{
		0: {"payments/<any tenant>", "payments/globex",
			"account 200@payments, tenant 20@payments/globex, parallel 4@payments/globex"},
		1: {"payments/<any tenant>/refunds", "payments/globex/refunds",
			"account 200@payments, tenant 20@payments/globex, parallel 4@payments/globex, refunds 2@payments/globex/refunds"},
		2: {"rules with the same name replace, the others stay", "payments/acme",
			"account 200@payments, tenant 100@payments/acme, parallel 4@payments/acme"},
		3: {"An override inherits the nested scopes too (payments/acme/refunds keeps *'s refunds)", "payments/acme/refunds",
			"account 200@payments, tenant 100@payments/acme, parallel 4@payments/acme, refunds 2@payments/acme/refunds"},
		4: {"every level of the path that has rules is checked", "payments", "account 200@payments"},
		5: {"a scope longer than the tree meets no rules below", "payments/globex/charges/eu/1",
			"account 200@payments, tenant 20@payments/globex, parallel 4@payments/globex"},
		6: {"one node, no scopes", "search/anything", "plan 1000@search"},
		7: {"a scope that meets no rule at all: deny (default)", "mail/acme", unmatched},
	} {
		bounds, err := p.Match(mustScope(t, row.scope))
		got := lines(bounds)
		if e := (*policy.UnmatchedError)(nil); errors.As(err, &e) && e.Scope.String() == row.scope {
			got = unmatched
		} else if err != nil {
			t.Errorf("%d %s: %v", i, row.promise, err)
		}
		if got != row.want {
			t.Errorf("%d %s: %s meets\n%s, want\n%s", i, row.promise, row.scope, got, row.want)
		}
	}
}

func TestMatchUnmatched(t *testing.T) {
	t.Parallel()
	limits := map[string]policy.ScopeConfig{"a": {Scopes: map[string]policy.ScopeConfig{
		"b": {Rules: []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1}}},
		"c": {Rules: []policy.Rule{{Name: "r", Unlimited: true}}},
		"d": {Scopes: map[string]policy.ScopeConfig{"e": {}}},
	}}}
	for i, row := range []struct {
		unmatched policy.Unmatched
		scope     string
		matched   bool
	}{
		0: {policy.UnmatchedDeny, "a", false},
		1: {policy.UnmatchedDeny, "a/b", true},
		2: {policy.UnmatchedDeny, "a/b/x", true},
		3: {policy.UnmatchedDeny, "a/c", true},
		4: {policy.UnmatchedDeny, "a/d/e", false}, // nodes without rules are no rules
		5: {policy.UnmatchedDeny, "b", false},
		6: {"", "b", false},
		7: {policy.UnmatchedAllow, "b", true},
		8: {policy.UnmatchedAllow, "a/d/e", true},
		9: {policy.UnmatchedFail, "a/d/e", false},
	} {
		p, err := policy.New(row.unmatched, limits)
		must(t, err)
		_, err = p.Match(mustScope(t, row.scope))
		if row.matched != (err == nil) {
			t.Errorf("%d: %q under %q: %v", i, row.scope, row.unmatched, err)
		}
		if want := cmp.Or(row.unmatched, policy.UnmatchedDeny); p.Unmatched() != want || p.Denies() != (want != policy.UnmatchedAllow) {
			t.Errorf("%d: under %q: Unmatched is %q and Denies %t", i, row.unmatched, p.Unmatched(), p.Denies())
		}
	}
	var zero policy.Policy
	if _, err := zero.Match(mustScope(t, "a")); err == nil {
		t.Error("the zero Policy admits a scope")
	}
	p, _ := policy.New("", map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{{Name: "r", Unlimited: true}}}})
	if _, err := p.Match(policy.Scope{}); err == nil {
		t.Error("the zero Scope meets a rule")
	}
}

// The model is the definition of the overlay, word for word: given parent's
// layers P, low to high, the layers below are each "*" of P, then each tier of P, then each name of P. Names "a" have the tier gold. What the
// last of them says of answers counts for the rules of its level, and below it. The tree has its defaults written out.
func modelMatch(limits map[string]policy.ScopeConfig, s policy.Scope) (bounds []policy.MatchedRule, matched bool) {
	layers, says, heeds := []policy.ScopeConfig{{Scopes: limits}}, policy.Corrects{}, false
	for i, name := range s.Names() {
		var below []policy.ScopeConfig
		for kind := range 3 {
			for _, p := range layers {
				n, ok := p.Scopes[[]string{"*", "", name}[kind]]
				if kind == 1 && name == "a" {
					n, ok = p.Tiers["gold"]
				}
				if ok {
					below = append(below, n)
				}
			}
		}
		layers = below
		var order []string
		rules := map[string]policy.Rule{}
		for _, n := range layers {
			if n.Answers != "" || n.Corrects != (policy.Corrects{}) {
				says, heeds = n.Corrects, n.Answers.Correct()
			}
			matched = matched || len(n.Rules)+len(n.Pool.Members) > 0
			for _, r := range n.Rules {
				if _, known := rules[r.Name]; !known {
					order = append(order, r.Name)
				}
				rules[r.Name] = r
			}
		}
		for _, name := range order {
			if r := rules[name]; !r.Unlimited {
				bounds = append(bounds, policy.MatchedRule{Rule: r, Scope: s.Prefix(i + 1), Corrects: says, Heeds: heeds})
			}
		}
	}
	return bounds, matched
}

func TestMatchModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		limits := randompolicy.Limits(random, []string{"*", "a", "b", "c"}, 1+int(seed%levels))
		p, err := policy.New(policy.UnmatchedDeny, limits)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p = p.WithTiers(func(name policy.Scope) string {
			if strings.HasSuffix(name.String(), "/a") {
				return "gold"
			}
			return ""
		})
		_, limits = p.Limits()
		for range 30 {
			names := make([]string, 1+random.IntN(levels))
			for i := range names {
				names[i] = []string{"a", "b", "c", "d"}[random.IntN(4)]
			}
			s := mustScope(t, strings.Join(names, "/"))
			want, matched := modelMatch(limits, s)
			got, err := p.Match(s)
			if (err == nil) != matched || !reflect.DeepEqual(bare(got), want) {
				t.Fatalf("seed %d: %s meets %s, %v, want %s\n%s", seed, s, lines(got), err, lines(want), limitsyaml.Format(p))
			}
		}
	}
}

// "allocates the answer", and nothing else.
func TestMatchAllocates(t *testing.T) {
	p, err := limitsyaml.Load("../limitsyaml/testdata/limits.yaml")
	must(t, err)
	s := mustScope(t, "search/acme")
	if got := testing.AllocsPerRun(100, func() { _, _ = p.Match(s) }); got != 1 {
		t.Errorf("Match allocates %v times for one rule, want 1", got)
	}
}

// bare returns the bounds without their patterns, for tests of other things.
func bare(bounds []policy.MatchedRule) []policy.MatchedRule {
	out := slices.Clone(bounds)
	for i := range out {
		out[i].Pattern = ""
	}
	return out
}

// "Pattern is where the policy has the rule".
func TestMatchPattern(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
limits:
  a:
    scopes:
      "*":
        rules: [{name: x, algorithm: concurrency, limit: 1}, {name: y, algorithm: concurrency, limit: 1}]
        scopes: {e: {rules: [{name: z, algorithm: concurrency, limit: 1}]}}
      b: {rules: [{name: x, algorithm: concurrency, limit: 2}]}
`)
	bounds, err := p.Match(mustScope(t, "a/b/e"))
	var got []string
	for _, b := range bounds {
		got = append(got, b.Pattern+":"+b.Rule.Name)
	}
	if want := []string{"a/b:x", "a/*:y", "a/*/e:z"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
