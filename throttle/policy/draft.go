package policy

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
)

// A draft is a policy as it was written, before anything about it is believed.
// limits.yaml and the ScopeConfig trees of Go programs both become drafts, so that one
// set of checks serves both.
type draft struct {
	at        diag.Place
	unmatched written
	scopes    []draftScope
}

// draftScope is a name of the tree with what is written under it.
type draftScope struct {
	name    string
	at      diag.Place
	owner   string
	apps    []draftName
	hosts   []draftName
	weight  int64
	weighed written
	shares  []draftShare
	rules   []draftRule
	scopes  []draftScope
	pause   Pause
	until   time.Time
	untilAt diag.Place
	answers draftAnswers

	maxPriority int64
	capped      written // by maxPriority
}

// draftName is one name of a list, as it was written.
type draftName struct {
	name string
	at   diag.Place
}

// draftRule is a rule and, for each field, how it was written.
type draftRule struct {
	rule   Rule
	index  int // in its list, as written
	at     diag.Place
	fields [fieldCount]written
}

// written is how a field stands in the text.
type written struct {
	at   diag.Place
	text string // as a reader would recognise it
	set  bool   // it is there
	bad  bool   // it has a fault already, so its value means nothing
}

func (w written) good() bool { return w.set && !w.bad }

// field is one of the fields of a rule.
type field int

const (
	fieldName field = iota
	fieldAlgorithm
	fieldLimit
	fieldPer
	fieldBurst
	fieldLease
	fieldOnRedisError
	fieldMargin
	fieldPrefetch
	fieldMaxWait
	fieldResets
	fieldActive
	fieldTimezone
	fieldRollover
	fieldSpread
	fieldShadow
	fieldUnit
	fieldUnlimited
	fieldCount
)

var fieldNames = []string{
	"name", "algorithm", "limit", "per", "burst", "lease", "on_redis_error", "margin", "prefetch", "max_wait",
	"resets", "active", "timezone", "rollover", "spread", "shadow", "unit", "unlimited",
}

func (f field) String() string { return fieldNames[f] }

// draftOf returns the draft of a tree made in Go. It stops one level below the
// deepest that is allowed, which is fault enough: a map can hold itself.
func draftOf(unmatched Unmatched, limits map[string]ScopeConfig) draft {
	d := draft{scopes: draftScopes(limits, 1)}
	if unmatched != "" {
		d.unmatched = written{text: string(unmatched), set: true}
	}
	return d
}

func draftNames(names []string) (drafts []draftName) {
	for _, name := range names {
		drafts = append(drafts, draftName{name: name})
	}
	return drafts
}

func draftScopes(nodes map[string]ScopeConfig, level int) []draftScope {
	scopes := make([]draftScope, 0, len(nodes))
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		weight := nodes[name].Weight
		s := draftScope{name: name, owner: nodes[name].Owner, pause: nodes[name].Pause, until: nodes[name].PausedUntil,
			weight: weight, shares: draftShares(nodes[name].Shares)}
		s.weighed = written{text: strconv.FormatInt(weight, 10), set: weight != 0}
		s.apps, s.hosts = draftNames(nodes[name].Apps), draftNames(nodes[name].Hosts)
		s.answers = draftAnswersOf(nodes[name])
		s.maxPriority, s.capped = draftMaxPriority(nodes[name])
		if level <= maxLevels {
			s.rules = draftRules(nodes[name].Rules)
			s.scopes = draftScopes(nodes[name].Scopes, level+1)
		}
		scopes = append(scopes, s)
	}
	return scopes
}

func draftRules(rules []Rule) []draftRule {
	drafts := make([]draftRule, len(rules))
	for i, r := range rules {
		drafts[i] = draftRule{rule: r, index: i, fields: [fieldCount]written{
			fieldName:         {text: quote(r.Name), set: r.Name != ""},
			fieldAlgorithm:    {text: quote(string(r.Algorithm)), set: r.Algorithm != ""},
			fieldLimit:        {text: strconv.FormatInt(r.Limit, 10), set: !r.Unlimited || r.Limit != 0},
			fieldPer:          {text: formatDuration(r.Per), set: r.Per != 0},
			fieldBurst:        {text: strconv.FormatInt(r.Burst, 10), set: r.Burst != 0},
			fieldLease:        {text: formatDuration(r.Lease), set: r.Lease != 0},
			fieldOnRedisError: {text: quote(string(r.OnRedisError)), set: r.OnRedisError != ""},
			fieldMargin:       {text: formatDuration(r.Margin), set: r.Margin != 0},
			fieldPrefetch:     {text: formatDuration(r.Prefetch), set: r.Prefetch != 0},
			fieldMaxWait:      {text: formatDuration(r.MaxWait), set: r.MaxWait != 0},
			fieldResets:       {text: quote(r.Resets), set: r.Resets != ""},
			fieldActive:       {text: quote(r.Active), set: r.Active != ""},
			fieldTimezone:     {text: quote(r.Timezone), set: r.Timezone != ""},
			fieldRollover:     {text: strconv.FormatInt(r.Rollover, 10), set: r.Rollover != 0},
			fieldSpread:       {text: "true", set: r.Spread},
			fieldShadow:       {text: "true", set: r.Shadow},
			fieldUnit:         {text: quote(r.Unit), set: r.Unit != ""},
			fieldUnlimited:    {text: "true", set: r.Unlimited},
		}}
	}
	return drafts
}

// refused returns the faults of a policy as an error, or nil when there are none.
func refused(name string, faults *strictyaml.Faults) *Error {
	if faults.None() {
		return nil
	}
	return &Error{Name: name, Faults: faults.All()}
}

func pathToRule(node string, index int) string {
	return node + ".rules[" + strconv.Itoa(index) + "]"
}
