package policystore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Edit is the author, the reason and the conditions of a change.
type Edit struct {
	// By is the author in the history: a label that is not verified. The history also records the Redis
	// user. Required.
	By string
	// Reason is the reason in the history: up to MaxReason bytes of printable text. Defaults to none.
	Reason string
	// IfVersion refuses the change unless this version is the current one. Defaults to 0: only what is
	// changed must be as it was when the change began.
	IfVersion int64
	// For is how long a rule stays set or removed, or a scope paused. Defaults to permanently.
	For time.Duration
	// Via is the way of the change in the history, such as "page": up to 64 bytes of printable text.
	// Defaults to none.
	Via string
	// DryRun writes nothing: the result is what the change would come to, and so is the error, but for
	// ErrNotPermitted.
	DryRun bool
}

// maxVia is the maximum length of an Edit.Via in bytes.
const maxVia = 64

// MaxReason is the maximum length of an Edit.Reason in bytes.
const MaxReason = 500

// authorship is that of something that the edit makes or changes.
func (e Edit) authorship(v *draft, now time.Time) Authorship {
	return Authorship{CreatedBy: e.By, CreatedUser: v.User, CreatedAt: now, UpdatedBy: e.By, UpdatedUser: v.User, UpdatedAt: now, Reason: e.Reason}
}

// Made is the result of a change.
type Made struct {
	// Version is the version that the change made.
	Version Version
	// Before is the earlier override of the same rule. Rule is the rule before and after the change; both
	// are empty if there is none.
	Before     *Override
	RuleBefore string
	Rule       string
	// PauseBefore is the live pause of the same scope before the change, or nil for none.
	PauseBefore  *Pause
	PolicyBefore *policy.Policy
	Policy       *policy.Policy
	// Differences are what the change changed, as in Store.Changes.
	Differences []Difference
}

// of fills in what a draft came to. err is how it ended.
func (m Made) of(v draft, err error) (Made, error) {
	m.Version, m.Policy = v.Version, v.policy
	if err == nil {
		under := basisOf(v.base)
		over := under
		if !sameSource(v.was.source(), v.source()) {
			over = basisOf(v.over)
		}
		m.Differences, err = differences(layOver(v.was, under), layOver(v.Version, over), v.At, v.At)
	}
	return m, err
}

// ErrUnchanged is the error of a change that would change nothing.
var ErrUnchanged = errors.New("policystore: it is so already; nothing was changed")

// Set writes a rule at scope, with "*" for every name: payments/*. Fields are those of limits.yaml, as
// limitsyaml.RuleWith takes them. Fields that are not given keep their value: that of the rule there,
// or else of the rule that scope inherits. The error is a *ConflictError, a *policy.Error for invalid
// limits, or those of Store. Costs some round trips.
func (s *Store) Set(ctx context.Context, e Edit, scope, rule string, fields map[string]string) (Made, error) {
	r := ruleEdit{Edit: e, scope: scope, name: rule}
	return s.rule(ctx, &r, func(v *draft, policy *policy.Policy, now time.Time) error { return r.set(v, policy, now, fields) })
}

// Remove removes a rule from scope, one of the file or one that was set. The rule that scope inherits
// then applies. Its errors are those of Set, and a *MissingError.
func (s *Store) Remove(ctx context.Context, e Edit, scope, rule string) (Made, error) {
	r := ruleEdit{Edit: e, scope: scope, name: rule}
	return s.rule(ctx, &r, r.remove)
}

// MissingError is the error for a scope that has no such rule of its own.
type MissingError struct {
	Scope, Rule string
	Inherits    string // the rule that it inherits instead, as limits.yaml has it; empty for none
	Near        string // the name of a rule there that is probably meant; empty for none
}

