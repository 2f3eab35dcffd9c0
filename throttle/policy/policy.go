package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
)

// Unmatched is the treatment of a scope that matches no rule.
type Unmatched string

// The treatments of a scope that matches no rule.
const (
	// UnmatchedDeny rejects the scope. Its tasks are not enqueued, and tasks enqueued before a change of
	// the limits wait for a rule.
	UnmatchedDeny Unmatched = "deny"
	// UnmatchedFail rejects the scope too, and its tasks fail permanently when a worker picks them up.
	UnmatchedFail Unmatched = "fail"
	// UnmatchedAllow lets the scope's tasks start without a limit.
	UnmatchedAllow Unmatched = "allow"
)

// ScopeConfig is the rules of one name of the tree and the names under it. The name "*" holds the
// rules of every name of its level. The rules of a name itself are laid over them, rule by rule.
type ScopeConfig struct {
	// Rules are in the order in which decisions list them. Their names differ.
	Rules []Rule
	// Scopes are the names one level down.
	Scopes map[string]ScopeConfig
	// Owner is responsible for this level: a team, an address. No decision depends on it. At most 128
	// bytes, of the characters of a name. Defaults to none.
	Owner string
	// Hosts are the hosts whose answers count for this level and those below it, as HOST, HOST:PORT or
	// *.HOST: see Limiter.Report. They replace those of a level above. If empty, they are inherited; if
	// no level lists one, any host counts.
	Hosts []string
	// Apps are the applications (Config.App) that may spend from this level and those below it, at most
	// 100. A name's own value replaces that of "*". Defaults to all.
	Apps []string
	// Pause pauses this level and those below it. A name's own value replaces that of "*". Defaults to
	// PauseInherited.
	Pause Pause
	// PausedUntil is when a PauseOn ends, by the Redis server's clock. Defaults to never.
	PausedUntil time.Time
	// Weight is this name's weight among the names beside it, 1 to 1000. While several wait, they share
	// what the rules of the level above admit, in units, in proportion to their weights. A name's own
	// value replaces that of "*". Defaults to 1.
	Weight int64
	// Shares declares names one level down as classes, at most 100, in place of their weights. A name's
	// own value replaces that of "*".
	Shares map[string]Share
	// Answers is how an API's answers affect this level and those below it. If a level itself sets
	// AnswersHeed or AnswersRefusals, answers to calls of the scopes below it correct its rules too. Defaults to that of
	// the level above, and to AnswersHeed.
	Answers Answers
	// Corrects bounds how far answers correct the rules at this level and below it. It needs
	// AnswersHeed or AnswersRefusals, and replaces the value of the levels above as a whole. Defaults to that of the levels
	// above, as Answers does.
	Corrects Corrects
	// Refusals is how an API's refusals are treated at this level and below it. It needs another word than
	// AnswersIgnore, and replaces the value of the levels above as a whole, as Corrects does.
	Refusals Refusals
	// ResetUnit is the unit of resets that an API gives as plain numbers: "s" or "ms". By default they are seconds,
	// unless only milliseconds fit a rule; see Limiter.Report. It is inherited as Refusals is.
	ResetUnit string
}

// Policy is all rules by scope. It is immutable and safe for concurrent use.
// The zero Policy has no rules and denies every scope.
type Policy struct {
	unmatched Unmatched
	root      tree
	raises    bool     // some limit may grow above the configured one
	windows   []*hours // of the rules, each once
}

// tree is a ScopeConfig that has been checked.
type tree struct {
	path   string // payments/*/refunds
	owner  string
	apps   []string
	hosts  []string
	pause  Pause
	until  time.Time // of the pause
	weight int64
	shares map[string]Share
	weighs bool // names right below have weights
	rules  []Rule
	every  *tree // the "*" of scopes, which every path passes through
	scopes map[string]*tree

	heeding
}

// MatchedRule is a rule at the level at which it counts for a scope.
type MatchedRule struct {
	Rule Rule
	// Scope is the prefix of the task's scope at which the rule counts. Tasks with the same prefix share
	// the limit.
	Scope Scope
	// Pattern is where the policy has the rule, with "*" where it has the rule for every name:
	// payments/*/refunds. It contains no name that only a task has brought.
	Pattern string
	// Until is when a pause ends. It is the zero time for a pause without an end, and for a rule.
	Until time.Time

	// Corrects is how far answers correct the rule, without defaults.
	Corrects Corrects
	// Heeds reports whether answers to calls of scopes below Scope correct the rule too.
	Heeds bool
}

// New returns the policy of a tree of limits, with every default written out. It keeps no part of
// limits. An empty unmatched means UnmatchedDeny. The error is an *Error with every fault.
func New(unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	return NewFrom(nil, unmatched, limits)
}

// NewFrom is New for limits that were read from a text: faults have the lines of source, and quote
// it. If any part of source is Bad, the returned policy is meaningless and only the error counts.
func NewFrom(source *Source, unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	var faults diag.Faults
	p := draftOf(source, unmatched, limits).policy(&faults)
	if !faults.None() {
		return nil, errorOf(&faults)
	}
	return p, nil
}

