package policystore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Set writes a rule at scope, with "*" for every name: payments/*. Fields are those of limits.yaml, as limitsyaml.RuleWith takes them.
// Fields that are not given keep their value: that of the rule there, or else of the rule that scope inherits. The error is a
// *ConflictError, a *RefusedError, a *policy.Error for invalid limits, or those of Store. Costs some round trips.
func (s *Store) Set(ctx context.Context, e Edit, scope, rule string, fields map[string]string) (Made, error) {
	return s.one(ctx, e, scope, rule, func(d *draft, _ *Override) error {
		was, own, near, err := d.rule(scope, rule)
		if err != nil {
			return err
		}
		before := limitsyaml.FormatRule(was)
		was.Name = rule
		next, err := limitsyaml.RuleWith(was, fields)
		if err != nil && was.Algorithm == "" && near != "" {
			return missing(scope, rule, near)
		}
		if err != nil {
			return err
		}
		text := limitsyaml.FormatRule(next)
		if own && text == before && e.For == 0 {
			return ErrUnchanged
		}
		d.Change = "set " + scope + " " + rule
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			d.Change += " " + name + "=" + fields[name]
		}
		d.put(d.override(scope, rule, text))
		return nil
	})
}

// Remove removes a rule from scope, one of the file or one that was set. The rule that scope inherits then applies. Its errors are those of
// Set.
func (s *Store) Remove(ctx context.Context, e Edit, scope, rule string) (Made, error) {
	return s.one(ctx, e, scope, rule, func(d *draft, _ *Override) error {
		was, own, near, err := d.rule(scope, rule)
		if err != nil {
			return err
		}
		if !own {
			if was.Algorithm != "" {
				return refuse("%s has no rule %q of its own, and inherits %s; set it with unlimited=true to lift it", scope, rule, limitsyaml.FormatRule(was))
			}
			return missing(scope, rule, near)
		}
		d.Change = "remove " + scope + " " + rule
		if e.For == 0 {
			d.drop(scope, rule)
			if textIn(nodeAt(d.base, scope), rule) == "" {
				return nil
			}
		}
		d.put(d.override(scope, rule, ""))
		return nil
	})
}

// missing returns the error for a scope without a rule. near is the name that is probably meant.
func missing(scope, rule, near string) error {
	if near != "" {
		near = "; did you mean " + near + "?"
	}
	return refuse("%s has no rule %q of its own%s", scope, rule, near)
}

// Pause pauses scope, with "*" for every name, and all scopes below it: no task that spends from them starts, for Edit.For or permanently.
// Tasks wait in their order. A scope that is paused already gets a new end. After a temporary pause the file's value applies again, or an
// earlier resumption. The scope needs no rules. Its errors are those of Set, and ErrUnchanged if it is paused permanently already.
func (s *Store) Pause(ctx context.Context, e Edit, scope string) (Made, error) {
	return s.one(ctx, e, scope, PausedField, func(d *draft, before *Override) error {
		if e.For == 0 && textIn(nodeAt(d.was, scope), PausedField) == limitsyaml.Paused {
			return ErrUnchanged
		}
		d.Change = "pause " + scope
		o := d.override(scope, PausedField, limitsyaml.Paused)
		if before != nil && !before.Resumed() {
			o.Authorship = o.after(before.Authorship) // it is paused since then
		}
		d.drop(scope, PausedField)
		if earlier := d.before.of(scope, PausedField); e.For > 0 && len(earlier) > 0 && earlier[0].Resumed() {
			d.put(earlier[0])
		}
		d.put(o)
		return nil
	})
}

// Resume ends the pause of scope, including the file's, and for one name that of "*". A pause above or below it stays. Its errors are those
// of Pause.
func (s *Store) Resume(ctx context.Context, e Edit, scope string) (Made, error) {
	e.For = 0
	return s.one(ctx, e, scope, PausedField, func(d *draft, _ *Override) error {
		if above, paused := pausedAt(d.was, scope); !paused && above != "" {
			return refuse("%s is not paused itself; %s is, and all that lies below it", scope, above)
		} else if !paused {
			return refuse("%s is not paused by the limits; close ends a pause that its API asked for", scope)
		}
		d.Change = "resume " + scope
		d.drop(scope, PausedField)
		without, _, err := d.policy(d.base, d.At)
		if err != nil {
			return err
		}
		if _, still := pausedAt(d.tiered(without), scope); still { // by the file or "*"
			d.put(d.override(scope, PausedField, limitsyaml.Resumed))
		}
		return nil
	})
}

// pausedAt reports whether a policy pauses a scope, or a place such as payments/*, and otherwise which level above it is paused.
func pausedAt(p *policy.Policy, scope string) (above string, paused bool) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return "", nodeAt(p, scope).Pause == policy.PauseOn
	}
	matched, _ := p.Match(parsed) // an unmatched scope is not paused
	for _, m := range matched {
		if m.Paused() && m.Scope == parsed {
			return "", true
		}
		if m.Paused() {
			above = m.Scope.String()
		}
	}
	return above, false
}

// one changes one rule or the pause of a scope. before is the override that counts, or nil.
func (s *Store) one(ctx context.Context, e Edit, scope, name string, change func(d *draft, before *Override) error) (Made, error) {
	if scope == "" {
		return Made{}, &policy.ScopeError{Reason: "is empty; write names divided by '/', such as payments/acme"}
	}
	var before *Override
	made, err := s.edit(ctx, e, func(d *draft) error {
		if err := d.knowsTiers(scope); err != nil {
			return err
		}
		before = nil
		if o, is := d.before.Override(scope, name, d.At); is {
			before = &o
		}
		if err := change(d, before); err != nil {
			return err
		}
		if e.For > 0 {
			d.Change += " for " + e.For.String()
		}
		return nil
	})
	made.Before = before
	return made, err
}

// override returns an override of the draft. It ends after Edit.For.
func (d *draft) override(scope, name, text string) Override {
	o := Override{Scope: scope, Name: name, Text: text, Authorship: d.authorship()}
	if d.For > 0 {
		o.Until = d.At.Add(d.For)
	}
	return o
}

// rule returns the rule of a name at a scope that a change is made to, or the one that the scope inherits: then own is false. If there is
// none, near is the name that is probably meant. A permanent change is not made to temporary rules.
func (d *draft) rule(scope, name string) (r policy.Rule, own bool, near string, err error) {
	if isField(name) {
		return r, false, "", refuse("%q is not the name of a rule", name)
	}
	p := d.was
	if d.For == 0 {
		lasting := d.before.clone()
		lasting.Overrides = slices.DeleteFunc(lasting.Overrides, func(o Override) bool { return !o.Until.IsZero() })
		if p, _, err = lasting.policy(d.base, d.At); err != nil {
			return r, false, "", err
		}
	}
	rules := nodeAt(p, scope).Rules
	owned := len(rules)
	if parsed, err := policy.ParseScope(scope); err == nil {
		matched, _ := d.tiered(p).Match(parsed) // an unmatched scope has no rules
		for _, m := range matched {
			if m.Scope == parsed && !m.Paused() {
				rules = append(rules, m.Rule)
			}
		}
	}
	var names []string
	for i, r := range rules {
		if r.Name == name {
			return r, i < owned, "", nil
		}
		names = append(names, r.Name)
	}
	return r, false, diag.Nearest(name, names), nil
}

// Unset discards the overrides of a rule, so that the file, or the imported policy, applies again. For an empty rule it discards all live
// changes of the scope, and for an empty scope everything, including an imported policy. The error is ErrUnchanged if there was nothing to
// discard, a *ConflictError, or those of Store.
func (s *Store) Unset(ctx context.Context, e Edit, scope, rule string) (Made, error) {
	return s.edit(ctx, e, func(d *draft) error {
		d.Change = strings.TrimSpace("unset " + scope + " " + rule)
		if scope == "" {
			d.Change = "unset everything"
			d.Imported, d.Overrides = nil, nil
		} else {
			d.drop(scope, rule)
		}
		if len(d.Overrides) == len(d.before.Overrides) && d.Imported == d.before.Imported {
			return ErrUnchanged
		}
		return nil
	})
}

// Import imports a policy. With replace, it replaces the file that workers were started with, and every override is discarded. Without, each
// of its rules and fields is set. In both cases a live pause stays unless p has one for the scope: limits from a machine must not undo a
// manual stop. Its errors are those of Set, and ErrUnchanged.
func (s *Store) Import(ctx context.Context, e Edit, p *policy.Policy, from string, replace bool) (Made, error) {
	e.For = 0
	return s.edit(ctx, e, func(d *draft) error {
		_, limits := p.Limits()
		if replace {
			d.Change = "import -replace " + from
			d.Imported = d.bring(p)
			d.Overrides = slices.DeleteFunc(d.Overrides, func(o Override) bool {
				return o.Name != PausedField || nodeIn(limits, o.Scope).Pause != policy.PauseInherited
			})
			return nil
		}
		d.Change = "import " + from
		_, stand := d.was.Limits()
		err := ErrUnchanged
		for scope, n := range Nodes(limits) {
			for _, name := range namesIn(n) {
				if d.assign(scope, name, n, nodeIn(stand, scope)) {
					err = nil
				}
			}
		}
		return err
	})
}

// assign overrides a field or rule of a scope by that of the node to, and reports whether it was different.
func (d *draft) assign(scope, name string, to, was policy.ScopeConfig) bool {
	text := textIn(to, name)
	if text == textIn(was, name) {
		return false
	}
	o := d.override(scope, name, text)
	if name == PausedField && to.Pause == policy.PauseOn {
		o.Text, o.Until = limitsyaml.Paused, to.PausedUntil
	}
	for _, earlier := range d.of(scope, name) { // also a temporary one, which would lie over it
		o.Authorship = o.after(earlier.Authorship)
	}
	d.drop(scope, name)
	d.put(o)
	return true
}

// Assigned is the change that Assign makes to a scope; nil keeps a field.
type Assigned struct {
	Owner   *string                 // an empty text removes it
	Apps    []string                // the applications that may spend; an empty list removes them
	Hosts   []string                // the hosts whose answers count; an empty list removes them
	Weight  *int64                  // among the scopes beside it, 1 for an equal share
	Shares  map[string]policy.Share // of the names below the scope; an empty map removes them
	Answers *string                 // the effect of an API's answers, as limits.yaml has it; an empty text removes it
	Breaker *string                 // as limits.yaml has it; an empty text removes it
}

// Assign sets fields of a scope beside its rules. The levels above and below it do not change. Its errors are those of Set, and
// ErrUnchanged.
func (s *Store) Assign(ctx context.Context, e Edit, scope string, as Assigned) (Made, error) {
	e.For = 0
	return s.edit(ctx, e, func(d *draft) error {
		if err := d.knowsTiers(scope); err != nil {
			return err
		}
		was := nodeAt(d.was, scope)
		to, err := as.over(was)
		if err != nil {
			return err
		}
		d.Change = "assign " + scope
		for _, name := range namesIn(was, to) {
			if d.assign(scope, name, to, was) {
				d.Change += " " + strings.TrimSuffix(name, ":") + "=" + strings.ReplaceAll(textIn(to, name), ", ", ",")
			}
		}
		if d.Change == "assign "+scope {
			return ErrUnchanged
		}
		return nil
	})
}

// over returns a node with the fields.
func (a Assigned) over(n policy.ScopeConfig) (policy.ScopeConfig, error) {
	n.Owner, n.Weight = *cmp.Or(a.Owner, &n.Owner), *cmp.Or(a.Weight, &n.Weight)
	if a.Apps != nil {
		n.Apps = a.Apps
	}
	if a.Hosts != nil {
		n.Hosts = a.Hosts
	}
	if a.Shares != nil {
		n.Shares = a.Shares
	}
	for name, text := range map[string]*string{"answers:": a.Answers, "breaker:": a.Breaker} {
		if text == nil {
			continue
		}
		if _, err := limitsyaml.SetField(&n, name, *text); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Rollback restores the limits of an earlier version, as a new version, with the pauses of that version that have not ended. The error is
// ErrUnchanged if the limits are the same already, a *ConflictError, or those of Version.
func (s *Store) Rollback(ctx context.Context, e Edit, number int64) (Made, error) {
	then, err := s.Version(ctx, number)
	if err != nil {
		return Made{}, err
	}
	return s.edit(ctx, e, func(d *draft) error {
		d.Change = "rollback " + strconv.FormatInt(number, 10)
		d.Imported = d.importedOf(then)
		d.Overrides = nil
		for _, o := range then.Overrides {
			if !o.ended(d.At) {
				d.put(d.restored(o))
			}
		}
		if sameSource(d.Imported, d.before.Imported) && slices.Equal(d.Overrides, d.before.Overrides) {
			return ErrUnchanged
		}
		return nil
	})
}

// importedOf returns the imported policy with which the draft rests on what an earlier version rested on, or nil if it does on the file of
// the workers.
func (d *draft) importedOf(then Version) *Source {
	source := then.source()
	if then.Imported == nil && sameSource(source, d.File) {
		return nil
	}
	if source == nil {
		source = d.bring(new(policy.Policy))
	}
	if sameSource(source, d.Imported) {
		return d.Imported
	}
	return &Source{Sum: source.Sum, By: d.Edit.By, User: d.User, At: d.At, Reason: d.Edit.Reason}
}

// restored returns an override of an earlier version. One that is still there stays as it is. Another is updated by the author of the
// draft, and keeps who created it; but a pause begins anew.
func (d *draft) restored(o Override) Override {
	for _, still := range d.before.of(o.Scope, o.Name) {
		if still.Text == o.Text && still.Until.Equal(o.Until) {
			return still
		}
	}
	by := d.authorship()
	if o.Name != PausedField {
		by = by.after(o.Authorship)
	}
	o.Authorship = by
	return o
}
