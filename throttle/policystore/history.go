package policystore

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Change is a version and what it changed.
type Change struct {
	Version Version
	// Known is false if the differences are not known: the version before is not kept any more, or one of the two cannot be decoded.
	Known bool
	// Differences are those between the limits in force just before the version and those of the version, both as of the time at which it
	// was written, in the order of the scopes.
	Differences []Difference
}

// Changes iterates over the versions that are kept, oldest first, each with what it changed. A version that cannot be decoded has only
// a number. The last pair has an error if Redis did not answer. Costs one round trip for each 25 versions, and one for each source.
func (s *Store) Changes(ctx context.Context) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		before := state{base: &base{policy: new(policy.Policy)}}
		for after, err := range s.history(ctx) {
			c := Change{Version: after.Version}
			if err == nil && after.base != nil && before.base != nil && before.Number == after.Number-1 {
				list, damaged := differences(&before, &after, after.At, after.At)
				c.Differences, c.Known = list, damaged == nil
			}
			if !yield(c, err) {
				return
			}
			before = after
		}
	}
}

// pageSize is how many versions are read at once.
const pageSize = 25

// history iterates over the versions that are kept, oldest first. The base of one that cannot be decoded is nil; versions in a row
// that rest on the same share it. The last pair has an error if Redis did not answer.
func (s *Store) history(ctx context.Context) iter.Seq2[state, error] {
	return func(yield func(state, error) bool) {
		newest, err := s.Newest(ctx)
		var last state
		for number := max(1, newest-Kept+1); err == nil && number <= newest; {
			var names []string
			for end := min(newest, number+pageSize-1); number <= end; number++ {
				names = append(names, versionField(number))
			}
			var texts map[string]string
			texts, err = s.fields(ctx, s.rdb, names...)
			for i, name := range names {
				if err != nil || texts[name] == "" {
					continue // it is not kept any more
				}
				if last, err = s.stateAfter(ctx, last, number-int64(len(names)-i), texts[name]); err == nil && !yield(last, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(state{}, err)
		}
	}
}

// stateAfter decodes a version, and reads its base unless it is that of the version before.
func (s *Store) stateAfter(ctx context.Context, before state, number int64, text string) (state, error) {
	r, err := decode(number, text)
	if err != nil {
		return state{Version: Version{Number: number}}, nil
	}
	if before.base != nil && sameSource(r.source(), before.source()) {
		return state{r.Version, before.base}, nil
	}
	p, err := s.base(ctx, s.rdb, r.Version)
	if errors.As(err, new(*DamagedError)) {
		return state{Version: r.Version}, nil
	}
	return state{r.Version, &base{policy: p}}, err
}

// Policies returns the versions that can be decoded, oldest first, and the policy of each when it came into force. Costs what Changes costs.
// The error is Redis's.
func (s *Store) Policies(ctx context.Context) (versions []Version, policies []*policy.Policy, err error) {
	for k, err := range s.history(ctx) {
		if err != nil {
			return nil, nil, err
		}
		if k.base != nil {
			if p, _, err := k.policy(k.base.policy, k.InForce); err == nil {
				versions, policies = append(versions, k.Version), append(policies, p)
			}
		}
	}
	return versions, policies, nil
}

// UnmatchedSince returns the version since which a scope that met a rule before meets none. If the rule ended by its own time, it is
// the version that had the rule. known is false if none of the kept versions had a rule for the scope, and has no meaning for a scope
// that meets a rule now. Costs what Changes costs. The error is a *policy.ScopeError, or Redis's.
func (s *Store) UnmatchedSince(ctx context.Context, scope string) (since Version, known bool, err error) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return Version{}, false, err
	}
	versions, policies, err := s.Policies(ctx)
	for i, p := range slices.Backward(policies) {
		if _, unmatched := p.Match(parsed); unmatched == nil {
			return versions[min(i+1, len(versions)-1)], true, nil
		}
	}
	return Version{}, false, err
}

// UnmatchedField is the Rule of a Difference in what happens to scopes that meet no rule. Its Scope is empty.
const UnmatchedField = "unmatched"

// Difference is one rule, or one of the Fields of a scope, in which two policies differ.
type Difference struct {
	Scope string // the rule's place in the policy, payments/*
	Rule  string // its name, the name of a field, owner:, or UnmatchedField
	// Before and After are the rule as limits.yaml has it, or the field with its name. Empty if there is none.
	Before, After string
	// BeforeUntil and AfterUntil are when a temporary rule ends, or zero for a permanent one. The text of a pause includes its end.
	BeforeUntil, AfterUntil time.Time
	// From is when After takes effect, if a temporary rule applies before it: the end of that rule.
	From time.Time
}

