// Package policy defines limits: rules, the scopes that they apply to, and the costs of tasks.
//
//	limiter, err := throttle.New(rdb, policy.PerSecond("payments", 100), throttle.Config{})
//
// A Policy is a tree of names. It determines the rules of each scope: payments/acme/refunds is subject to the rules of payments,
// of payments/acme and of payments/acme/refunds (Policy.Match). It is immutable. A policy that is built in Go (New, PerSecond)
// and one that was read from a file (NewFrom) are checked alike.
//
// The package does no file access and knows no Redis. Package limitsyaml reads and writes limits.yaml, package throttle decides,
// and package policystore distributes policies to processes.
package policy

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Unmatched is the treatment of a scope that matches no rule.
type Unmatched string

// The treatments of a scope that matches no rule.
const (
	// UnmatchedDeny rejects the scope. Its tasks are not enqueued, and tasks enqueued before a change of the limits wait for a
	// rule.
	UnmatchedDeny Unmatched = "deny"
	// UnmatchedFail rejects the scope too, and its tasks fail permanently when a worker picks them up.
	UnmatchedFail Unmatched = "fail"
	// UnmatchedAllow lets the scope's tasks start without a limit.
	UnmatchedAllow Unmatched = "allow"
)

// Pause is whether the policy pauses a level.
type Pause string

const (
	// PauseInherited takes the value of "*" of the same level. If "*" has none, the level is not paused.
	PauseInherited Pause = ""
	// PauseOn pauses the level and all levels below it: no task that spends from them starts.
	PauseOn Pause = "true"
	// PauseOff overrides the pause of "*" of its level for one name. A pause at a level above still applies.
	PauseOff Pause = "false"
)

// PausedRule is the name of the rule that a paused level adds to the scopes at and below it. No rule of a policy can have this
// name: it contains a '/'.
const PausedRule = "/paused"

// pausedRule admits no task, like any suspended rule, whatever the state of Redis.
var pausedRule = Rule{Name: PausedRule, Algorithm: SlidingWindow, Per: time.Second}.withDefaults()

// Paused reports whether this is not a rule of the policy, but the pause of its level until Until.
func (b MatchedRule) Paused() bool { return b.Rule.Name == PausedRule }

// ScopeConfig is the rules of one name of the tree and the names under it. The name "*" holds the rules of every name of its
// level. Over them those of the name's tier are laid, and over both those of the name itself, rule by rule.
type ScopeConfig struct {
	// Rules are in the order in which decisions list them. Their names differ.
	Rules []Rule
	// Scopes are the names one level down.
	Scopes map[string]ScopeConfig
	// Tiers are the rules of the names one level down by their tier, such as gold: see TierOf.
	Tiers map[string]ScopeConfig
	// Owner is responsible for this level: a team, an address. No decision depends on it. At most 128 bytes, of the characters of
	// a name. Defaults to none.
	Owner string
	// Hosts are the hosts whose answers count for this level and those below it, as HOST, HOST:PORT or *.HOST: see
	// Limiter.Report. They replace those of a level above. If empty, they are inherited; if no level lists one, any host counts.
	Hosts []string
	// Apps are the applications (Config.App) that may spend from this level and those below it, at most
	// 100. A name's own value replaces that of "*". Defaults to all.
	Apps []string
	// Envoy lists the descriptors of Envoy's rate limit service that spend from here, each as a domain and the keys of its entries:
	// "edge tenant plan" has the entries tenant=acme, plan=pro spend from acme/pro below this level. A key with a value, as in
	// "edge kind=login tenant", is for entries of that value alone, and adds no name. None stands at or below a "*" or a tier. At
	// most 100. Defaults to none. Source: docs/envoy.md
	Envoy []string
	// Pause pauses this level and those below it. A name's own value replaces that of "*". Defaults to PauseInherited.
	Pause Pause
	// PausedUntil is when a PauseOn ends, by the Redis server's clock. Defaults to never.
	PausedUntil time.Time
	// Weight is this name's weight among the names beside it, 1 to 1000. While several wait, they share what the rules of the
	// level above admit, in units, in proportion to their weights. A name's own value replaces that of "*". Defaults to 1.
	Weight int64
	// Shares declares names one level down as classes, at most 100, in place of their weights. A name's own value replaces that
	// of "*".
	Shares map[string]Share
	// Pool has members, of which one is chosen for each task below this level. A name's own value replaces that of "*". Defaults to
	// none.
	Pool Pool
	// Answers is how an API's answers affect this level and those below it. If a level itself sets AnswersHeed or
	// AnswersRefusals, answers to calls of the scopes below it correct its rules too. Defaults to that of the level above, and to
	// AnswersHeed.
	Answers Answers
	// Corrects bounds how far answers correct the rules at this level and below it. It needs AnswersHeed or AnswersRefusals. A
	// level with Answers replaces all that levels above say of answers.
	Corrects Corrects
	// Refusals is how an API's refusals are treated at this level and below it. It needs another word than AnswersIgnore.
	Refusals Refusals
	// Reading is how an API's answers are read at this level and below it. It needs another word than AnswersIgnore.
	Reading Reading
	// Breaker stops the calls of this level while they fail. A name's own value replaces that of "*". Defaults to none.
	Breaker Breaker
}

