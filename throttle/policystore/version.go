package policystore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Version is one state of the limits, and the change that made it.
type Version struct {
	// Number grows by one with each change.
	Number int64 `json:"version"`
	// At is when the version was written, and InForce when processes begin to decide under it, both by
	// the Redis server's clock.
	At      time.Time `json:"at"`
	InForce time.Time `json:"in_force"`
	// By is the stated author, which is not verified, and Change the change, in one line.
	By     string `json:"by"`
	Change string `json:"change"`
	// Reason is the reason of the change, as in Edit.Reason.
	Reason string `json:"reason,omitempty"`
	// Via is the way of the change, as in Edit.Via.
	Via string `json:"via,omitempty"`
	// User is the Redis user that wrote the version, by ACL WHOAMI; empty if the server did not report
	// it.
	User string `json:"user,omitempty"`
	// Prev is the Hash of the version before, empty for the first one.
	Prev string `json:"prev,omitempty"`
	// Hash is the SHA-256 of all that is stored of this version, Prev included, in hex.
	Hash string `json:"-"`
	// File is the limits file that workers published last.
	File *Source `json:"file,omitempty"`
	// Imported replaces the file.
	Imported *Source `json:"imported,omitempty"`
	// Rules are the overrides over the file or Imported, in the order of their scopes.
	Rules []Override `json:"rules,omitempty"`
	// Scopes are the live assignments, in the order of their scopes.
	Scopes []Assignment `json:"scopes,omitempty"`
	// Pauses are the scopes that were paused or resumed live, in their order.
	Pauses []Pause `json:"pauses,omitempty"`
	// Resets are the rules that this version made as if unused: none but where it was made by Store.Reset.
	Resets []Reset `json:"resets,omitempty"`
	// Files are the sums of the files that were published, the latest last, at most 200.
	Files []string `json:"files,omitempty"`
	// Edited reports that this version, or one before it, was made by more than publishing files, which
	// are kept elsewhere.
	Edited bool `json:"edited,omitempty"`
}

// Source is a whole policy, published or imported.
type Source struct {
	// Sum is the id of its text: the SHA-256 of what limitsyaml.Format writes, in hex.
	Sum  string    `json:"sum"`
	By   string    `json:"by"`
	User string    `json:"user,omitempty"` // as that of a Version
	At   time.Time `json:"at"`
	// Reason is the reason of the import, empty for a file that a worker published.
	Reason string `json:"reason,omitempty"`
}

// Authorship is the author of a live change, and of its last update.
type Authorship struct {
	CreatedBy   string    `json:"created_by"`
	CreatedUser string    `json:"created_user,omitempty"` // as the User of a Version
	CreatedAt   time.Time `json:"created_at"`
	UpdatedBy   string    `json:"updated_by"`
	UpdatedUser string    `json:"updated_user,omitempty"`
	UpdatedAt   time.Time `json:"updated_at"`
	// Reason is that of the last change, as Edit.Reason has it.
	Reason string `json:"reason,omitempty"`
}

// after is the authorship of something that had another one before.
func (a Authorship) after(was Authorship) Authorship {
	a.CreatedBy, a.CreatedUser, a.CreatedAt = was.CreatedBy, was.CreatedUser, was.CreatedAt
	return a
}

// Override is one rule that was set or removed by itself.
type Override struct {
	// Scope is the rule's place in the policy, with "*" for every name: payments/*.
	Scope string `json:"scope"`
	// Name is the rule's.
	Name string `json:"name"`
	// Rule is the rule as limits.yaml has it, empty for one that was removed.
	Rule string `json:"rule,omitempty"`
	// Until is when the override ends, or zero for never. What was there before it then applies again.
	Until time.Time `json:"until,omitzero"`

	Authorship
}

// Assignment is the owner of a scope and the applications that may spend from it, as assigned live. It
// replaces both values of the file. It may also replace the file's weight and shares.
type Assignment struct {
	Scope string   `json:"scope"` // where the policy has it, "*" for every name
	Owner string   `json:"owner,omitempty"`
	Apps  []string `json:"apps,omitempty"` // none for all
	// Weight is 0, and Hosts, Shares and Answers are nil, if the file's value counts.
	Hosts  *[]string                `json:"hosts,omitempty"`
	Weight int64                    `json:"weight,omitempty"`
	Shares *map[string]policy.Share `json:"shares,omitempty"`
	// Answers is as limits.yaml has it, empty if the levels above count.
	Answers *string `json:"answers,omitempty"`

	Authorship
}