// Differences returns the differences between two policies, in the order of the scopes. It does not include what ends by itself: see
// Store.Compare for two versions.
func Differences(before, after *policy.Policy) []Difference {
	list, _ := differences(&state{base: &base{policy: before}}, &state{base: &base{policy: after}}, time.Time{}, time.Time{}) // no live change, no error
	return list
}

// Compare returns the differences from one version to another, each as it was when it came into force. The error is a *VersionError for a
// version that is not kept, a *DamagedError, or those of Store. Costs four round trips.
func (s *Store) Compare(ctx context.Context, before, after int64) ([]Difference, error) {
	var states [2]*state
	for i, number := range []int64{before, after} {
		v, err := s.Version(ctx, number)
		if err != nil {
			return nil, err
		}
		p, err := s.base(ctx, s.rdb, v)
		if err != nil {
			return nil, err
		}
		states[i] = &state{Version: v, base: &base{policy: p}}
	}
	return differences(states[0], states[1], states[0].InForce, states[1].InForce)
}

// base is the policy below the live changes of versions.
type base struct {
	policy *policy.Policy
	nodes  map[string]policy.ScopeConfig // by their paths; see all
}

func (b *base) all() map[string]policy.ScopeConfig {
	if b.nodes == nil {
		_, limits := b.policy.Limits()
		b.nodes = maps.Collect(Nodes(limits))
	}
	return b.nodes
}

// state is a version and the policy below its live changes.
type state struct {
	Version
	base *base
}

// node returns what a version has at a scope at a time, or without its temporary rules.
func (s *state) node(scope string, now time.Time, temporary bool) (policy.ScopeConfig, error) {
	n := s.base.all()[scope]
	n.Rules = slices.Clone(n.Rules)
	endPause(&n, now)
	for _, o := range s.at(scope) {
		if o.ended(now) || !temporary && !o.Until.IsZero() {
			continue
		}
		if err := o.layOver(&n); err != nil {
			return n, &DamagedError{s.Number, err}
		}
	}
	return n, nil
}

// value is a rule or field of a version at a time.
type value struct {
	text    string
	until   time.Time // when it ends if it is a temporary rule
	lasting string    // what is permanent below it
}

// values returns what a version has at a scope at a time, by name, and the names in their order.
func (s *state) values(scope string, now time.Time) (map[string]value, []string, error) {
	is, err := s.node(scope, now, true)
	if err != nil {
		return nil, nil, err
	}
	lasting, err := s.node(scope, now, false)
	if err != nil {
		return nil, nil, err
	}
	values := map[string]value{}
	names := namesIn(is, lasting)
	for _, name := range names {
		v := value{text: textIn(is, name), lasting: textIn(lasting, name)}
		if o, live := s.Override(scope, name, now); live && name != PausedField {
			v.until = o.Until // the text of a pause includes its end
		}
		if isField(name) && v.text != "" && name != PausedField {
			v.text = name + " " + v.text
		}
		values[name] = v
	}
	return values, names, nil
}

// differences returns those between two versions, each as it is at a time. It looks only at scopes that can differ, so that a history of
// small changes to a large file is read quickly.
func differences(before, after *state, atBefore, atAfter time.Time) (list []Difference, err error) {
	sameBase := before.base == after.base && atBefore.Equal(atAfter)
	var scopes []string
	for _, o := range slices.Concat(before.Overrides, after.Overrides) {
		scopes = append(scopes, o.Scope)
	}
	if !sameBase {
		scopes = slices.AppendSeq(slices.AppendSeq(scopes, maps.Keys(before.base.all())), maps.Keys(after.base.all()))
		if was, is := before.base.policy.Unmatched(), after.base.policy.Unmatched(); was != is {
			list = append(list, Difference{Rule: UnmatchedField, Before: UnmatchedField + ": " + string(was), After: UnmatchedField + ": " + string(is)})
		}
	}
	slices.Sort(scopes)
	for _, scope := range slices.Compact(scopes) {
		if sameBase && slices.Equal(before.at(scope), after.at(scope)) {
			continue
		}
		some, err := scopeDifferences(before, after, scope, atBefore, atAfter)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

func scopeDifferences(before, after *state, scope string, atBefore, atAfter time.Time) (list []Difference, err error) {
	was, had, err := before.values(scope, atBefore)
	if err != nil {
		return nil, err
	}
	is, has, err := after.values(scope, atAfter)
	if err != nil {
		return nil, err
	}
	for _, name := range unique(append(had, has...)) {
		a, b := was[name], is[name]
		if a.text != b.text || !a.until.Equal(b.until) {
			list = append(list, Difference{Scope: scope, Rule: name, Before: a.text, After: b.text, BeforeUntil: a.until, AfterUntil: b.until})
		}
		if a.lasting != b.lasting && !b.until.IsZero() {
			list = append(list, Difference{Scope: scope, Rule: name, Before: a.lasting, After: b.lasting, From: b.until})
		}
	}
	return list, nil
}
