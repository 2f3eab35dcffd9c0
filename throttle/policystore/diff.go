package policystore

import (
	"context"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// UnmatchedField is the Rule of a Difference in what happens to scopes that meet no rule. Its Scope is
// empty.
const UnmatchedField = "unmatched"

// Difference is one rule, or one of the Fields of a scope, in which two policies differ.
type Difference struct {
	// Scope is the rule's place in the policy, payments/*.
	Scope string
	// Rule is the rule's name, the name of a field, owner:, or UnmatchedField.
	Rule string
	// Before and After are the rule as limits.yaml has it, or the field with its name. Empty if there is
	// none.
	Before, After string
	// BeforeUntil and AfterUntil are when a temporary rule ends, or zero for a permanent one. The text of
	// a pause includes its end.
	BeforeUntil, AfterUntil time.Time
	// From is when After takes effect, if a temporary rule applies before it: the end of that rule.
	From time.Time
}

// Change is a version and what it changed.
type Change struct {
	Version Version
	// Known is false if the differences are not known: the version before is not kept any more, or one of
	// the two cannot be decoded.
	Known bool
	// Differences are those between the limits in force just before the version and those of the version,
	// both as of the time at which it was written, in the order of the scopes.
	Differences []Difference
}

// Differences returns the differences between two policies, in the order of the scopes. It does not
// include what ends by itself: see Store.Compare for two versions.
func Differences(before, after *policy.Policy) []Difference {
	was, is := basisOf(before), basisOf(after)
	list := unmatchedDifference(was, is)
	for _, path := range pathsOf(was.nodes, is.nodes) {
		list = append(list, nodeDifferences(path, was.nodes[path], is.nodes[path])...)
	}
	return list
}

// basis is what the rules of versions lie over.
type basis struct {
	policy    *policy.Policy
	unmatched policy.Unmatched
	nodes     map[string]policy.ScopeConfig // by their paths
	timed     map[string]bool               // the paths of those that are paused until a time
}

func basisOf(p *policy.Policy) *basis {
	b := basis{policy: p, timed: map[string]bool{}}
	var limits map[string]policy.ScopeConfig
	b.unmatched, limits = p.Limits()
	b.nodes = maps.Collect(nodesOf(limits, ""))
	for path, n := range b.nodes {
		if !n.PausedUntil.IsZero() {
			b.timed[path] = true
		}
	}
	return &b
}

func unmatchedDifference(before, after *basis) []Difference {
	if before.unmatched == after.unmatched {
		return nil
	}
	text := func(u policy.Unmatched) string { return UnmatchedField + ": " + string(u) }
	return []Difference{{Rule: UnmatchedField, Before: text(before.unmatched), After: text(after.unmatched)}}
}

// pathsOf are the keys of maps, each once, in their order.
func pathsOf[V any](all ...map[string]V) []string {
	paths := map[string]bool{}
	for _, one := range all {
		for path := range one {
			paths[path] = true
		}
	}
	return slices.Sorted(maps.Keys(paths))
}

func nodeDifferences(path string, before, after policy.ScopeConfig) (list []Difference) {
	add := func(name, was, is string) {
		if was != is {
			list = append(list, Difference{Scope: path, Rule: name, Before: was, After: is})
		}
	}
	for _, f := range fields {
		was, is := f.of(before), f.of(after)
		if was != "" {
			was = fieldText(f.name, was)
		}
		if is != "" {
			is = fieldText(f.name, is)
		}
		add(f.name, was, is)
	}
	for _, r := range before.Rules {
		switch other, has := ruleNamed(after.Rules, r.Name); {
		case !has:
			add(r.Name, limitsyaml.FormatRule(r), "")
		case other != r:
			add(r.Name, limitsyaml.FormatRule(r), limitsyaml.FormatRule(other))
		}
	}
	for _, r := range after.Rules {
		if _, had := ruleNamed(before.Rules, r.Name); !had {
			add(r.Name, "", limitsyaml.FormatRule(r))
		}
	}
	return list
}

func ruleNamed(rules []policy.Rule, name string) (policy.Rule, bool) {
	for _, r := range rules {
		if r.Name == name {
			return r, true
		}
	}
	return policy.Rule{}, false
}

// layer is what a version says live of one scope.
type layer struct {
	rules    []Override
	assigned *Assignment
	pause    *Pause
}

// sameAs reports whether two layers come to the same, each at a time.
func (l layer) sameAs(other layer, at, otherAt time.Time) bool {
	return slices.EqualFunc(l.rules, other.rules, func(a, b Override) bool {
		return a.Name == b.Name && a.Rule == b.Rule && a.Until.Equal(b.Until) && a.ended(at) == b.ended(otherAt)
	}) && reflect.DeepEqual(l.assigned, other.assigned) && samePause(l.pause, other.pause) && (l.pause == nil || l.pause.ended(at) == other.pause.ended(otherAt))
}

func samePause(a, b *Pause) bool { return a == b || a != nil && b != nil && *a == *b }

// laid is a version over what its rules lie over.
type laid struct {
	Version
	*basis
	layers map[string]layer // by their scopes
}

func layOver(v Version, b *basis) *laid {
	l := laid{v, b, map[string]layer{}}
	put := func(scope string, change func(*layer)) {
		one := l.layers[scope]
		change(&one)
		l.layers[scope] = one
	}
	for _, o := range v.Rules {
		put(o.Scope, func(one *layer) { one.rules = append(one.rules, o) })
	}
	for _, a := range v.Scopes {
		put(a.Scope, func(one *layer) { one.assigned = &a })
	}
	for _, p := range v.Pauses {
		put(p.Scope, func(one *layer) { one.pause = &p })
	}
	return &l
}

// node is what counts at a scope at a time, as Version.policy has it.
func (l *laid) node(path string, now time.Time) (n policy.ScopeConfig, err error) {
	n, one := l.nodes[path], l.layers[path]
	n.Rules = slices.Clone(n.Rules)
	if one.assigned != nil {
		err = one.assigned.layOver(&n)
	}
	if one.pause != nil {
		if p := one.pause.at(now); !p.ended(now) {
			p.lay(&n)
		}
	}
	if !n.PausedUntil.IsZero() && !now.Before(n.PausedUntil) {
		n.Pause, n.PausedUntil = policy.PauseInherited, time.Time{}
	}
	for _, o := range one.rules {
		if err == nil && !o.ended(now) {
			err = o.layOver(&n)
		}
	}
	if err != nil {
		err = &DamagedError{l.Number, err}
	}
	return n, err
}

// differences are those between two versions, each as it is at a time. Only what can be different is looked at: a history of
// small changes over a large file is visited quickly.
func differences(before, after *laid, atBefore, atAfter time.Time) ([]Difference, error) {
	var list []Difference
	paths := pathsOf(before.layers, after.layers)
	if before.basis != after.basis {
		list = unmatchedDifference(before.basis, after.basis)
		paths = pathsOf(nothing(before.nodes), nothing(after.nodes), nothing(before.layers), nothing(after.layers))
	} else if !atBefore.Equal(atAfter) {
		paths = pathsOf(before.timed, nothing(before.layers), nothing(after.layers))
	}
	for _, path := range paths {
		if before.basis == after.basis && !before.timed[path] && before.layers[path].sameAs(after.layers[path], atBefore, atAfter) {
			continue
		}
		was, err := before.node(path, atBefore)
		if err != nil {
			return nil, err
		}
		is, err := after.node(path, atAfter)
		if err != nil {
			return nil, err
		}
		some := nodeDifferences(path, was, is)
		for i, d := range some {
			some[i].BeforeUntil, some[i].AfterUntil = before.ends(path, d.Rule, atBefore), after.ends(path, d.Rule, atAfter)
		}
		list = append(append(list, some...), otherEnds(before, after, path, atBefore, atAfter, is, some)...)
	}
	return list, nil
}

// nothing has the keys of a map.
func nothing[V any](all map[string]V) map[string]bool {
	keys := make(map[string]bool, len(all))
	for key := range all {
		keys[key] = true
	}
	return keys
}

// otherEnds are the differences at one scope that do not show in what is in force there: a rule that ends at another time, and
// one for good below one that was set for a time. shown are those that show, and is what is in force.
func otherEnds(before, after *laid, path string, atBefore, atAfter time.Time, is policy.ScopeConfig, shown []Difference) (list []Difference) {
	shows := func(name string) bool {
		return slices.ContainsFunc(shown, func(d Difference) bool { return d.Rule == name })
	}
	for _, o := range after.layers[path].rules {
		if o.lasting() || o.ended(atAfter) {
			continue
		}
		if was := before.ends(path, o.Name, atBefore); !shows(o.Name) && !was.Equal(o.Until) {
			text := textIn(is, o.Name)
			list = append(list, Difference{Scope: path, Rule: o.Name, Before: text, After: text, BeforeUntil: was, AfterUntil: o.Until})
		}
		if lasted, lasts := before.lastingText(path, o.Name), after.lastingText(path, o.Name); lasted != lasts {
			list = append(list, Difference{Scope: path, Rule: o.Name, Before: lasted, After: lasts, From: o.Until})
		}
	}
	for _, o := range before.layers[path].rules {
		if o.lasting() || o.ended(atBefore) || !after.ends(path, o.Name, atAfter).IsZero() || shows(o.Name) {
			continue
		}
		text := textIn(is, o.Name) // the same, for good from now on
		list = append(list, Difference{Scope: path, Rule: o.Name, Before: text, After: text, BeforeUntil: o.Until})
	}
	return list
}

// lastingText is the rule that counts for good, empty for none.
func (l *laid) lastingText(path, name string) string {
	if i, found := l.find(path, name, false); found {
		return l.Rules[i].Rule
	}
	return textIn(l.nodes[path], name)
}

// textIn is a rule of a scope as limits.yaml has it, empty for none.
func textIn(n policy.ScopeConfig, name string) string {
	r, found := ruleNamed(n.Rules, name)
	if !found {
		return ""
	}
	return limitsyaml.FormatRule(r)
}

// Changes iterates over the versions that are kept, oldest first, each with what it changed. A version
// that cannot be decoded has only a number. The last pair has an error if Redis did not answer. Costs
// one round trip, which reads the whole history, and the memory of that and of two versions.
func (s *Store) Changes(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		all, err := s.all(ctx)
		if err != nil {
			yield(Change{}, err)
			return
		}
		var before *laid // nil where it is not known
		for _, number := range slices.Backward(newestFirst(all)) {
			c, after := changeOf(all, number, before)
			if !yield(c, nil) {
				return
			}
			before = after
		}
	}
}