// Policy is all rules by scope. It is immutable and safe for concurrent use. The zero Policy has no rules and denies every scope.
type Policy struct {
	unmatched Unmatched
	root      tree
	raises    bool // some limit may grow above the configured one
	breaks    bool // some level has a breaker
	tiered    bool // some names have tiers
	tierOf    func(name Scope) string
}

// tree is a ScopeConfig that has been checked: Rules have their defaults, Scopes and Tiers are empty.
type tree struct {
	ScopeConfig
	path   string // payments/*/refunds, payments//gold
	reader upstream.Reader
	weighs bool  // names right below have weights
	pooled bool  // a pool stands here or above
	every  *tree // the "*" of scopes, which every path passes through
	tiers  map[string]*tree
	scopes map[string]*tree
}

// MatchedRule is a rule at the level at which it counts for a scope.
type MatchedRule struct {
	Rule Rule
	// Scope is the prefix of the task's scope at which the rule counts. Tasks with the same prefix share the limit.
	Scope Scope
	// Pattern is where the policy has the rule, with "*" where it has the rule for every name: payments/*/refunds. It contains no
	// name that only a task has brought.
	Pattern string
	// Until is when a pause ends. It is the zero time for a pause without an end, and for a rule.
	Until time.Time

	// Corrects is how far answers correct the rule, without defaults.
	Corrects Corrects
	// Heeds reports whether answers to calls of scopes below Scope correct the rule too.
	Heeds bool
}

// New returns the policy of a tree of limits, with every default written out. It keeps no part of limits. An empty unmatched
// means UnmatchedDeny. The error is an *Error with every fault.
func New(unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	return NewFrom(nil, unmatched, limits)
}

// NewFrom is New for limits that were read from a text: faults have the lines of source, and quote it. Those that source has
// already are in the error too.
func NewFrom(source *Source, unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	c, name := &checker{}, "policy"
	if source != nil {
		name = cmp.Or(source.Name, name)
		c.Join(source.Faults)
	}
	p := &Policy{unmatched: cmp.Or(unmatched, UnmatchedDeny)}
	c.word(source.field("unmatched", string(unmatched), unmatched != ""), "unmatched", "unmatched")
	c.scopes(&p.root, source.under("limits"), limits, "limits", 1)
	if !c.None() {
		return nil, &Error{Name: name, Faults: c.All()}
	}
	p.raises, p.breaks, p.tiered = c.raises, c.breaks, c.tiered
	return p, nil
}

// Single returns a policy of one rule at one provider, the first name of scopes. Everything that is spent from the provider or
// from a scope below it counts under the rule. The error is an *Error.
func Single(provider string, rule Rule) (*Policy, error) {
	return New(UnmatchedDeny, map[string]ScopeConfig{provider: {Rules: []Rule{rule}}})
}

// PerSecond returns a policy under which at most limit units are spent from a provider in any second. It panics where the
// provider is no name, or the limit is not 0 to MaxLimit.
func PerSecond(provider string, limit int64) *Policy { return window(provider, limit, time.Second) }

// PerMinute is PerSecond for any minute.
func PerMinute(provider string, limit int64) *Policy { return window(provider, limit, time.Minute) }

// PerHour is PerSecond for any hour.
func PerHour(provider string, limit int64) *Policy { return window(provider, limit, time.Hour) }

func window(provider string, limit int64, per time.Duration) *Policy {
	p, err := Single(provider, Rule{Name: "limit", Algorithm: SlidingWindow, Limit: limit, Per: per})
	if err != nil {
		panic(fmt.Sprintf("policy: %d per %s of %q: %v", limit, per, provider, err))
	}
	return p
}

// Match returns the rules of a scope, outermost level first.
//
// Under each node that covers a level, up to three nodes cover the next level of the path: that of "*", that of the tier of its name,
// and that of its name. Nodes of the name take precedence over those of its tier, and those over nodes of "*". Among either, precedence follows that of the parents. A rule replaces as a whole
// the rule of the same name in a node of lower precedence, and keeps its place. Unlimited removes that rule. All other rules
// stay.
//
// A paused level has PausedRule before its other rules, even if the pause has ended by now: see MatchedRule.Until.
//
// If a scope matches no rule, the error is an *UnmatchedError; under UnmatchedAllow there is no rule and no error. A scope whose
// rules were all removed counts as matched: it has no rule, and no error in either case. So does a scope of a pool, whose members have
// rules of their own: see PoolOf. Match costs one map look-up for each
// node that covers a level, whatever the size of the policy, and allocates the answer.
func (p *Policy) Match(s Scope) ([]MatchedRule, error) {
	return p.MatchAt(s, time.Time{})
}

