package policy

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// tierMark begins a level of a place that stands for a tier: payments//gold is the tier gold of the names below payments. No name
// contains it.
const tierMark = "/"

// SplitPlace returns the levels of a place in the limits, outermost first: payments and acme of payments/acme, payments and * of
// payments/*, payments and /gold of payments//gold.
func SplitPlace(place string) (levels []string) {
	for more := true; more; {
		var level string
		level, place, more = cutLevel(place)
		levels = append(levels, level)
	}
	return levels
}

// cutLevel cuts the outermost level off a place.
func cutLevel(place string) (level, rest string, more bool) {
	start := 0
	if strings.HasPrefix(place, tierMark) {
		start = len(tierMark)
	}
	if i := strings.IndexByte(place[start:], '/'); i >= 0 {
		return place[:start+i], place[start+i+1:], true
	}
	return place, "", false
}

// OneName reports whether a level of a place is a name of a task, neither "*" nor a tier.
func OneName(level string) bool { return level != anyName && !strings.HasPrefix(level, tierMark) }

// Within reports whether a scope is at or below a place of the limits, such as payments/*. It knows nothing of tiers: payments//gold
// has no scope within it, but the places below it. See Policy.Covers.
func Within(place, scope string) bool {
	for more, has := true, true; more; {
		if !has {
			return false
		}
		var at, level string
		at, place, more = cutLevel(place)
		level, scope, has = cutLevel(scope)
		if at != anyName && at != level {
			return false
		}
	}
	return true
}

// Covers is Within by the tiers of names: payments//gold covers payments/acme if acme has the tier gold by WithTiers.
func (p *Policy) Covers(place string, s Scope) bool {
	level := Scope{}
	for more := true; more; {
		var at string
		at, place, more = cutLevel(place)
		if level = s.below(level); level == (Scope{}) {
			return false
		}
		tier, is := strings.CutPrefix(at, tierMark)
		if is && (p.Tier(level) != tier || !slices.Contains(p.TieredNames(s), level)) || !is && at != anyName && at != level.last() {
			return false
		}
	}
	return true
}

// Below iterates over what is configured right below a scope, tiers first, each with its level in a place: /gold, *, acme.
func (s ScopeConfig) Below() iter.Seq2[string, ScopeConfig] {
	return func(yield func(string, ScopeConfig) bool) {
		for _, tier := range slices.Sorted(maps.Keys(s.Tiers)) {
			if !yield(tierMark+tier, s.Tiers[tier]) {
				return
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Scopes)) {
			if !yield(name, s.Scopes[name]) {
				return
			}
		}
	}
}

// At returns what is configured at a place below a scope, such as acme/refunds or /gold, without what it inherits.
func (s ScopeConfig) At(place string) ScopeConfig {
	for more := true; more; {
		var level string
		level, place, more = cutLevel(place)
		if tier, is := strings.CutPrefix(level, tierMark); is {
			s = s.Tiers[tier]
		} else {
			s = s.Scopes[level]
		}
	}
	return s
}

// Edit changes what is configured at a place below a scope, which is made if it is not there. It changes the maps of the scope.
func (s *ScopeConfig) Edit(place string, change func(*ScopeConfig) error) error {
	level, rest, more := cutLevel(place)
	below, name := &s.Scopes, level
	if tier, is := strings.CutPrefix(level, tierMark); is {
		below, name = &s.Tiers, tier
	}
	at := (*below)[name]
	err := error(nil)
	if more {
		err = at.Edit(rest, change)
	} else {
		err = change(&at)
	}
	if *below == nil {
		*below = map[string]ScopeConfig{}
	}
	(*below)[name] = at
	return err
}
