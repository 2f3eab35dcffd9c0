package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

const maxApps = 100

// checkApps checks the owner of a scope, and the applications that may spend from it.
func (s *draftScope) checkApps(path string, faults *diag.Faults) (apps []string) {
	if s.owner != "" {
		if reason := diag.NameReason(s.owner); reason != "" {
			faults.Add(s.at, path+".owner", "owner "+reason)
		}
	}
	for i, app := range s.apps {
		reason := diag.NameReason(app.name)
		switch {
		case i >= maxApps:
			reason = fmt.Sprintf("is one of %d; the most is %d", len(s.apps), maxApps)
		case reason == "" && slices.Contains(apps, app.name):
			reason = "is there already; keep one of the two"
		}
		if reason != "" {
			faults.Add(app.at, path+".apps", fmt.Sprintf("application %s %s", quote(app.name), reason))
			if i >= maxApps {
				return apps
			}
		}
		apps = append(apps, app.name)
	}
	return apps
}

// Apps returns the applications that may spend from a scope: those listed at every level of its path
// that has a list. all is true if no level has one. Costs as much as Match.
func (p *Policy) Apps(s Scope) (apps []string, all bool) {
	apps, level := p.AppsAt(s)
	return apps, level.Len() == 0
}

// AppsAt is Apps. It also returns the lowest level that has a list, or the zero Scope.
func (p *Policy) AppsAt(s Scope) (apps []string, lowest Scope) {
	p.levelsOfApps(s, func(level Scope, named []string) {
		first := lowest.Len() == 0
		if lowest = level; first {
			apps = slices.Clone(named)
			return
		}
		apps = slices.DeleteFunc(apps, func(app string) bool { return !slices.Contains(named, app) })
	})
	return apps, lowest
}

// Authorize returns an *AppError if an application may not spend from a scope. The application must
// be listed at each level of the scope's path that lists applications. Costs as much as Match.
func (p *Policy) Authorize(s Scope, app string) error {
	var refused error
	p.levelsOfApps(s, func(level Scope, apps []string) {
		if refused == nil && !slices.Contains(apps, app) {
			refused = &AppError{Scope: s, App: app, Level: level, Apps: slices.Clone(apps)}
		}
	})
	return refused
}

// levelsOfApps visits the levels of a path that list applications, outermost first.
func (p *Policy) levelsOfApps(s Scope, visit func(level Scope, apps []string)) {
	p.visit(s, func(level Scope, layers []*tree) {
		var apps []string
		for _, layer := range layers { // those of the name replace those of "*"
			if layer.apps != nil {
				apps = layer.apps
			}
		}
		if apps != nil {
			visit(level, apps)
		}
	})
}

// Owner returns the owner of a scope: that of its lowest level that has one.
func (p *Policy) Owner(s Scope) (owner string) {
	if owners := p.Owners(s.String()); len(owners) > 0 {
		owner = owners[len(owners)-1]
	}
	return owner
}

// Owners returns the owners of the levels of a scope, or of a place such as payments/*, outermost
// first. A level without an owner is left out. Costs as much as Match.
func (p *Policy) Owners(place string) (owners []string) {
	p.visit(Scope{text: place}, func(_ Scope, layers []*tree) {
		owner := ""
		for _, layer := range layers { // that of the name replaces that of "*"
			if layer.owner != "" {
				owner = layer.owner
			}
		}
		if owner != "" {
			owners = append(owners, owner)
		}
	})
	return owners
}

// Named returns the places with a name of their own that a place such as payments/* covers:
// payments/acme, if the policy names acme. Their fields replace those of the place. Where the policy
// has no name for a level, that level stays "*". A place without "*" covers none.
func (p *Policy) Named(place string) (places []string) {
	var walk func(at []string, layers []*tree, rest []string)
	walk = func(at []string, layers []*tree, rest []string) {
		if len(rest) == 0 {
			if path := strings.Join(at, "/"); path != place {
				places = append(places, path)
			}
			return
		}
		names := map[string]bool{rest[0]: true}
		if rest[0] == "*" {
			for _, layer := range layers {
				for name := range layer.scopes {
					names[name] = true
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			walk(append(slices.Clone(at), name), under(nil, layers, name), rest[1:])
		}
	}
	walk(nil, []*tree{&p.root}, strings.Split(place, "/"))
	return places
}

// visit visits the trees that cover each level of a path, outermost first.
func (p *Policy) visit(s Scope, level func(Scope, []*tree)) {
	layers := []*tree{&p.root}
	for start := 0; start < len(s.text) && len(layers) > 0; {
		name, end := nameAt(s.text, start)
		layers = under(nil, layers, name)
		level(Scope{text: s.text[:end]}, layers)
		start = end + 1
	}
}