// Pause is a scope that was paused or resumed live. It replaces the file's pause of that scope.
type Pause struct {
	Scope string `json:"scope"` // where the policy has it, "*" for every name
	// Resumed reports that the scope is not paused, whatever the file or "*" has.
	Resumed bool `json:"resumed,omitempty"`
	// Until is when the pause ends, or zero for never. The file's value then counts or, with ThenResumed,
	// the scope is resumed, as it was before.
	Until       time.Time `json:"until,omitzero"`
	ThenResumed bool      `json:"then_resumed,omitempty"`

	// Since is when the scope was paused or resumed. UpdatedBy is the author of the last update, such as
	// a new end.
	Since       time.Time `json:"since"`
	UpdatedBy   string    `json:"updated_by"`
	UpdatedUser string    `json:"updated_user,omitempty"` // as the User of a Version
	UpdatedAt   time.Time `json:"updated_at"`
	// Reason is that of the last change, as Edit.Reason has it.
	Reason string `json:"reason,omitempty"`
}

// says reports whether two pauses come to the same, whoever made them.
func (p Pause) says(other Pause) bool {
	return p.Scope == other.Scope && p.Resumed == other.Resumed && p.Until.Equal(other.Until) && p.ThenResumed == other.ThenResumed
}

// format is of what stands in Redis. A version of another one is not understood.
const format = 1

// stored is how a version stands in Redis.
type stored struct {
	Format int `json:"format"`
	Version
}

func (v Version) encode() (string, error) {
	text, err := json.Marshal(stored{format, v})
	return string(text), err
}

