package policy

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// TierOf returns the tier of a name, such as gold for payments/acme, and "" for none. A policy asks for it where the scope above the
// name has ScopeConfig.Tiers. Source: docs/tiers.md
type TierOf func(ctx context.Context, name Scope) (tier string, err error)

// WithTiers returns the policy with the tiers of names: of is asked for the tier of each name beside which the policy has tiers. It must
// be safe for concurrent use, and answer the same until the caller compiles the rules of that name anew. Digest does not depend on it.
func (p *Policy) WithTiers(of func(name Scope) (tier string)) *Policy {
	with := *p
	with.tierOf = of
	return &with
}

// Tiered reports whether names have tiers anywhere in the policy.
func (p *Policy) Tiered() bool { return p.tiered }

// Tiers returns the tiers that names right below a scope, or a place such as payments/*, can have, sorted, nil for none. Costs as much as
// Match.
func (p *Policy) Tiers(place string) []string {
	tiers := map[string]bool{}
	p.visit(Scope{place}, func(level Scope, layers []*tree) {
		for _, t := range layers {
			for tier := range t.tiers {
				if level.text == place {
					tiers[tier] = true
				}
			}
		}
	})
	if len(tiers) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(tiers))
}

// TieredNames returns the levels of a scope that can have a tier: payments/acme of payments/acme/refunds. Costs as much as Match, and
// nothing if the policy has no tiers.
func (p *Policy) TieredNames(s Scope) (names []Scope) {
	if !p.tiered {
		return nil
	}
	above := []*tree{}
	p.visit(s, func(level Scope, layers []*tree) {
		if lastWith(above, hasTiers) != nil && !isMember(level.last(), above) {
			names = append(names, level)
		}
		above = layers
	})
	return names
}

func hasTiers(t *tree) bool { return t.tiers != nil }

// Tier returns the tier of a name such as payments/acme by WithTiers, "" for none. The place payments//gold has the tier gold.
func (p *Policy) Tier(level Scope) string {
	name := level.last()
	if tier, is := strings.CutPrefix(name, tierMark); is {
		return tier
	}
	if p.tierOf == nil {
		return ""
	}
	return p.tierOf(level)
}
