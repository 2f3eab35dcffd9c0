package policy

import (
	"maps"
	"slices"
)

// Limits returns the policy as a tree of which New makes an equal policy, for programs that edit it.
// The caller may keep and change the tree.
func (p *Policy) Limits() (Unmatched, map[string]ScopeConfig) {
	return p.Unmatched(), p.root.node().Scopes
}

func (t *tree) node() ScopeConfig {
	n := ScopeConfig{Rules: slices.Clone(t.rules), Scopes: map[string]ScopeConfig{}, Owner: t.owner, Apps: slices.Clone(t.apps), Hosts: slices.Clone(t.hosts), Pause: t.pause, PausedUntil: t.until}
	n.Weight, n.Shares, n.Answers, n.Corrects, n.Refusals, n.ResetUnit = t.weight, maps.Clone(t.shares), t.answers, t.corrects, t.refusals, t.unit
	if t.every != nil {
		n.Scopes[anyName] = t.every.node()
	}
	for name, child := range t.scopes {
		n.Scopes[name] = child.node()
	}
	return n
}