func (e *MissingError) Error() string {
	text := fmt.Sprintf("policystore: %s has no rule %q of its own", e.Scope, e.Rule)
	switch {
	case e.Near != "" && e.Inherits == "":
		text += "; did you mean " + e.Near + "?"
	case e.Inherits != "":
		text += ", and inherits " + e.Inherits + "; set it with unlimited=true to lift it"
	}
	return text
}

// ruleEdit is a change of one rule, which may have to be repeated after a concurrent change.
type ruleEdit struct {
	Edit
	scope, name string

	made Made
	seen *Override // as it was when this change began
	over bool      // it has begun
}

// rule sets or removes one rule.
func (s *Store) rule(ctx context.Context, r *ruleEdit, change func(*draft, *policy.Policy, time.Time) error) (Made, error) {
	if err := r.checkFor(); err != nil {
		return r.made, err
	}
	if r.scope == "" {
		return r.made, &policy.ScopeError{Scope: r.scope, Reason: emptyScope}
	}
	v, err := s.edit(ctx, r.Edit, func(v *draft, policy *policy.Policy, now time.Time) error {
		if err := r.begin(v, policy); err != nil {
			return err
		}
		if r.For == 0 { // what is for good does not rest on what is not
			lasting, _, err := v.withoutTemporary().policy(v.base, now)
			if err != nil {
				return err
			}
			policy = lasting
		}
		return change(v, policy, now)
	})
	return r.made.of(v, err)
}

// begin notes what is there of the rule, which must be what was there the first time.
func (r *ruleEdit) begin(v *draft, policy *policy.Policy) error {
	r.made.Before, r.made.RuleBefore, r.made.PolicyBefore = nil, "", policy
	for _, temporary := range []bool{false, true} {
		if i, found := v.find(r.scope, r.name, temporary); found {
			r.made.Before = new(v.Rules[i])
		}
	}
	if r.over && !sameOverride(r.seen, r.made.Before) {
		return &ConflictError{Now: v.Version}
	}
	r.over, r.seen = true, r.made.Before
	return nil
}

func (r *ruleEdit) path() []string { return strings.Split(r.scope, "/") }

func (r *ruleEdit) set(v *draft, pol *policy.Policy, now time.Time, fields map[string]string) error {
	was, own := ruleAt(pol, r.path(), r.name)
	if own {
		r.made.RuleBefore = limitsyaml.FormatRule(was)
	}
	was.Name = r.name
	rule, err := limitsyaml.RuleWith(was, fields)
	if near := nearRule(pol, r.path(), r.name); err != nil && was.Algorithm == "" && near != "" {
		return &MissingError{Scope: r.scope, Rule: r.name, Near: near}
	}
	if err != nil {
		return err
	}
	r.made.Rule = limitsyaml.FormatRule(rule)
	v.Change = r.told("set", assignments(fields))
	if own && r.made.Rule == r.made.RuleBefore && r.For == 0 {
		return ErrUnchanged
	}
	v.put(r.override(v, now))
	return nil
}

func (r *ruleEdit) remove(v *draft, policy *policy.Policy, now time.Time) error {
	was, own := ruleAt(policy, r.path(), r.name)
	if !own {
		return &MissingError{Scope: r.scope, Rule: r.name, Inherits: inherited(was), Near: nearRule(policy, r.path(), r.name)}
	}
	r.made.RuleBefore, r.made.Rule = limitsyaml.FormatRule(was), ""
	v.Change = r.told("remove", "")
	if r.For == 0 {
		v.drop(r.scope, r.name)
		if _, has := ruleAt(v.base, r.path(), r.name); !has {
			return nil // it was only set, and is gone with that
		}
	}
	v.put(r.override(v, now))
	return nil
}

// told returns the description of the change for the history.
func (r *ruleEdit) told(verb, fields string) string {
	text := verb + " " + r.scope + " " + r.name + fields
	if r.For > 0 {
		text += " for " + r.For.String()
	}
	return text
}

