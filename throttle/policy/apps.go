package policy

import (
	"maps"
	"slices"
	"strings"
)

// Apps returns the applications that may spend from a scope: those listed at every level of its path that has a list. lowest is
// the lowest level with a list, the zero Scope if there is none: then all may. Costs as much as Match.
func (p *Policy) Apps(s Scope) (apps []string, lowest Scope) {
	p.settings(s, hasApps, func(level Scope, t *tree) {
		if lowest.text == "" {
			apps = slices.Clone(t.Apps)
		}
		lowest = level
		apps = slices.DeleteFunc(apps, func(app string) bool { return !slices.Contains(t.Apps, app) })
	})
	return apps, lowest
}

// Authorize returns an *AppError if an application may not spend from a scope. The application must be listed at each level of
// the scope's path that lists applications. Costs as much as Match.
func (p *Policy) Authorize(s Scope, app string) error {
	var refused error
	p.settings(s, hasApps, func(level Scope, t *tree) {
		if refused == nil && !slices.Contains(t.Apps, app) {
			refused = &AppError{Scope: s, App: app, Level: level, Apps: slices.Clone(t.Apps)}
		}
	})
	return refused
}

func hasApps(t *tree) bool { return len(t.Apps) > 0 }

// Owner returns the owner of a scope: that of its lowest level that has one.
func (p *Policy) Owner(s Scope) (owner string) {
	if owners := p.Owners(s.String()); len(owners) > 0 {
		owner = owners[len(owners)-1]
	}
	return owner
}

// Owners returns the owners of the levels of a scope, or of a place such as payments/*, outermost first. A level without an owner
// is left out. Costs as much as Match.
func (p *Policy) Owners(place string) (owners []string) {
	hasOwner := func(t *tree) bool { return t.Owner != "" }
	p.settings(Scope{text: place}, hasOwner, func(_ Scope, t *tree) { owners = append(owners, t.Owner) })
	return owners
}

// Named returns the places with a name of their own that a place such as payments/* covers: payments/acme, if the policy names
// acme, and payments//gold for a tier; payments//gold may cover payments/acme. Their fields replace those of the place. Where the policy
// has no name for a level, that level stays "*". A place without "*" and tiers covers none.
func (p *Policy) Named(place string) (places []string) {
	bare := p.WithTiers(nil) // whatever the tiers of these names
	var walk func(at []string, layers []*tree, rest []string)
	walk = func(at []string, layers []*tree, rest []string) {
		if len(rest) == 0 {
			if path := strings.Join(at, "/"); path != place {
				places = append(places, path)
			}
			return
		}
		names := map[string]bool{rest[0]: true}
		for _, layer := range layers {
			if rest[0] == anyName {
				for tier := range layer.tiers {
					names[tierMark+tier] = true
				}
			}
			if !OneName(rest[0]) {
				for name := range layer.scopes {
					names[name] = true
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			here := append(slices.Clone(at), name)
			walk(here, bare.under(nil, layers, Scope{strings.Join(here, "/")}), rest[1:])
		}
	}
	walk(nil, []*tree{&p.root}, SplitPlace(place))
	return places
}
