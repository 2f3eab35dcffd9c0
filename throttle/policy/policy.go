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

// Unmatched says what happens to a scope that meets no rule.
type Unmatched string

// What can happen to a scope that meets no rule.
const (
	// UnmatchedDeny rejects it. Its tasks are not enqueued, and tasks enqueued before a change of the
	// limits wait for a rule.
	UnmatchedDeny Unmatched = "deny"
	// UnmatchedFail rejects it too, and its tasks fail for good when a worker picks them up.
	UnmatchedFail Unmatched = "fail"
	// UnmatchedAllow lets it start without a limit.
	UnmatchedAllow Unmatched = "allow"
)

var unmatcheds = []string{string(UnmatchedDeny), string(UnmatchedFail), string(UnmatchedAllow)}

// ScopeConfig is the rules of one name of the tree and the names under it. Under the
// name "*" stand the rules of every name of that level; those of a name itself
// are laid over them, rule by rule.
type ScopeConfig struct {
	// Rules in the order in which decisions list them. Their names differ.
	Rules []Rule
	// Scopes are the names one level down.
	Scopes map[string]ScopeConfig
	// Owner is responsible for this level: a team, an address. No decision depends on it. At most 128
	// bytes, the characters of a name. Defaults to none.
	Owner string
	// Hosts are the hosts whose answers count for this level and those below it, HOST, HOST:PORT or
	// *.HOST: see Limiter.Report. They replace those of a level above. Empty inherits, and any host counts
	// if no level lists one.
	Hosts []string
	// Apps are the applications (Config.App) that may spend from this level and those below
	// it, at most 100. A name's own replace those of "*". Defaults to all.
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
	// Shares declares names one level down as classes, at most 100, in place of their
	// weights. Those of a name replace those of "*".
	Shares map[string]Share
	// MaxPriority caps the priority of tasks of this level and those below it, -1000000 to 1000000:
	// a higher Turn.Priority counts as MaxPriority, and nothing is refused. The lowest cap on a
	// scope's path counts. A name's own replaces that of "*". Defaults to nil, no cap.
	MaxPriority *int
	// Answers is how an API's answers affect this level and those below it. With AnswersHeed set at a
	// level, answers to the calls of scopes below it correct the level's rules too. Defaults to that of
	// the level above, and to AnswersHeed.
	Answers Answers
	// Corrects bounds how far answers correct the rules at this level and below it. It needs AnswersHeed,
	// and replaces the value of the levels above as a whole. Defaults to that of the levels above, as
	// Answers does.
	Corrects Corrects
}

// Policy is all rules by scope. It is immutable and safe for concurrent use.
// The zero Policy has no rules and denies every scope.
type Policy struct {
	unmatched  Unmatched
	root       tree
	raises     bool     // some limit may grow above the configured one
	prefetches bool     // some rule does
	windows    []*hours // of the rules, each once
}

// tree is a ScopeConfig that has been checked.
type tree struct {
	path    string // payments/*/refunds
	owner   string
	apps    []string
	hosts   []string
	pause   Pause
	until   time.Time // of the pause
	weight  int64
	shares  map[string]Share
	weighs  bool // names right below have weights
	answers Answers
	rules   []Rule
	every   *tree // the "*" of scopes, which every path passes through
	scopes  map[string]*tree

	corrects    Corrects // without what the defaults say
	maxPriority *int     // nil for no cap
}

// MatchedRule is a rule at the level at which it counts for a scope.
type MatchedRule struct {
	Rule Rule
	// Scope is the prefix of the task's scope at which the rule counts: tasks
	// that share it share the limit.
	Scope Scope
	// Pattern is where the policy has the rule, "*" where it has it for every
	// name: payments/*/refunds. It holds no name that only a task brought.
	Pattern string
	// Until is when a pause ends, the zero time for never and for a rule.
	Until time.Time

	// Corrects is how far answers correct the rule, without what the defaults say.
	Corrects Corrects
	// Heeds says that answers to the calls of scopes below the rule's correct it too.
	Heeds bool
}

// New returns the policy of a tree of limits, with every default written
// out. It keeps no part of limits. An empty unmatched means deny. The error is
// a *Error with every fault.
func New(unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	return NewFrom(nil, unmatched, limits)
}

// NewFrom is New for what was read from a text: faults have the lines of source, and quote it. Where source has anything Bad,
// the policy means nothing and only the error counts.
func NewFrom(source *Source, unmatched Unmatched, limits map[string]ScopeConfig) (*Policy, error) {
	var faults diag.Faults
	p := draftOf(source, unmatched, limits).policy(&faults)
	if !faults.None() {
		return nil, errorOf(&faults)
	}
	return p, nil
}