// override is what lies over the rule from now on.
func (r *ruleEdit) override(v *draft, now time.Time) Override {
	o := Override{Scope: r.scope, Name: r.name, Rule: r.made.Rule, Authorship: r.authorship(v, now)}
	if r.For > 0 {
		o.Until = now.Add(r.For)
	}
	return o
}

const emptyScope = "is empty; write names divided by '/', such as payments/acme"

func (e Edit) checkFor() error {
	if e.For < 0 || e.For > 0 && e.For <= Notice {
		return fmt.Errorf("policystore: for %s is too short: a change comes into force after %s", e.For, Notice)
	}
	return nil
}

func inherited(r policy.Rule) string {
	if r.Algorithm == "" {
		return ""
	}
	return limitsyaml.FormatRule(r)
}

func sameOverride(a, b *Override) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Rule == b.Rule && a.Until.Equal(b.Until) && a.UpdatedAt.Equal(b.UpdatedAt) && a.UpdatedBy == b.UpdatedBy
}

// assignments writes fields as they are given on a command line.
func assignments(fields map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		b.WriteString(" " + name + "=" + fields[name])
	}
	return b.String()
}

// ruleAt returns the rule that a policy has at a path, or the one that a task of that
// scope meets there: then own is false.
func ruleAt(p *policy.Policy, path []string, name string) (r policy.Rule, own bool) {
	_, limits := p.Limits()
	for _, r := range nodeAt(limits, path).Rules {
		if r.Name == name {
			return r, true
		}
	}
	scope, err := policy.ParseScope(strings.Join(path, "/"))
	if err != nil {
		return r, false
	}
	bounds, _ := p.Match(scope) // no rule is no rule to keep anything of
	for _, b := range bounds {
		if b.Scope == scope && b.Rule.Name == name {
			return b.Rule, false
		}
	}
	return r, false
}

// nearRule returns the name of a rule at path, or one that it inherits, that a name is probably a mistake for.
func nearRule(p *policy.Policy, path []string, name string) string {
	_, limits := p.Limits()
	var names []string
	for _, r := range nodeAt(limits, path).Rules {
		names = append(names, r.Name)
	}
	if scope, err := policy.ParseScope(strings.Join(path, "/")); err == nil {
		bounds, _ := p.Match(scope)
		for _, b := range bounds {
			if b.Scope == scope {
				names = append(names, b.Rule.Name)
			}
		}
	}
	return diag.Nearest(name, names)
}

// Unset discards the overrides of a rule, so that the file, or the imported policy, applies again. For
// an empty rule it discards those of all rules of the scope, and its pause; for an empty scope
// everything, including an imported policy. The error is ErrUnchanged if there was nothing to discard,
// a *ConflictError, or those of Store.
func (s *Store) Unset(ctx context.Context, e Edit, scope, rule string) (Made, error) {
	return s.whole(ctx, e, func(v *draft, _ *policy.Policy, _ time.Time) error {
		v.Change = strings.TrimSpace("unset " + scope + " " + rule)
		if scope != "" {
			if !v.drop(scope, rule) {
				return ErrUnchanged
			}
			return nil
		}
		if v.Imported == nil && v.live() == 0 {
			return ErrUnchanged
		}
		v.Change = "unset everything"
		v.Imported, v.Rules, v.Scopes, v.Pauses = nil, nil, nil, nil
		return nil
	})
}

