package policystore

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
	// At is when the version was written, and InForce when processes begin to decide under it, both by the Redis server's clock.
	At      time.Time `json:"at"`
	InForce time.Time `json:"in_force"`
	// By is the stated author, which is not verified, and Change the change, in one line.
	By     string `json:"by"`
	Change string `json:"change"`
	// Reason is the reason of the change, as in Edit.Reason.
	Reason string `json:"reason,omitempty"`
	// Via is the way of the change, as in Edit.Via.
	Via string `json:"via,omitempty"`
	// User is the Redis user that wrote the version, by ACL WHOAMI; empty if the server did not report it.
	User string `json:"user,omitempty"`
	// File is the limits file that workers published last.
	File *Source `json:"file,omitempty"`
	// Imported replaces the file.
	Imported *Source `json:"imported,omitempty"`
	// Overrides are the live changes over the file or Imported, in the order of their scopes and names. A temporary one comes after, and
	// lies over, a permanent one.
	Overrides []Override `json:"overrides,omitempty"`
	// Resets are the rules whose spending this version forgot: none unless Store.Reset made it.
	Resets []Reset `json:"resets,omitempty"`
	// Files are the sums of the files that were published, the latest last, at most 200.
	Files []string `json:"files,omitempty"`
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

// after returns the authorship of an update of something that was created before.
func (a Authorship) after(was Authorship) Authorship {
	a.CreatedBy, a.CreatedUser, a.CreatedAt = was.CreatedBy, was.CreatedUser, was.CreatedAt
	return a
}

// Override is a live change of one rule, or of one of the Fields of a scope: it replaces what the file or the imported policy has there.
type Override struct {
	// Scope is its place in the policy, with "*" for every name: payments/*.
	Scope string `json:"scope"`
	// Name is that of the rule, or of the field.
	Name string `json:"name"`
	// Text is the rule as limits.yaml has it, or the field as Fields has it, but limitsyaml.Paused for every pause. It is empty for a rule or field
	// that was removed.
	Text string `json:"text,omitempty"`
	// Until is when the override ends, or zero for never. What was there before it then applies again.
	Until time.Time `json:"until,omitzero"`

	Authorship
}

// ended reports whether the override has ended.
func (o Override) ended(now time.Time) bool { return ended(o.Until, now) }

// ended reports whether a time has come; the zero time never does.
func ended(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// Resumed reports whether the override of a pause resumes the scope, whatever the file or "*" has.
func (o Override) Resumed() bool { return o.Text == limitsyaml.Resumed }

func compareOverrides(a, b Override) int {
	return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Name, b.Name), a.rank()-b.rank())
}

func (o Override) rank() int {
	if o.Until.IsZero() {
		return 0
	}
	return 1
}

// put adds an override, or replaces that of the same rule or field and keeps who created it.
func (v *Version) put(o Override) {
	i, found := slices.BinarySearchFunc(v.Overrides, o, compareOverrides)
	if !found {
		v.Overrides = slices.Insert(v.Overrides, i, o)
		return
	}
	o.Authorship = o.after(v.Overrides[i].Authorship)
	v.Overrides[i] = o
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
func (v Version) of(scope, name string) (list []Override) {
	for _, o := range v.at(scope) {
		if o.Name == name {
			list = append(list, o)
		}
	}
	return list
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

func sumOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

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