// Match returns the rules that a scope meets, outermost level first.
//
// Each level of the path is covered by the node of its name and by "*", under
// each node that covers the level above. Those of the name lie over those of
// "*", and among either the one whose parent lies higher. A rule replaces whole
// the rule of its name in a lower node, and keeps its place; Unlimited removes
// it; all others stay.
//
// A level that is paused meets PausedRule before its others, whether or not the pause has
// ended by now: see MatchedRule.Until.
//
// A scope that meets no rule is an *UnmatchedError, and under UnmatchedAllow no
// rule and no error. One whose rules were all removed has met them: it has no
// rule and no error either way. Match costs a map look-up for each node that
// covers a level, whatever the size of the policy, and allocates the answer.
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

// Check returns the error that no wait would mend: an *UnmatchedError for a scope that meets no rule,
// or a *CostError for a cost below 1 or above what a rule can ever admit. Rules with limit 0,
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

// usualLayers is how many trees cover a level in an ordinary policy; more than
// that costs an allocation.
const usualLayers = 8

// resolve folds, level by level, the trees that cover the path. matched is true
// when any rule stood on the way, removed or not, or a pause.
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

// nameAt returns the name that begins at start, and where it ends.
func nameAt(path string, start int) (name string, end int) {
	end = start
	for end < len(path) && path[end] != '/' {
		end++
	}
	return path[start:end], end
}

// Prefetches reports whether any rule has a Prefetch.
func (p *Policy) Prefetches() bool { return p.prefetches }

// RaisesLimits reports whether an API's answers can make any limit larger than the configured one.
func (p *Policy) RaisesLimits() bool { return p.raises }

// Unmatched returns what happens to a scope that meets no rule.
func (p *Policy) Unmatched() Unmatched { return cmp.Or(p.unmatched, UnmatchedDeny) }

// Denies reports whether scopes that meet no rule are rejected, by UnmatchedDeny or UnmatchedFail.
func (p *Policy) Denies() bool { return p.unmatched != UnmatchedAllow }

// Names reports whether limits has the provider by its own name. A provider that only "*" covers may
// be a customer's name.
func (p *Policy) Names(provider string) bool { return p.root.scopes[provider] != nil }

// has reports whether any rule of the policy is as is says.
func (p *Policy) has(is func(Rule) bool) bool {
	return !p.root.each(func(_ string, r Rule) bool { return !is(r) })
}

// Rules returns all rules of the policy, each with the pattern at which it stands, payments/*: those of a
// level in their order and before those of the levels below it, levels in no order. Removals (Rule.Unlimited)
// are among them. It does no I/O.
func (p *Policy) Rules() iter.Seq2[string, Rule] {
	return func(yield func(string, Rule) bool) { p.root.each(yield) }
}

// each visits the rules of a tree until one is the last that is wanted.
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

// under appends the trees of the level below layers, lowest first: all that any
// name inherits, then all that this name has of its own.
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

// fold appends the rules of one level, each layer laid over those before it. A
// removal keeps its place until the end, so that a rule that comes back after it
// does too.
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

// policy checks the draft and returns what it says. The policy means nothing
// unless faults is still empty.
func (d draft) policy(faults *diag.Faults) *Policy {
	p := &Policy{unmatched: UnmatchedDeny}
	if w := d.unmatched; w.good() {
		p.unmatched = Unmatched(w.text)
		if !slices.Contains(unmatcheds, w.text) {
			faults.Add(w.at, "unmatched", fmt.Sprintf("unmatched is %s; %s", quote(w.text), diag.Meant(w.text, unmatcheds)))
		}
	}
	p.root = treeOf(nil, d.scopes, "limits", "", 0, faults)
	if !faults.None() {
		return nil
	}
	p.prefetches = p.has(func(r Rule) bool { return r.Prefetch > 0 })
	p.windows, p.raises = p.allHours(), p.root.raises()
	return p
}

// treeOf checks one node, and all under it, that stands at path in the text, at
// pattern in the tree, and at level.
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
		child.maxPriority = s.checkMaxPriority(at, faults)
		child.answers, child.corrects = s.checkAnswers(at, faults)
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

// where names a rule for a fault of another one.
func (d *draftRule) where() string {
	if d.at.Line == 0 {
		return fmt.Sprintf("rules[%d]", d.index)
	}
	return fmt.Sprintf("rules[%d] on line %d", d.index, d.at.Line)
}

// SharesLimits reports whether any rule of the policy has the failure policy share, which needs
// Limiter.Heartbeat.
func (p *Policy) SharesLimits() bool {
	return p.has(func(r Rule) bool { return r.OnRedisError == FailShare && !r.Shadow })
}