// Import imports a policy. With replace, the policy replaces the file that workers were started with,
// and every override is discarded. Without replace, each of its rules is set, and everything else
// stays. In both cases a scope that was paused or resumed live stays so unless p itself gives its
// pause: limits from a machine must not undo a manual stop. Its errors are those of Set, and
// ErrUnchanged.
func (s *Store) Import(ctx context.Context, e Edit, p *policy.Policy, from string, replace bool) (Made, error) {
	return s.whole(ctx, e, func(v *draft, pol *policy.Policy, now time.Time) error {
		v.Change = "import " + from
		if replace {
			v.Change = "import -replace " + from
			v.Imported, v.Rules, v.Scopes = v.bring(p, e, now), nil, nil
			_, limits := p.Limits()
			for path, n := range nodesOf(limits, "") {
				if n.Pause != policy.PauseInherited {
					v.unpause(path)
				}
			}
			return nil
		}
		_, limits := p.Limits()
		_, has := pol.Limits()
		changed := false
		for path, n := range nodesOf(limits, "") {
			if was := nodeAt(has, strings.Split(path, "/")); n.Pause != policy.PauseInherited && (n.Pause != was.Pause || !n.PausedUntil.Equal(was.PausedUntil)) {
				changed = true
				v.pause(Pause{Scope: path, Resumed: n.Pause == policy.PauseOff, Until: n.PausedUntil, Since: now, UpdatedBy: e.By, UpdatedUser: v.User, UpdatedAt: now, Reason: e.Reason})
			}
		}
		for path, n := range nodesOf(limits, "") {
			was := nodeAt(has, strings.Split(path, "/"))
			if saysNothing(n) || assignedAlike(n, was) {
				continue
			}
			changed = true
			a := v.assignmentOf(path, was)
			a.Authorship = e.authorship(v, now)
			if n.Owner != "" || n.Apps != nil {
				a.Owner, a.Apps = n.Owner, n.Apps
			}
			if n.Hosts != nil {
				a.Hosts = &n.Hosts
			}
			if n.Weight != 0 {
				a.Weight = n.Weight
			}
			if len(n.Shares) > 0 {
				a.Shares = &n.Shares
			}
			if text := limitsyaml.FormatAnswers(n); text != "" {
				a.Answers = &text
			}
			v.assign(a)
		}
		for path, rule := range Rules(limits) {
			if was, own := ruleAt(pol, strings.Split(path, "/"), rule.Name); own && was == rule {
				continue
			}
			changed = true
			v.settle(path, rule.Name)
			v.put(Override{Scope: path, Name: rule.Name, Rule: limitsyaml.FormatRule(rule), Authorship: e.authorship(v, now)})
		}
		if !changed {
			return ErrUnchanged
		}
		return nil
	})
}

// Rules iterates over the rules of a tree, each with its path, payments/*, in the order of the paths'
// names.
func Rules(limits map[string]policy.ScopeConfig) iter.Seq2[string, policy.Rule] {
	return rulesOf(limits, "")
}

// Nodes iterates over the nodes of a tree, as Rules does over their rules.
func Nodes(limits map[string]policy.ScopeConfig) iter.Seq2[string, policy.ScopeConfig] {
	return nodesOf(limits, "")
}

func rulesOf(limits map[string]policy.ScopeConfig, under string) iter.Seq2[string, policy.Rule] {
	return func(yield func(string, policy.Rule) bool) {
		for path, n := range nodesOf(limits, under) {
			for _, r := range n.Rules {
				if !yield(path, r) {
					return
				}
			}
		}
	}
}

// nodesOf visits the nodes of a tree, each with its path.
func nodesOf(limits map[string]policy.ScopeConfig, under string) iter.Seq2[string, policy.ScopeConfig] {
	return func(yield func(string, policy.ScopeConfig) bool) {
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			path := strings.TrimPrefix(under+"/"+name, "/")
			if !yield(path, limits[name]) {
				return
			}
			for path, n := range nodesOf(limits[name].Scopes, path) {
				if !yield(path, n) {
					return
				}
			}
		}
	}
}

// Assign sets the owner of a scope, and the applications that may spend from it. nil keeps the current
// value, and an empty list or text removes it. The levels above and below the scope do not change. Its
// errors are those of Set, and ErrUnchanged.
func (s *Store) Assign(ctx context.Context, e Edit, scope string, owner *string, apps []string) (Made, error) {
	return s.Reassign(ctx, e, scope, Assigned{Owner: owner, Apps: apps})
}