// Match returns the rules of a scope, outermost level first.
//
// Under each node that covers a level, up to two nodes cover the next level of the path: that of its
// name, and that of "*". Nodes of the name take precedence over those of "*". Among either,
// precedence follows that of the parents. A rule replaces as a whole the rule of the same name in a
// node of lower precedence, and keeps its place. Unlimited removes that rule. All other rules stay.
//
// A paused level has PausedRule before its other rules, even if the pause has ended by now: see
// MatchedRule.Until.
//
// If a scope matches no rule, the error is an *UnmatchedError; under UnmatchedAllow there is no rule
// and no error. A scope whose rules were all removed counts as matched: it has no rule, and no error
// in either case. Match costs one map look-up for each node that covers a level, whatever the size
// of the policy, and allocates the answer.
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

// Check returns the error that no wait can resolve: an *UnmatchedError for a scope that matches no
// rule, or a *CostError for a cost below 1 or above what a rule can ever admit. Rules with limit 0,
// concurrency rules, shadow rules and rules with Active bound no cost. It costs one Match.
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

// CheckCosts is Check for costs by unit. The error may also be that of Costs.Check.
func (p *Policy) CheckCosts(s Scope, costs Costs) error {
	if err := costs.Check(); err != nil {
		return err
	}
	bounds, err := p.Match(s)
	if err != nil {
		return err
	}
	return CheckMatched(s, bounds, costs.Under)
}

// usualLayers is the number of trees that cover a level in an ordinary policy. More of them cost an
// allocation.
const usualLayers = 8

// resolve combines, level by level, the trees that cover the path. matched reports whether the path
// has any rule, even a removed one, or a pause.
func (p *Policy) resolve(s Scope, at time.Time) (bounds []MatchedRule, matched bool) {
	var here, below [usualLayers]*tree
	layers, next := append(here[:0], &p.root), below[:0]
	var says heeding
	for start := 0; start < len(s.text) && len(layers) > 0; {
		name, end := nameAt(s.text, start)
		layers, next = under(next[:0], layers, name), layers
		for _, layer := range layers {
			matched = matched || len(layer.rules) > 0
		}
		level, first := Scope{text: s.text[:end]}, len(bounds)
		bounds = fold(bounds, layers, level)
		says = says.under(layers)
		for i := first; i < len(bounds); i++ {
			bounds[i].Corrects, bounds[i].Heeds = says.corrects, says.said
		}
		if pause, paused := pauseOf(layers, level, at); paused {
			bounds, matched = slices.Insert(bounds, first, pause), true
		}
		start = end + 1
	}
	return bounds, matched
}

// nameAt returns the name that begins at start, and its end.
func nameAt(path string, start int) (name string, end int) {
	end = start
	for end < len(path) && path[end] != '/' {
		end++
	}
	return path[start:end], end
}

// RaisesLimits reports whether an API's answers can make any limit larger than the configured one.
func (p *Policy) RaisesLimits() bool { return p.raises }

// Unmatched returns the treatment of a scope that matches no rule.
func (p *Policy) Unmatched() Unmatched { return cmp.Or(p.unmatched, UnmatchedDeny) }

// Denies reports whether scopes that match no rule are rejected, by UnmatchedDeny or UnmatchedFail.
func (p *Policy) Denies() bool { return p.unmatched != UnmatchedAllow }

// Names reports whether the policy lists the provider by its own name. A provider that only "*"
// covers may be a customer's name.
func (p *Policy) Names(provider string) bool { return p.root.scopes[provider] != nil }

// has reports whether is returns true for any rule of the policy.
func (p *Policy) has(is func(Rule) bool) bool {
	return !p.root.each(func(_ string, r Rule) bool { return !is(r) })
}

// Rules returns all rules of the policy, each with the pattern at which it stands, such as
// payments/*. The rules of a level are in their order, before those of the levels below it; levels
// are in no order. Removals (Rule.Unlimited) are included. It does no I/O.
func (p *Policy) Rules() iter.Seq2[string, Rule] {
	return func(yield func(string, Rule) bool) { p.root.each(yield) }
}

// each visits the rules of a tree until visit returns false, and then returns false.
func (t *tree) each(visit func(string, Rule) bool) (more bool) {
	for _, r := range t.rules {
		if !visit(t.path, r) {
			return false
		}
	}
	if t.every != nil && !t.every.each(visit) {
		return false
	}
	for _, child := range t.scopes {
		if !child.each(visit) {
			return false
		}
	}
	return true
}

// under appends the trees of the level below layers, lowest precedence first: those that every name
// inherits, then those of this name.
func under(dst, layers []*tree, name string) []*tree {
	for _, layer := range layers {
		if layer.every != nil {
			dst = append(dst, layer.every)
		}
	}
	for _, layer := range layers {
		if t := layer.scopes[name]; t != nil {
			dst = append(dst, t)
		}
	}
	return dst
}