// decode refuses whatever it does not know: it might be a limit.
func decode(text string) (Version, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	var s stored
	if err := d.Decode(&s); err != nil {
		return Version{}, fmt.Errorf("it is not understood: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Version{}, errors.New("something follows it")
	}
	if s.Format != format {
		return Version{}, fmt.Errorf("it has format %d, and this program knows format %d", s.Format, format)
	}
	return s.Version, nil
}

// source is the one that the rules lie over, nil when there is none.
func (v Version) source() *Source {
	if v.Imported != nil {
		return v.Imported
	}
	return v.File
}

// sources are the sums of the texts that it needs.
func (v Version) sources() (sums []string) {
	for _, s := range []*Source{v.File, v.Imported} {
		if s != nil && !slices.Contains(sums, s.Sum) {
			sums = append(sums, s.Sum)
		}
	}
	return sums
}

// RestsOn reports whether p is the base of the version's rules: the limits file that was published
// last, or the imported policy in its place.
func (v Version) RestsOn(p *policy.Policy) bool {
	source := v.source()
	return source != nil && source.Sum == sumOf(limitsyaml.Format(p))
}

func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// find returns the place of the override of a rule, the one that ends or the other, and
// whether it is there.
func (v Version) find(scope, name string, ends bool) (int, bool) {
	return slices.BinarySearchFunc(v.Rules, Override{Scope: scope, Name: name}, func(a, b Override) int {
		if n := strings.Compare(a.Scope, b.Scope); n != 0 {
			return n
		}
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		switch {
		case a.Until.IsZero() == !ends:
			return 0
		case ends:
			return -1 // one that ends lies over one that does not
		}
		return 1
	})
}

// put adds or replaces an override, and keeps who created it.
func (v *Version) put(o Override) {
	i, found := v.find(o.Scope, o.Name, !o.Until.IsZero())
	if found {
		o.Authorship = o.after(v.Rules[i].Authorship)
		v.Rules[i] = o
		return
	}
	v.Rules = slices.Insert(v.Rules, i, o)
}

// drop takes the overrides of a rule away, of all rules of a scope and what was assigned
// for an empty name, and says whether there were any.
func (v *Version) drop(scope, name string) bool {
	had := v.live()
	v.Rules = slices.DeleteFunc(v.Rules, func(o Override) bool { return o.Scope == scope && (name == "" || o.Name == name) })
	if name == "" {
		v.Scopes = slices.DeleteFunc(v.Scopes, func(a Assignment) bool { return a.Scope == scope })
		v.unpause(scope)
	}
	return v.live() < had
}

// live is how many things of a version were changed live.
func (v Version) live() int { return len(v.Rules) + len(v.Scopes) + len(v.Pauses) }

// pause adds or replaces the pause of a scope.
func (v *Version) pause(p Pause) {
	i, found := slices.BinarySearchFunc(v.Pauses, p, func(x, y Pause) int { return strings.Compare(x.Scope, y.Scope) })
	if found {
		v.Pauses[i] = p
		return
	}
	v.Pauses = slices.Insert(v.Pauses, i, p)
}

// unpause takes away what was said live of a scope's pause.
func (v *Version) unpause(scope string) {
	v.Pauses = slices.DeleteFunc(v.Pauses, func(p Pause) bool { return p.Scope == scope })
}

// Paused returns the live pause or resumption of a scope that has not ended at a time, and whether
// there is one.
func (v Version) Paused(scope string, at time.Time) (Pause, bool) {
	for _, p := range v.Pauses {
		if p = p.at(at); p.Scope == scope && !p.ended(at) {
			return p, true
		}
	}
	return Pause{}, false
}

func (p Pause) ended(now time.Time) bool { return !p.Until.IsZero() && !now.Before(p.Until) }

// at is what the pause is at a time: one that has ended may be a resumption.
func (p Pause) at(now time.Time) Pause {
	if p.ended(now) && p.ThenResumed {
		return Pause{Scope: p.Scope, Resumed: true, Since: p.Until, UpdatedBy: p.UpdatedBy, UpdatedUser: p.UpdatedUser, UpdatedAt: p.UpdatedAt, Reason: p.Reason}
	}
	return p
}

// withoutTemporary is the version as it will be when all that ends has ended.
func (v Version) withoutTemporary() Version {
	v = v.clone()
	v.Rules = slices.DeleteFunc(v.Rules, func(o Override) bool { return !o.Until.IsZero() })
	return v
}

// assign adds or replaces an assignment, and keeps who created it.
func (v *Version) assign(a Assignment) {
	i, found := slices.BinarySearchFunc(v.Scopes, a, func(x, y Assignment) int { return strings.Compare(x.Scope, y.Scope) })
	if found {
		a.Authorship = a.after(v.Scopes[i].Authorship)
		v.Scopes[i] = a
		return
	}
	v.Scopes = slices.Insert(v.Scopes, i, a)
}

// settle takes away the override of a rule that would lie over the one for good.
func (v *Version) settle(scope, name string) {
	if i, found := v.find(scope, name, true); found {
		v.Rules = slices.Delete(v.Rules, i, i+1)
	}
}

// expire takes away what has ended.
func (v *Version) expire(now time.Time) {
	v.Rules = slices.DeleteFunc(v.Rules, func(o Override) bool { return o.ended(now) })
	v.Pauses = slices.DeleteFunc(v.Pauses, func(p Pause) bool { return p.ended(now) && !p.ThenResumed })
	for i, p := range v.Pauses {
		v.Pauses[i] = p.at(now)
	}
}

func (o Override) ended(now time.Time) bool { return !o.Until.IsZero() && !now.Before(o.Until) }

// clone returns a version that can be changed.
func (v Version) clone() Version {
	v.Rules, v.Scopes, v.Files = slices.Clone(v.Rules), slices.Clone(v.Scopes), slices.Clone(v.Files)
	v.Pauses = slices.Clone(v.Pauses)
	return v
}

// sameAs reports whether two versions come to the same over the same file.
func (v Version) sameAs(other Version) bool {
	return sameSource(v.Imported, other.Imported) && slices.Equal(v.Rules, other.Rules) && slices.Equal(v.Pauses, other.Pauses) &&
		slices.EqualFunc(v.Scopes, other.Scopes, func(a, b Assignment) bool { return reflect.DeepEqual(a, b) })
}

// policy returns what a version comes to over a base at a time, and when that changes by
// itself: the zero time for never.
func (v Version) policy(base *policy.Policy, now time.Time) (*policy.Policy, time.Time, error) {
	var next time.Time
	unmatched, limits := base.Limits()
	if v.live() == 0 && !pauses(limits) {
		return base, next, nil
	}
	for _, a := range v.Scopes {
		var err error
		lay(limits, strings.Split(a.Scope, "/"), func(n *policy.ScopeConfig) { err = a.layOver(n) })
		if err != nil {
			return nil, next, err
		}
	}
	for _, p := range v.Pauses {
		if p = p.at(now); !p.ended(now) {
			lay(limits, strings.Split(p.Scope, "/"), p.lay)
		}
	}
	next = endPauses(limits, now)
	for _, o := range v.Rules {
		if o.ended(now) {
			continue
		}
		next = sooner(next, o.Until)
		if err := o.lay(limits); err != nil {
			return nil, next, err
		}
	}
	p, err := policy.New(unmatched, limits)
	return p, next, err
}

// layOver lays the assignment over the node of its scope.
func (a Assignment) layOver(n *policy.ScopeConfig) (err error) {
	n.Owner, n.Apps = a.Owner, a.Apps
	if a.Hosts != nil {
		n.Hosts = slices.Clone(*a.Hosts)
	}
	if a.Weight != 0 {
		n.Weight = a.Weight
	}
	if a.Shares != nil {
		n.Shares = *a.Shares
	}
	if a.Answers != nil {
		n.Answers, n.Corrects, n.Refusals, n.ResetUnit = "", policy.Corrects{}, policy.Refusals{}, ""
	}
	if a.Answers != nil && *a.Answers != "" {
		var answers policy.ScopeConfig
		answers, err = limitsyaml.ParseAnswers("answers of "+a.Scope, []byte(*a.Answers))
		n.Answers, n.Corrects, n.Refusals, n.ResetUnit = answers.Answers, answers.Corrects, answers.Refusals, answers.ResetUnit
	}
	return err
}

// lay lays the override over a tree of limits.
func (o Override) lay(limits map[string]policy.ScopeConfig) (err error) {
	lay(limits, strings.Split(o.Scope, "/"), func(n *policy.ScopeConfig) { err = o.layOver(n) })
	return err
}

// layOver lays the override over the node of its scope.
func (o Override) layOver(n *policy.ScopeConfig) error {
	rule := policy.Rule{Name: o.Name}
	if o.Rule != "" {
		var err error
		if rule, err = limitsyaml.ParseRule("rule "+o.Name+" of "+o.Scope, []byte(o.Rule)); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(n.Rules, func(r policy.Rule) bool { return r.Name == o.Name })
	switch {
	case o.Rule == "" && i >= 0:
		n.Rules = slices.Delete(n.Rules, i, i+1)
	case o.Rule == "":
	case i >= 0:
		n.Rules[i] = rule
	default:
		n.Rules = append(n.Rules, rule)
	}
	return nil
}

// lay lays the pause over the node of its scope.
func (p Pause) lay(n *policy.ScopeConfig) {
	n.Pause, n.PausedUntil = policy.PauseOn, p.Until
	if p.Resumed {
		n.Pause = policy.PauseOff
	}
}

// pauses reports whether any node of a tree is paused until a time.
func pauses(limits map[string]policy.ScopeConfig) bool {
	for _, n := range limits {
		if !n.PausedUntil.IsZero() || pauses(n.Scopes) {
			return true
		}
	}
	return false
}

// endPauses takes the pauses away that have ended, and returns when the next does, the zero
// time for never.
func endPauses(limits map[string]policy.ScopeConfig, now time.Time) (next time.Time) {
	for name, n := range limits {
		if !n.PausedUntil.IsZero() && !now.Before(n.PausedUntil) {
			n.Pause, n.PausedUntil = policy.PauseInherited, time.Time{}
			limits[name] = n
		}
		next = sooner(next, n.PausedUntil)
		next = sooner(next, endPauses(n.Scopes, now))
	}
	return next
}

// sooner is the first of two times, of which the zero time is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// lay changes the node at a path of a tree, which it makes where there is none.
func lay(limits map[string]policy.ScopeConfig, path []string, change func(*policy.ScopeConfig)) {
	n := limits[path[0]]
	if len(path) == 1 {
		change(&n)
	} else {
		if n.Scopes == nil {
			n.Scopes = map[string]policy.ScopeConfig{}
		}
		lay(n.Scopes, path[1:], change)
	}
	limits[path[0]] = n
}

// nodeAt returns the node at a path of a tree, empty where there is none.
func nodeAt(limits map[string]policy.ScopeConfig, path []string) policy.ScopeConfig {
	n := policy.ScopeConfig{Scopes: limits}
	for _, name := range path {
		n = n.Scopes[name]
	}
	return n
}

// same reports whether two policies say the same.
func same(a, b *policy.Policy) bool { return bytes.Equal(limitsyaml.Format(a), limitsyaml.Format(b)) }