// Assigned is the change that Reassign makes to a scope; nil keeps the current value.
type Assigned struct {
	Owner *string
	Apps  []string // an empty list takes it away
	// Hosts are the hosts whose answers count. An empty list removes them.
	Hosts []string
	// Weight is the weight of the scope among those beside it, 1 for an equal share.
	Weight *int64
	// Shares are the shares of the names below the scope. An empty map removes them.
	Shares map[string]policy.Share
	// Answers is the effect of an API's answers, as limits.yaml has it: pause, or {most: 150%}. An empty
	// text removes it.
	Answers *string
}

// Reassign does what Assign does, for all fields of Assigned. Its errors are those of Assign.
func (s *Store) Reassign(ctx context.Context, e Edit, scope string, as Assigned) (Made, error) {
	return s.whole(ctx, e, func(v *draft, policy *policy.Policy, now time.Time) error {
		_, limits := policy.Limits()
		n := nodeAt(limits, strings.Split(scope, "/"))
		a := v.assignmentOf(scope, n)
		a.Authorship = e.authorship(v, now)
		v.Change = "assign " + scope
		if as.Owner != nil {
			a.Owner = *as.Owner
			v.Change += " owner=" + *as.Owner
		}
		if as.Apps != nil {
			a.Apps = slices.Clone(as.Apps)
			v.Change += " apps=" + strings.Join(as.Apps, ",")
		}
		if as.Hosts != nil {
			hosts := slices.Clone(as.Hosts)
			a.Hosts = &hosts
			v.Change += " hosts=" + strings.Join(hosts, ",")
		}
		if as.Weight != nil {
			a.Weight = *as.Weight
			v.Change += fmt.Sprintf(" weight=%d", *as.Weight)
		}
		if as.Shares != nil {
			shares := maps.Clone(as.Shares)
			a.Shares = &shares
			v.Change += " shares=" + FormatShares(shares)
		}
		if as.Answers != nil {
			a.Answers = as.Answers
			v.Change += " answers=" + *as.Answers
		}
		then := n
		if err := a.layOver(&then); err != nil {
			return err
		}
		if assignedAlike(n, then) {
			return ErrUnchanged
		}
		if len(a.Apps) == 0 {
			a.Apps = nil
		}
		v.assign(a)
		return nil
	})
}

// assignmentOf is what was assigned to a scope, and of who answers for it and who may
// spend from it what the limits say.
func (v *draft) assignmentOf(scope string, n policy.ScopeConfig) Assignment {
	a := Assignment{Scope: scope}
	for _, was := range v.Scopes {
		if was.Scope == scope {
			a = was
		}
	}
	a.Owner, a.Apps = n.Owner, n.Apps
	return a
}

func saysNothing(n policy.ScopeConfig) bool {
	return n.Owner == "" && n.Apps == nil && n.Hosts == nil && n.Weight == 0 && len(n.Shares) == 0 && limitsyaml.FormatAnswers(n) == ""
}

// assignedAlike says that two nodes have the same of what is assigned.
func assignedAlike(a, b policy.ScopeConfig) bool {
	return a.Owner == b.Owner && slices.Equal(a.Apps, b.Apps) && slices.Equal(a.Hosts, b.Hosts) && a.Weight == b.Weight && maps.Equal(a.Shares, b.Shares) &&
		limitsyaml.FormatAnswers(a) == limitsyaml.FormatAnswers(b)
}

// FormatShares writes shares as they are given on a command line: batch:3,interactive:60%.
func FormatShares(shares map[string]policy.Share) string {
	names := slices.Sorted(maps.Keys(shares))
	for i, name := range names {
		s := shares[name]
		if s.Guaranteed != 0 {
			names[i] += fmt.Sprintf(":%d%%", s.Guaranteed)
		}
		if s.Weight > 1 || s.Guaranteed == 0 {
			names[i] += fmt.Sprintf(":%d", max(1, s.Weight))
		}
	}
	return strings.Join(names, ",")
}