// MatchAt is Match without the pauses that have ended at a time.
func (p *Policy) MatchAt(s Scope, at time.Time) ([]MatchedRule, error) {
	bounds, matched := p.resolve(s, at)
	if !matched && p.unmatched != UnmatchedAllow {
		return nil, &UnmatchedError{Scope: s}
	}
	return bounds, nil
}

// Check returns the error that no wait can resolve: an *UnmatchedError for a scope that matches no rule, or a *CostError for a
// cost below 1 or above what a rule can ever admit. Rules with limit 0, concurrency rules, shadow rules and rules with Active
// bound no cost. It costs one Match.
func (p *Policy) Check(s Scope, cost int64) error {
	if cost < 1 {
		return &CostError{Scope: s, Cost: cost}
	}
	bounds, err := p.Match(s)
	if err != nil {
		return err
	}
	return CheckMatched(s, bounds, func(Rule) int64 { return cost })
}

// CheckCosts is Check for costs by unit, as far as no rule caps them. The error may also be that of Costs.Check.
func (p *Policy) CheckCosts(s Scope, costs Costs) error {
	if err := costs.Check(); err != nil {
		return err
	}
	bounds, err := p.Match(s)
	if err != nil {
		return err
	}
	return CheckMatched(s, bounds, costs.Capped(bounds).Under)
}

// usualLayers is the number of trees that cover a level in an ordinary policy. More of them cost an allocation.
const usualLayers = 8

// resolve combines, level by level, the trees that cover the path. matched reports whether the path has any rule, even a removed
// one, or a pause.
func (p *Policy) resolve(s Scope, at time.Time) (bounds []MatchedRule, matched bool) {
	var here, above [usualLayers]*tree
	layers, next := append(here[:0], &p.root), above[:0]
	a := answering{tree: defaultAnswers}
	for level := s.below(Scope{}); level != (Scope{}) && len(layers) > 0; level = s.below(level) {
		layers, next = p.under(next[:0], layers, level), layers
		matched = matched || lastWith(layers, func(t *tree) bool { return len(t.Rules) > 0 || hasPool(t) }) != nil
		first := len(bounds)
		bounds = fold(bounds, layers, level)
		a = a.under(layers)
		for i := first; i < len(bounds); i++ {
			bounds[i].Corrects, bounds[i].Heeds = a.Corrects, a.below
		}
		if pause, paused := pauseOf(layers, level, at); paused {
			bounds, matched = slices.Insert(bounds, first, pause), true
		}
	}
	return bounds, matched
}

// settings visits the levels of a path with a setting, outermost first, each with the tree whose value counts there.
func (p *Policy) settings(s Scope, has func(*tree) bool, visit func(level Scope, t *tree)) {
	p.visit(s, func(level Scope, layers []*tree) {
		if t := lastWith(layers, has); t != nil {
			visit(level, t)
		}
	})
}

// visit visits the trees that cover each level of a path, outermost first.
func (p *Policy) visit(s Scope, visit func(level Scope, layers []*tree)) {
	layers := []*tree{&p.root}
	for level := s.below(Scope{}); level != (Scope{}) && len(layers) > 0; level = s.below(level) {
		layers = p.under(nil, layers, level)
		visit(level, layers)
	}
}

// lastWith returns the last of layers for which has is true, nil if there is none: a name's own value replaces that of "*".
func lastWith(layers []*tree, has func(*tree) bool) *tree {
	for i := len(layers) - 1; i >= 0; i-- { // without an iterator, which allocates
		if has(layers[i]) {
			return layers[i]
		}
	}
	return nil
}

// pauseOf returns the pause of a level that layers cover, if it is paused at a time. The value of the name replaces that of "*".
func pauseOf(layers []*tree, level Scope, at time.Time) (b MatchedRule, paused bool) {
	t := lastWith(layers, func(t *tree) bool { return t.Pause != PauseInherited })
	if t == nil || t.Pause != PauseOn || !t.PausedUntil.IsZero() && !at.Before(t.PausedUntil) {
		return b, false
	}
	return MatchedRule{Rule: pausedRule, Scope: level, Pattern: t.path, Until: t.PausedUntil}, true
}

// Unmatched returns the treatment of a scope that matches no rule.
func (p *Policy) Unmatched() Unmatched { return cmp.Or(p.unmatched, UnmatchedDeny) }

