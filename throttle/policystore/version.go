package policystore

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Version is one state of the limits, and the change that made it.
type Version struct {
	Number int64 `json:"version"` // grows by one with each change
	// At is when the version was written, and InForce when processes begin to decide under it, both by the Redis server's clock.
	At      time.Time `json:"at"`
	InForce time.Time `json:"in_force"`
	By      string    `json:"by"`               // the stated author, which is not verified
	Change  string    `json:"change"`           // in one line
	Reason  string    `json:"reason,omitempty"` // as Edit.Reason
	Via     string    `json:"via,omitempty"`    // as Edit.Via
	// User is the Redis user that wrote the version, by ACL WHOAMI; empty if the server did not report it.
	User     string  `json:"user,omitempty"`
	File     *Source `json:"file,omitempty"`     // the limits file that workers published last
	Imported *Source `json:"imported,omitempty"` // replaces the file
	// Overrides are the live changes over the file or Imported, in the order of their scopes and names. A temporary one comes after, and
	// lies over, a permanent one.
	Overrides []Override `json:"overrides,omitempty"`
	Resets    []Reset    `json:"resets,omitempty"` // what Store.Reset has made the version for
	// Breaker is the scope whose breaker the version opened or closed by hand.
	Breaker string `json:"breaker,omitempty"`
	Tiers   []Tier `json:"tiers,omitempty"` // what Store.SetTiers has made the version for
	// Files are the sums of the files that were published, the latest last, at most 200.
	Files []string `json:"files,omitempty"`
}

// Source is a whole policy, published or imported.
type Source struct {
	Sum    string    `json:"sum"` // of its text: the SHA-256 of what limitsyaml.Format writes, in hex
	By     string    `json:"by"`
	User   string    `json:"user,omitempty"` // as that of a Version
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"` // of the import
}

// Authorship is the author of a live change, and of its last update.
type Authorship struct {
	CreatedBy   string    `json:"created_by"`
	CreatedUser string    `json:"created_user,omitempty"` // as the User of a Version
	CreatedAt   time.Time `json:"created_at"`
	UpdatedBy   string    `json:"updated_by"`
	UpdatedUser string    `json:"updated_user,omitempty"`
	UpdatedAt   time.Time `json:"updated_at"`
	Reason      string    `json:"reason,omitempty"` // of the last change
}

// after returns the authorship of an update of something that was created before.
func (a Authorship) after(was Authorship) Authorship {
	a.CreatedBy, a.CreatedUser, a.CreatedAt = was.CreatedBy, was.CreatedUser, was.CreatedAt
	return a
}

// Override is a live change of one rule, or of one of the limitsyaml.Fields of a scope: it replaces what the file or the imported policy has there.
type Override struct {
	Scope string `json:"scope"` // its place in the policy, with "*" for every name: payments/*
	Name  string `json:"name"`  // of the rule, or of the field
	// Text is the rule as limits.yaml has it, or the field as limitsyaml.Fields has it, but limitsyaml.Paused for every pause. It is empty
	// for a rule or field that was removed.
	Text string `json:"text,omitempty"`
	// Until is when the override ends, or zero for never. What was there before it then applies again.
	Until time.Time `json:"until,omitzero"`

	Authorship
}

func (o Override) ended(now time.Time) bool { return ended(o.Until, now) }

// ended reports whether a time has come; the zero time never does.
func ended(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// Resumed reports whether the override of a pause resumes the scope, whatever the file or "*" has.
func (o Override) Resumed() bool { return o.Text == limitsyaml.Resumed }

func compareOverrides(a, b Override) int {
	return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Name, b.Name), a.Until.Compare(b.Until))
}

// put adds an override, and removes the permanent or the temporary one of the same rule or field but for its creator.
func (v *Version) put(o Override) {
	v.Overrides = slices.DeleteFunc(v.Overrides, func(was Override) bool {
		same := was.Scope == o.Scope && was.Name == o.Name && was.Until.IsZero() == o.Until.IsZero()
		if same {
			o.Authorship = o.after(was.Authorship)
		}
		return same
	})
	i, _ := slices.BinarySearchFunc(v.Overrides, o, compareOverrides)
	v.Overrides = slices.Insert(v.Overrides, i, o)
}

// drop removes the overrides of a rule or field, or of the whole scope for an empty name.
func (v *Version) drop(scope, name string) {
	v.Overrides = slices.DeleteFunc(v.Overrides, func(o Override) bool { return o.Scope == scope && (name == "" || o.Name == name) })
}

// at returns the overrides of a scope.
func (v Version) at(scope string) []Override {
	byScope := func(o Override, scope string) int { return strings.Compare(o.Scope, scope) }
	from, _ := slices.BinarySearchFunc(v.Overrides, scope, byScope)
	to, _ := slices.BinarySearchFunc(v.Overrides, scope+"\x00", byScope)
	return v.Overrides[from:to]
}