// Rollback restores the limits of an earlier version, as a new version, with the pauses of that
// version that have not ended. The error is ErrUnchanged if the limits are the same already, a
// *ConflictError, or those of Version.
func (s *Store) Rollback(ctx context.Context, e Edit, number int64) (Made, error) {
	then, err := s.Version(ctx, number)
	if err != nil {
		return Made{}, err
	}
	return s.whole(ctx, e, func(v *draft, _ *policy.Policy, now time.Time) error {
		v.Change = fmt.Sprintf("rollback %d", number)
		before := v.clone()
		v.goBack(e, before, then, now)
		if then.Imported == nil && then.File == nil && v.File != nil { // there was no file yet
			none, err := policy.New("", nil)
			if err != nil {
				return err
			}
			v.Imported = v.bring(none, e, now)
		}
		v.expire(now)
		if v.sameAs(before) {
			return ErrUnchanged
		}
		return nil
	})
}

// goBack makes a draft, which was before, what an earlier version was. What that brings back is by whoever goes back; what is there
// already stays theirs who made it.
func (v *draft) goBack(e Edit, before, then Version, now time.Time) {
	v.Imported = then.Imported
	if then.Imported == nil && then.File != nil && (v.File == nil || v.File.Sum != then.File.Sum) {
		v.Imported = then.File // the workers' file is another one by now
	}
	if v.Imported != nil {
		v.Imported = &Source{Sum: v.Imported.Sum, By: e.By, User: v.User, At: now, Reason: e.Reason}
		if sameSource(before.Imported, v.Imported) {
			v.Imported = before.Imported
		}
	}
	by := e.authorship(v, now)
	v.Rules, v.Scopes, v.Pauses = slices.Clone(then.Rules), slices.Clone(then.Scopes), slices.Clone(then.Pauses)
	for i, o := range v.Rules {
		v.Rules[i].Authorship = by.after(o.Authorship)
		if at, found := before.find(o.Scope, o.Name, !o.lasting()); found && before.Rules[at].Rule == o.Rule && before.Rules[at].Until.Equal(o.Until) {
			v.Rules[i] = before.Rules[at]
		}
	}
	for i, a := range v.Scopes {
		v.Scopes[i].Authorship = by.after(a.Authorship)
		for _, had := range before.Scopes {
			if a.Authorship = had.Authorship; reflect.DeepEqual(a, had) {
				v.Scopes[i] = had
			}
		}
	}
	for i, p := range v.Pauses {
		v.Pauses[i].Since, v.Pauses[i].UpdatedBy, v.Pauses[i].UpdatedUser, v.Pauses[i].UpdatedAt, v.Pauses[i].Reason = now, e.By, v.User, now, e.Reason
		for _, had := range before.Pauses {
			if had.Scope == p.Scope && had.Resumed == p.Resumed {
				v.Pauses[i].Since = had.Since
			}
			if had.says(p) {
				v.Pauses[i] = had
			}
		}
	}
}

func sameSource(a, b *Source) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Sum == b.Sum
}

// bring makes a policy a source of the version that is being made.
func (v *draft) bring(p *policy.Policy, e Edit, now time.Time) *Source {
	text := limitsyaml.Format(p)
	sum := sumOf(text)
	v.texts[sum] = text
	return &Source{Sum: sum, By: e.By, User: v.User, At: now, Reason: e.Reason}
}

// whole is edit for a change of the whole policy: if another change is made meanwhile, nothing is
// changed.
func (s *Store) whole(ctx context.Context, e Edit, change func(*draft, *policy.Policy, time.Time) error) (Made, error) {
	var made Made
	began := int64(-1) // the version that it was begun over
	v, err := s.edit(ctx, e, func(v *draft, policy *policy.Policy, now time.Time) error {
		if began >= 0 && began != v.number {
			return &ConflictError{Now: v.Version}
		}
		began, made.PolicyBefore = v.number, policy
		return change(v, policy, now)
	})
	return made.of(v, err)
}