// changeOf is one version of those that are kept, with what it changed of the one before.
func changeOf(all map[string]string, number int64, before *laid) (Change, *laid) {
	v, err := readVersion(number, all[fieldOf(number)])
	if err != nil {
		return Change{Version: Version{Number: number}}, nil
	}
	c := Change{Version: v}
	base, err := basisIn(all, v, before)
	if err != nil {
		return c, nil
	}
	after := layOver(v, base)
	switch {
	case v.Prev == "": // nothing was there before
		before = layOver(Version{}, basisOf(new(policy.Policy)))
	case before == nil || before.Number != number-1:
		return c, after
	}
	c.Differences, err = differences(before, after, v.At, v.At)
	c.Known = err == nil
	return c, after
}

// basisIn is what a version's rules lie over. That of the version before is taken if it is the same.
func basisIn(all map[string]string, v Version, before *laid) (*basis, error) {
	source := v.source()
	if before != nil && sameSource(source, before.source()) {
		return before.basis, nil
	}
	if source == nil {
		return basisOf(new(policy.Policy)), nil
	}
	text, there := all[sourceField+source.Sum]
	if !there {
		return nil, &DamagedError{v.Number, errors.New("its text is not there")}
	}
	p, err := readSource(v.Number, source.Sum, "Redis", []byte(text))
	if err != nil {
		return nil, err
	}
	return basisOf(p), nil
}

// Compare returns the differences from one version to another, each as it was when it came into force.
// The error is a *VersionError for a version that is not kept, a *DamagedError, or those of Store.
// Costs four round trips.
func (s *Store) Compare(ctx context.Context, before, after int64) ([]Difference, error) {
	old, err := s.laid(ctx, before, nil)
	if err != nil {
		return nil, err
	}
	now, err := s.laid(ctx, after, old)
	if err != nil {
		return nil, err
	}
	return differences(old, now, old.InForce, now.InForce)
}

// laid reads a version. What another one lies over is taken if it is the same.
func (s *Store) laid(ctx context.Context, number int64, other *laid) (*laid, error) {
	v, err := s.Version(ctx, number)
	if err != nil {
		return nil, err
	}
	if other != nil && sameSource(v.source(), other.source()) {
		return layOver(v, other.basis), nil
	}
	base, err := s.base(ctx, s.rdb, v)
	if err != nil {
		return nil, err
	}
	return layOver(v, basisOf(base)), nil
}