// of returns the overrides of a rule or field.
func (v Version) of(scope, name string) []Override {
	return slices.DeleteFunc(slices.Clone(v.at(scope)), func(o Override) bool { return o.Name != name })
}

// Override returns the override of a rule or field that counts at a time, and whether there is one.
func (v Version) Override(scope, name string, now time.Time) (Override, bool) {
	for _, o := range slices.Backward(v.of(scope, name)) {
		if !o.ended(now) {
			return o, true
		}
	}
	return Override{}, false
}

// clone returns a version that can be changed.
func (v Version) clone() Version {
	v.Overrides, v.Files = slices.Clone(v.Overrides), slices.Clone(v.Files)
	return v
}

// source returns the source below the live changes, nil if there is none.
func (v Version) source() *Source {
	if v.Imported != nil {
		return v.Imported
	}
	return v.File
}

// RestsOn reports whether p is the policy below the live changes: the limits file that was published last, or the imported policy in its
// place.
func (v Version) RestsOn(p *policy.Policy) bool { return v.source().is(p) }

// HasFile reports whether p is the limits file that was published last, even if another policy was imported in its place.
func (v Version) HasFile(p *policy.Policy) bool { return v.File.is(p) }

func (s *Source) is(p *policy.Policy) bool { return s != nil && s.Sum == sumOf(limitsyaml.Format(p)) }

func sameSource(a, b *Source) bool { return a == b || a != nil && b != nil && a.Sum == b.Sum }

func sumOf(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// record is a version as Redis has it. It is never changed.
type record struct {
	// Oldest is the oldest version that was kept when this one was written, and Sources the newest version that needs each source whose
	// text was kept.
	Oldest  int64            `json:"oldest"`
	Sources map[string]int64 `json:"sources,omitempty"`
	Version
}

// decode decodes a record. It refuses a field that it does not know, which might be a limit of a later release.
func decode(number int64, text string) (r record, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return record{}, &DamagedError{number, fmt.Errorf("it is not understood: %w", err)}
	}
	if r.Number != number {
		return record{}, &DamagedError{number, fmt.Errorf("it says that it is version %d", r.Number)}
	}
	return r, nil
}

// policyOver is policy for a version as Redis has it: the error is a *DamagedError.
func (v Version) policyOver(base *policy.Policy, now time.Time) (*policy.Policy, time.Time, error) {
	p, next, err := v.policy(base, now)
	if err != nil {
		return nil, time.Time{}, &DamagedError{v.Number, err}
	}
	return p, next, nil
}

// policy returns the policy of a version over its base at a time, and when it changes by itself: the zero time for never.
func (v Version) policy(base *policy.Policy, now time.Time) (*policy.Policy, time.Time, error) {
	var next time.Time
	unmatched, limits := base.Limits()
	root := policy.ScopeConfig{Scopes: limits}
	for _, o := range v.Overrides {
		if o.ended(now) {
			continue
		}
		next = sooner(next, o.Until)
		if err := root.Edit(o.Scope, o.layOver); err != nil {
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

// layOver lays an override over the node of its scope.
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
		next = sooner(next, n.PausedUntil)
		for _, below := range []map[string]policy.ScopeConfig{n.Tiers, n.Scopes} {
			ends, more := endPauses(below, now)
			next, some = sooner(next, ends), some || more
		}
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
	return policy.ScopeConfig{Scopes: limits}.At(scope)
}

// Nodes iterates over the nodes of a tree of limits, each with its path, such as payments/*, tiers before the names beside them, in
// order.
func Nodes(limits map[string]policy.ScopeConfig) iter.Seq2[string, policy.ScopeConfig] {
	return func(yield func(string, policy.ScopeConfig) bool) {
		visit("", policy.ScopeConfig{Scopes: limits}, yield)
	}
}

func visit(under string, n policy.ScopeConfig, yield func(string, policy.ScopeConfig) bool) (more bool) {
	for level, below := range n.Below() {
		if !yield(under+level, below) || !visit(under+level+"/", below, yield) {
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
	var rules []string
	for _, n := range nodes {
		for name := range limitsyaml.Fields(n) {
			names = append(names, name)
		}
		for _, r := range n.Rules {
			rules = append(rules, r.Name)
		}
	}
	return unique(append(names, rules...))
}

// isField reports whether a name is that of a field of a scope, and not of a rule.
func isField(name string) bool { return strings.HasSuffix(name, ":") }

// unique returns some names, each once, in their order.
func unique(names []string) (list []string) {
	for _, name := range names {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