// fold appends the rules of one level, each layer laid over the layers before it. A removal keeps
// its place until the end, and so does a rule that a later layer adds again.
func fold(bounds []MatchedRule, layers []*tree, at Scope) []MatchedRule {
	start, removed := len(bounds), false
	for _, layer := range layers {
		level := bounds[start:]
		for _, r := range layer.rules {
			removed = removed || r.Unlimited
			if i := indexOf(level, r.Name); i >= 0 {
				bounds[start+i].Rule, bounds[start+i].Pattern = r, layer.path
			} else {
				bounds = append(bounds, MatchedRule{Rule: r, Scope: at, Pattern: layer.path})
			}
		}
	}
	if !removed {
		return bounds
	}
	kept := start
	for _, b := range bounds[start:] {
		if !b.Rule.Unlimited {
			bounds[kept] = b
			kept++
		}
	}
	if kept == 0 {
		return nil
	}
	return bounds[:kept]
}

func indexOf(level []MatchedRule, rule string) int {
	for i := range level {
		if level[i].Rule.Name == rule {
			return i
		}
	}
	return -1
}

// policy checks the draft and returns its policy, which is nil unless faults is still empty.
func (d draft) policy(faults *diag.Faults) *Policy {
	p := &Policy{unmatched: UnmatchedDeny}
	if w := d.unmatched; w.good() {
		p.unmatched = Unmatched(w.text)
		if !slices.Contains(words["unmatched"], w.text) {
			faults.Add(w.at, "unmatched", fmt.Sprintf("unmatched is %s; %s", quote(w.text), diag.Meant(w.text, words["unmatched"])))
		}
	}
	p.root = treeOf(nil, d.scopes, "limits", "", 0, faults)
	if !faults.None() {
		return nil
	}
	p.windows, p.raises = p.allHours(), p.root.raises()
	return p
}

// treeOf checks one node and all nodes under it. path is its place in the text, pattern its place in
// the tree, and level its level.
func treeOf(rules []draftRule, scopes []draftScope, path, pattern string, level int, faults *diag.Faults) tree {
	t := tree{path: pattern, rules: rulesOf(rules, path, faults)}
	for _, s := range scopes {
		scopesPath := path
		if level > 0 {
			scopesPath += ".scopes"
		}
		at := diag.PathTo(scopesPath, s.name)
		if level == maxLevels {
			faults.Add(s.at, at, fmt.Sprintf("%s is at level %d; the most is %d", diag.PathName(s.name), level+1, maxLevels))
			continue
		}
		if reason := diag.NameReason(s.name); reason != "" {
			faults.Add(s.at, at, "name "+reason)
		}
		child := treeOf(s.rules, s.scopes, at, strings.TrimPrefix(pattern+"/"+s.name, "/"), level+1, faults)
		child.owner, child.apps, child.hosts = s.owner, s.checkApps(at, faults), s.checkHosts(at, faults)
		child.pause, child.until = s.checkPause(at, faults)
		child.weight, child.shares = s.weight, s.checkShares(at, level+1, faults)
		child.weighs = child.weighs || len(child.shares) > 0
		s.checkWeighed(at, faults)
		t.weighs = t.weighs || child.weight > 0
		child.heeding = s.checkAnswers(at, faults)
		t.add(s.name, &child)
	}
	return t
}

func (t *tree) add(name string, child *tree) {
	if name == anyName {
		t.every = child
		return
	}
	if t.scopes == nil {
		t.scopes = make(map[string]*tree)
	}
	t.scopes[name] = child
}

// rulesOf checks the rules of one node.
func rulesOf(drafts []draftRule, node string, faults *diag.Faults) []Rule {
	if len(drafts) == 0 {
		return nil
	}
	rules := make([]Rule, 0, len(drafts))
	first := make(map[string]*draftRule, len(drafts))
	for i := range drafts {
		d := &drafts[i]
		c := ruleCheck{draftRule: d, faults: faults, path: func() string { return pathToRule(node, d.index) }}
		c.run()
		rules = append(rules, d.rule.withDefaults())
		if !d.fields[fieldName].good() {
			continue
		}
		if taken := first[d.rule.Name]; taken != nil {
			c.fault(fieldName, "%s is taken by %s; give each rule of a list its own",
				quote(d.rule.Name), taken.where())
			continue
		}
		first[d.rule.Name] = d
	}
	return rules
}

// where names the rule in a fault of another one.
func (d *draftRule) where() string {
	if d.at.Line == 0 {
		return fmt.Sprintf("rules[%d]", d.index)
	}
	return fmt.Sprintf("rules[%d] on line %d", d.index, d.at.Line)
}

// SharesLimits reports whether any rule of the policy, except shadow rules, has the failure policy
// FailShare, which needs Limiter.Heartbeat.
func (p *Policy) SharesLimits() bool {
	return p.has(func(r Rule) bool { return r.OnRedisError == FailShare && !r.Shadow })
}
