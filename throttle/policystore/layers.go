package policystore

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// policy returns the policy of a version over its base at a time, and when it changes by itself: the zero time for never.
func (v Version) policy(base *policy.Policy, now time.Time) (*policy.Policy, time.Time, error) {
	var next time.Time
	unmatched, limits := base.Limits()
	for _, o := range v.Overrides {
		if o.ended(now) {
			continue
		}
		next = sooner(next, o.Until)
		if err := layOver(limits, strings.Split(o.Scope, "/"), o); err != nil {
			return nil, next, err
		}
	}
	ends, some := endPauses(limits, now)
	if next = sooner(next, ends); len(v.Overrides) == 0 && !some {
		return base, next, nil
	}
	p, err := policy.New(unmatched, limits)
	return p, next, err
}

// layOver lays an override over the node at a path of a tree, which is created if it is not there.
func layOver(limits map[string]policy.ScopeConfig, path []string, o Override) (err error) {
	n := limits[path[0]]
	if len(path) == 1 {
		err = o.layOver(&n)
	} else {
		if n.Scopes == nil {
			n.Scopes = map[string]policy.ScopeConfig{}
		}
		err = layOver(n.Scopes, path[1:], o)
	}
	limits[path[0]] = n
	return err
}

func (o Override) layOver(n *policy.ScopeConfig) error {
	if field, err := limitsyaml.SetField(n, o.Name, o.Text); field {
		if o.Name == PausedField {
			n.PausedUntil = o.Until
		}
		return err
	}
	i := slices.IndexFunc(n.Rules, func(r policy.Rule) bool { return r.Name == o.Name })
	if o.Text == "" {
		if i >= 0 {
			n.Rules = slices.Delete(n.Rules, i, i+1)
		}
		return nil
	}
	rule, err := limitsyaml.ParseRule("rule "+o.Name+" of "+o.Scope, []byte(o.Text))
	if err != nil {
		return err
	}
	if i < 0 {
		n.Rules = append(n.Rules, rule)
	} else {
		n.Rules[i] = rule
	}
	return nil
}

// endPauses removes the pauses that have ended. It returns when the next ends, the zero time for never, and whether any has an end.
func endPauses(limits map[string]policy.ScopeConfig, now time.Time) (next time.Time, some bool) {
	for name, n := range limits {
		if !n.PausedUntil.IsZero() {
			some = true
			endPause(&n, now)
			limits[name] = n
		}
		below, more := endPauses(n.Scopes, now)
		next, some = sooner(sooner(next, n.PausedUntil), below), some || more
	}
	return next, some
}

func endPause(n *policy.ScopeConfig, now time.Time) {
	if ended(n.PausedUntil, now) {
		n.Pause, n.PausedUntil = policy.PauseInherited, time.Time{}
	}
}

// sooner returns the earlier of two times, of which the zero time is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// nodeAt returns the node of a scope in a policy, empty if there is none.
func nodeAt(p *policy.Policy, scope string) policy.ScopeConfig {
	_, limits := p.Limits()
	return nodeIn(limits, scope)
}

func nodeIn(limits map[string]policy.ScopeConfig, scope string) policy.ScopeConfig {
	n := policy.ScopeConfig{Scopes: limits}
	for name := range strings.SplitSeq(scope, "/") {
		n = n.Scopes[name]
	}
	return n
}

// Nodes iterates over the nodes of a tree of limits, each with its path, such as payments/*, in the order of the names.
func Nodes(limits map[string]policy.ScopeConfig) iter.Seq2[string, policy.ScopeConfig] {
	return func(yield func(string, policy.ScopeConfig) bool) { visit("", limits, yield) }
}

func visit(under string, limits map[string]policy.ScopeConfig, yield func(string, policy.ScopeConfig) bool) (more bool) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if !yield(under+name, limits[name]) || !visit(under+name+"/", limits[name].Scopes, yield) {
			return false
		}
	}
	return true
}

// PausedField is the name of the pause of a scope in an Override and a Difference.
const PausedField = limitsyaml.PausedField

// textIn returns a field or rule of a node as text, empty for none.
func textIn(n policy.ScopeConfig, name string) string {
	if text, is := limitsyaml.Field(n, name); is {
		return text
	}
	for _, r := range n.Rules {
		if r.Name == name {
			return limitsyaml.FormatRule(r)
		}
	}
	return ""
}

// namesIn returns the names of the fields and rules of some nodes, each once.
func namesIn(nodes ...policy.ScopeConfig) (names []string) {
	for _, n := range nodes {
		for name := range limitsyaml.Fields(n) {
			names = append(names, name)
		}
	}
	for _, n := range nodes {
		for _, r := range n.Rules {
			names = append(names, r.Name)
		}
	}
	return unique(names)
}

// isField reports whether a name is that of a field of a scope, and not of a rule.
func isField(name string) bool { return strings.HasSuffix(name, ":") }

// unique returns some names, each once, in their order.
func unique(names []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name string) bool {
		again := seen[name]
		seen[name] = true
		return again
	})
}
