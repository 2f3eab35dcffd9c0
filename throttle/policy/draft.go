package policy

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
)

// draft is a policy as it was written, before any check. Text and Go values both become drafts, so
// that the same checks serve both.
type draft struct {
	unmatched written
	scopes    []draftScope
}

// draftScope is a name of the tree, with all that is written under it.
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
}

// draftName is one name of a list, as it was written.
type draftName struct {
	name string
	at   diag.Place
}

// draftRule is a rule, and how each of its fields was written.
type draftRule struct {
	rule   Rule
	index  int // in its list, as written
	at     diag.Place
	fields [fieldCount]written
}

// written is how a field appears in the text.
type written struct {
	at   diag.Place
	text string // as the author of the text would recognise it
	set  bool   // the field is present
	bad  bool   // the field already has a fault, and its value is meaningless
}

func (w written) good() bool { return w.set && !w.bad }

// field is one of the fields of a rule.
type field int

const (
	fieldName field = iota
	fieldAlgorithm
	fieldLimit
	fieldPer
	fieldOpensOnUse
	fieldBurst
	fieldLease
	fieldOnRedisError
	fieldMargin
	fieldMaxWait
	fieldResets
	fieldActive
	fieldTimezone // only in text: in Go, Resets and Active have their zone
	fieldRollover
	fieldSpread
	fieldShadow
	fieldUnit
	fieldUnlimited
	fieldCount
)

var fieldNames = []string{
	"name", "algorithm", "limit", "per", "opens_on_use", "burst", "lease", "on_redis_error", "margin", "max_wait",
	"resets", "active", "timezone", "rollover", "spread", "shadow", "unit", "unlimited",
}

func (f field) String() string { return fieldNames[f] }

// draftOf returns the draft of a tree. It stops one level below the deepest that is allowed, which
// is reported as a fault: a map can contain itself.
func draftOf(source *Source, unmatched Unmatched, limits map[string]ScopeConfig) draft {
	return draft{
		unmatched: source.field("unmatched", string(unmatched), unmatched != ""),
		scopes:    draftScopes(source.under("limits"), limits, 1),
	}
}

func draftScopes(source *Source, nodes map[string]ScopeConfig, level int) []draftScope {
	scopes := make([]draftScope, 0, len(nodes))
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n, from := nodes[name], source.under(name)
		s := draftScope{name: name, at: from.place(), owner: n.Owner, pause: n.Pause,
			until: n.PausedUntil, untilAt: from.under("paused_until").place(),
			weight: n.Weight, weighed: from.field("weight", strconv.FormatInt(n.Weight, 10), n.Weight != 0),
			apps: draftNames(from.under("apps"), n.Apps), hosts: draftNames(from.under("hosts"), n.Hosts),
			shares: draftShares(from.under("shares"), n.Shares), answers: draftAnswersOf(from, n)}
		if level <= maxLevels {
			s.rules = draftRules(from.under("rules"), n.Rules)
			s.scopes = draftScopes(from.under("scopes"), n.Scopes, level+1)
		}
		scopes = append(scopes, s)
	}
	return scopes
}

func draftNames(source *Source, names []string) (drafts []draftName) {
	for i, name := range names {
		drafts = append(drafts, draftName{name: name, at: source.item(i).place()})
	}
	return drafts
}

func draftRules(source *Source, rules []Rule) []draftRule {
	drafts := make([]draftRule, 0, len(rules))
	for i, r := range rules {
		from := source.item(i)
		if from != nil && from.Bad {
			continue
		}
		drafts = append(drafts, draftRule{rule: r, index: i, at: from.place(), fields: [fieldCount]written{
			fieldName:         from.rule(fieldName, quote(r.Name), r.Name != ""),
			fieldAlgorithm:    from.rule(fieldAlgorithm, quote(string(r.Algorithm)), r.Algorithm != ""),
			fieldLimit:        from.rule(fieldLimit, strconv.FormatInt(r.Limit, 10), !r.Unlimited || r.Limit != 0),
			fieldPer:          from.rule(fieldPer, duration.Format(r.Per), r.Per != 0),
			fieldOpensOnUse:   from.rule(fieldOpensOnUse, "true", r.OpensOnUse),
			fieldBurst:        from.rule(fieldBurst, strconv.FormatInt(r.Burst, 10), r.Burst != 0),
			fieldLease:        from.rule(fieldLease, duration.Format(r.Lease), r.Lease != 0),
			fieldOnRedisError: from.rule(fieldOnRedisError, quote(string(r.OnRedisError)), r.OnRedisError != ""),
			fieldMargin:       from.rule(fieldMargin, duration.Format(r.Margin), r.Margin != 0),
			fieldMaxWait:      from.rule(fieldMaxWait, duration.Format(r.MaxWait), r.MaxWait != 0),
			fieldResets:       from.rule(fieldResets, "", r.Resets != nil),
			fieldActive:       from.rule(fieldActive, "", r.Active != nil),
			fieldTimezone:     from.rule(fieldTimezone, "", false),
			fieldRollover:     from.rule(fieldRollover, strconv.FormatInt(r.Rollover, 10), r.Rollover != 0),
			fieldSpread:       from.rule(fieldSpread, "true", r.Spread),
			fieldShadow:       from.rule(fieldShadow, "true", r.Shadow),
			fieldUnit:         from.rule(fieldUnit, quote(r.Unit), r.Unit != ""),
			fieldUnlimited:    from.rule(fieldUnlimited, "true", r.Unlimited),
		}})
	}
	return drafts
}

func pathToRule(node string, index int) string {
	return node + ".rules[" + strconv.Itoa(index) + "]"
}