// Denies reports whether scopes that match no rule are rejected, by UnmatchedDeny or UnmatchedFail.
func (p *Policy) Denies() bool { return p.unmatched != UnmatchedAllow }

// Names reports whether the policy lists the provider by its own name. A provider that only "*" covers may be a customer's name.
func (p *Policy) Names(provider string) bool { return p.root.scopes[provider] != nil }

// Rules returns all rules of the policy, each with the pattern at which it stands, such as payments/*. The rules of a level are
// in their order, before those of the levels below it; levels are in no order. Removals (Rule.Unlimited) are included. It does no
// I/O.
func (p *Policy) Rules() iter.Seq2[string, Rule] {
	return func(yield func(string, Rule) bool) { p.root.each(yield) }
}

// each visits the rules of a tree until visit returns false, and then returns false.
func (t *tree) each(visit func(string, Rule) bool) (more bool) {
	for _, r := range t.Rules {
		if !visit(t.path, r) {
			return false
		}
	}
	if t.every != nil && !t.every.each(visit) {
		return false
	}
	for _, below := range []map[string]*tree{t.tiers, t.scopes} {
		for _, child := range below {
			if !child.each(visit) {
				return false
			}
		}
	}
	return true
}

// under appends the trees of a level, given those of the level above, lowest precedence first: those that every name inherits, those of
// its tier, then those of this name. A member of a pool inherits those of all members.
func (p *Policy) under(dst, layers []*tree, level Scope) []*tree {
	name := level.last()
	member := isMember(name, layers)
	for _, layer := range layers {
		every := layer.every
		if member {
			every = layer.scopes[anyMember]
		}
		if every != nil {
			dst = append(dst, every)
		}
	}
	if !member && lastWith(layers, hasTiers) != nil {
		tier := p.Tier(level)
		for _, layer := range layers {
			if t := layer.tiers[tier]; t != nil {
				dst = append(dst, t)
			}
		}
	}
	for _, layer := range layers {
		if t := layer.scopes[name]; t != nil {
			dst = append(dst, t)
		}
	}
	return dst
}

// fold appends the rules of one level, each layer laid over the layers before it. A removal keeps its place until the end, and so
// does a rule that a later layer adds again.
func fold(bounds []MatchedRule, layers []*tree, at Scope) []MatchedRule {
	start, removed := len(bounds), false
	for _, layer := range layers {
		level := bounds[start:]
		for _, r := range layer.Rules {
			removed = removed || r.Unlimited
			if i := slices.IndexFunc(level, func(b MatchedRule) bool { return b.Rule.Name == r.Name }); i >= 0 {
				bounds[start+i].Rule, bounds[start+i].Pattern = r, layer.path
			} else {
				bounds = append(bounds, MatchedRule{Rule: r, Scope: at, Pattern: layer.path})
			}
		}
	}
	if !removed {
		return bounds
	}
	level := slices.DeleteFunc(bounds[start:], func(b MatchedRule) bool { return b.Rule.Unlimited })
	if bounds = bounds[:start+len(level)]; len(bounds) == 0 {
		return nil
	}
	return bounds
}

// RaisesLimits reports whether an API's answers can make any limit larger than the configured one.
func (p *Policy) RaisesLimits() bool { return p.raises }

// SharesLimits reports whether any rule of the policy, except shadow rules, has the failure policy FailShare, which needs
// Limiter.Heartbeat.
func (p *Policy) SharesLimits() bool {
	return !p.root.each(func(_ string, r Rule) bool { return r.OnRedisError != FailShare || r.Shadow })
}

// Limits returns the policy as a tree of which New makes an equal policy, for programs that edit it. The caller may keep and
// change the tree.
func (p *Policy) Limits() (Unmatched, map[string]ScopeConfig) {
	return p.Unmatched(), p.root.config().Scopes
}

func (t *tree) config() ScopeConfig {
	s := t.ScopeConfig
	s.Rules, s.Apps, s.Hosts, s.Shares = slices.Clone(s.Rules), slices.Clone(s.Apps), slices.Clone(s.Hosts), maps.Clone(s.Shares)
	s.Envoy = slices.Clone(s.Envoy)
	s.Pool.Members = slices.Clone(s.Pool.Members)
	s.Scopes = map[string]ScopeConfig{}
	if t.every != nil {
		s.Scopes[anyName] = t.every.config()
	}
	for tier, child := range t.tiers {
		s.Tiers = with(s.Tiers, tier, child.config())
	}
	for name, child := range t.scopes {
		s.Scopes[name] = child.config()
	}
	return s
}

// Digest returns a hash of the policy: policies of the same limits have the same digest, in any process. It copies the whole
// policy.
func (p *Policy) Digest() uint64 {
	unmatched, limits := p.Limits()
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %+v", unmatched, limits) // fmt sorts the names of a map
	return h.Sum64()
}
