package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/upstream"
)

// Warning reports a part of a policy that is valid, but most likely a mistake.
type Warning struct {
	// Scope is the place in the policy, such as payments/*. Rule is the rule's name there.
	Scope, Rule string
	// Reason says what is suspicious, and what to do.
	Reason string
}

// String returns one line: payments/acme tenant: reason.
func (w Warning) String() string { return w.Scope + " " + w.Rule + ": " + w.Reason }

// Lint returns what is suspicious in a policy, in the order of scopes: an override that changes nothing, the removal of a rule
// that is not inherited, a rule that can never bind because of a stricter rule above it, a calendar that resets on days that some
// months lack, a rule that tiers count by several algorithms, and rules whose unit may let all tasks pass, or none. It costs one Match
// for each place that the policy has, and one more for each whose last name is not "*".
func (p *Policy) Lint() (list []Warning) {
	_, tree := p.Limits()
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		list = append(list, p.WithTiers(nil).lint(tree[name], name, false)...)
	}
	return list
}

// lint is Lint at and below a place. tiered says that tiers stand beside its name, whose rules it may replace.
func (p *Policy) lint(n ScopeConfig, path string, tiered bool) (list []Warning) {
	sibling := siblingOf(path)
	inherited, own := p.matchedAt(sibling), p.matchedAt(path)
	for _, r := range n.Rules {
		warn := func(format string, args ...any) {
			list = append(list, Warning{Scope: path, Rule: r.Name, Reason: fmt.Sprintf(format, args...)})
		}
		above := slices.IndexFunc(inherited, func(b MatchedRule) bool { return b.Rule.Name == r.Name && b.Scope.Len() == levelOf(sibling) })
		switch {
		case r.Unlimited && above < 0 && !tiered:
			warn("removes a rule that it does not inherit; remove the line, or mend the name")
			continue
		case r.Unlimited:
			continue
		case above >= 0 && !tiered && fmt.Sprint(inherited[above].Rule) == fmt.Sprint(r):
			warn("says what it inherits from %s; remove the line", inherited[above].Pattern)
		}
		if r.Algorithm != Concurrency && r.Unit != Requests {
			warn("counts %s; tasks that do not say how many %s they cost are not limited by it", r.Unit, r.Unit)
			if r.Algorithm == TokenBucket && r.Burst == defaultBurst {
				warn("has a burst of %d, and a task that costs more %s can never pass; give it a burst of the largest task's cost", defaultBurst, r.Unit)
			}
			if meant := diag.Nearest(r.Unit, UsageUnits()); meant != "" && !slices.Contains(UsageUnits(), r.Unit) && p.readsUsage(path) {
				warn("counts %s, which no answer of its API settles; did you mean %s?", r.Unit, meant)
			}
			if r.Unit == USD && 0 < r.Limit && r.Limit < leastMoney {
				warn("admits %s, since usd are millionths of a dollar; %d dollars are %d", Amount(r.Limit, USD), r.Limit, r.Limit*1_000_000)
			}
		}
		if of, ok := r.Resets.(interface{ Lacking() []time.Month }); ok && len(of.Lacking()) > 0 {
			warn("resets on days that %s lack, and no period begins on them there; write L for the last day of a month", monthNames(of.Lacking()))
		}
		if by := bindsBefore(own, r, levelOf(path)); by != "" {
			warn("can never bind: %s lets no more through", by)
		}
	}
	counted := map[string]Algorithm{} // by the rules of tiers and of "*"
	for level, below := range n.Below() {
		at, one := path+"/"+level, OneName(level)
		list = append(list, p.lint(below, at, one && len(n.Tiers) > 0)...)
		for _, r := range below.Rules {
			if was, is := counted[r.Name]; one || r.Unlimited {
				continue
			} else if !is {
				counted[r.Name] = r.Algorithm
			} else if was != r.Algorithm {
				list = append(list, Warning{Scope: at, Rule: r.Name, Reason: fmt.Sprintf("is a %s, and another tier counts it by a %s: a change of tier "+
					"forgets what was spent; give it a name of its own", r.Algorithm, was)})
			}
		}
	}
	return list
}

// leastMoney is a cent. A limit below was most likely meant in dollars.
const leastMoney = 10_000

// readsUsage reports whether answers to calls of a place say what they used of UsageUnits.
func (p *Policy) readsUsage(place string) bool {
	return slices.ContainsFunc(p.Reader(Scope{place}).Tables, func(t *upstream.Table) bool { return t.Usage })
}

func monthNames(months []time.Month) string {
	names := make([]string, len(months))
	for i, m := range months {
		names[i] = m.String()[:3]
	}
	return strings.Join(names, ", ")
}

// siblingOf returns the place of "*" beside the last level of a place, for the names that the policy does not have. It is empty if that
// is "*" itself.
func siblingOf(place string) string {
	if last := (Scope{place}).last(); last != anyName {
		return strings.TrimSuffix(place, last) + anyName
	}
	return ""
}

// levelOf returns the Len of the Scope of a place.
func levelOf(place string) int { return Scope{place}.Len() }

// matchedAt returns the rules that count at a place, nil if there are none.
func (p *Policy) matchedAt(place string) []MatchedRule {
	rules, _ := p.Match(Scope{place})
	return rules
}

// bindsBefore returns a rule of a higher level that never admits more than r does, in any time. r then denies nothing that this
// rule admits. It is empty if there is none.
func bindsBefore(path []MatchedRule, r Rule, level int) string {
	for _, b := range path {
		if b.Scope.Len() < level && !b.Rule.Shadow && b.Rule.Active == nil && !b.Paused() && within(b.Rule, r) {
			return b.Pattern + ":" + b.Rule.Name
		}
	}
	return ""
}

// within reports whether r admits all that above admits.
func within(above, r Rule) bool {
	if above.Algorithm == Concurrency || r.Algorithm == Concurrency {
		return above.Algorithm == r.Algorithm && above.Limit <= r.Limit
	}
	if above.Unit != r.Unit || above.Algorithm == Calendar || r.Algorithm == Calendar || above.Limit == 0 || r.Limit == 0 {
		return false
	}
	switch r.Algorithm {
	case TokenBucket: // burst and rate
		return most(above, 0) <= r.Burst && rate(above) <= rate(r)
	default: // in any of its windows
		return most(above, r.Per) <= r.Limit
	}
}

func rate(r Rule) float64 { return float64(r.Limit) / float64(r.Per) }

// most returns the most that a rule admits in any interval of the length in, or a little more.
func most(r Rule, in time.Duration) int64 {
	windows := max(1, int64((in+r.Per-1)/max(r.Per, 1)))
	switch r.Algorithm {
	case TokenBucket:
		return r.Burst + int64(rate(r)*float64(in)) + 1
	case FixedWindow: // one more window may begin within
		return r.Limit * (windows + 1)
	default:
		return r.Limit * windows
	}
}
