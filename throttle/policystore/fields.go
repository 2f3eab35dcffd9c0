package policystore

import (
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// PausedField is the name of a scope's pause among its Fields.
const PausedField = "paused:"

// field is something that a policy says of a scope beside its rules.
type field struct {
	name string // as limits.yaml has it; no rule's name has a colon
	of   func(policy.ScopeConfig) string
	set  func(Assignment) bool
}

var fields = []field{
	{"owner:", func(n policy.ScopeConfig) string { return n.Owner }, func(Assignment) bool { return true }},
	{"apps:", func(n policy.ScopeConfig) string { return strings.Join(n.Apps, ", ") }, func(Assignment) bool { return true }},
	{"hosts:", func(n policy.ScopeConfig) string { return strings.Join(n.Hosts, ", ") }, func(a Assignment) bool { return a.Hosts != nil }},
	{PausedField, pauseText, func(Assignment) bool { return false }},
	{"weight:", func(n policy.ScopeConfig) string {
		if n.Weight == 0 {
			return ""
		}
		return strconv.FormatInt(n.Weight, 10)
	}, func(a Assignment) bool { return a.Weight != 0 }},
	{"shares:", func(n policy.ScopeConfig) string {
		if len(n.Shares) == 0 {
			return ""
		}
		return limitsyaml.FormatShares(n.Shares)
	}, func(a Assignment) bool { return a.Shares != nil }},
	{"answers:", limitsyaml.FormatAnswers, func(a Assignment) bool { return a.Answers != nil }},
}

// Fields visits what a scope has beside its rules: the name of each field with its colon, which no rule's name has, and its
// content as text. A field that says nothing is left out.
func Fields(n policy.ScopeConfig) iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		for _, f := range fields {
			if text := f.of(n); text != "" && !yield(f.name, text) {
				return
			}
		}
	}
}

// Sets reports whether the assignment says something of one of the Fields, in place of the file.
func (a Assignment) Sets(name string) bool {
	for _, f := range fields {
		if f.name == name {
			return f.set(a)
		}
	}
	return false
}

// pauseText is what a scope says of its pause, empty for nothing.
func pauseText(n policy.ScopeConfig) string {
	switch {
	case n.Pause == policy.PauseOff:
		return "not paused"
	case n.Pause == policy.PauseInherited:
		return ""
	case n.PausedUntil.IsZero():
		return "paused"
	}
	return "paused until " + n.PausedUntil.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// fieldText is a field as a Difference has it.
func fieldText(name, text string) string {
	if name == PausedField {
		return text // which says what it is
	}
	return name + " " + text
}

// lasting reports whether an override stays for good.
func (o Override) lasting() bool { return o.Until.IsZero() }

// ends returns when the override of a rule ends that counts at a time, the zero time for never or for no override.
func (v Version) ends(scope, name string, now time.Time) time.Time {
	if i, found := v.find(scope, name, true); found && !v.Rules[i].ended(now) {
		return v.Rules[i].Until
	}
	return time.Time{}
}
