package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/upstream/dialect"
)

// Source describes how a part of a policy is written in a text, for NewFrom: a value, a mapping or a list. Package limitsyaml
// makes Sources from limits.yaml, and a program with its own format can make its own. The parts have their names in limits.yaml,
// and so do the paths of faults. A part without a Source is treated as made in Go.
type Source struct {
	// Line and Column are the place of faults, both from 1; 0 for none.
	Line, Column int
	// Text is the value as the author of the text would recognise it. If empty, faults print the Go value.
	Text string
	// Bad says that its reader has found a fault of the value: New finds no other.
	Bad bool
	// Fields are the parts of a mapping that are present, by name: of a scope, or of a rule. Nil for anything else.
	Fields map[string]*Source
	// Items are the elements of a list: rules, apps or hosts.
	Items []*Source

	// Name is the name of the text in errors, and Faults are those that its reader has found. Only those of the Source of a whole
	// policy count.
	Name   string
	Faults []Fault
}

// under returns a field, nil if there is none.
func (s *Source) under(name string) *Source {
	if s == nil {
		return nil
	}
	return s.Fields[name]
}

// item returns an element of a list, nil if there is none.
func (s *Source) item(i int) *Source {
	if s == nil || i >= len(s.Items) {
		return nil
	}
	return s.Items[i]
}

func (s *Source) place() diag.Place {
	if s == nil {
		return diag.Place{}
	}
	return diag.Place{Line: int32(s.Line), Column: int32(s.Column)}
}

// written is how a field appears in the text.
type written struct {
	at   diag.Place
	text string // as the author of the text would recognise it
	set  bool   // the field is present
	bad  bool   // the field already has a fault, and its value is meaningless
}

func (w written) good() bool { return w.set && !w.bad }

// field returns how a field is written. text and set describe the Go value, for a scope or a rule without a Source.
func (s *Source) field(name, text string, set bool) written {
	if s == nil {
		return written{text: text, set: set}
	}
	f := s.Fields[name]
	if f == nil {
		return written{}
	}
	return written{at: f.place(), text: cmp.Or(f.Text, text), set: true, bad: f.Bad}
}

// words has, for each field of limits.yaml that takes one of a few words, these words. The parser, its messages and the schema
// for editors all take them from here.
var words = map[string][]string{
	"unmatched":      {string(UnmatchedDeny), string(UnmatchedFail), string(UnmatchedAllow)},
	"algorithm":      {string(TokenBucket), string(SlidingWindow), string(FixedWindow), string(Concurrency), string(Calendar)},
	"on_redis_error": {string(FailClosed), string(FailOpen), string(FailShare)},
	"answers":        append(slices.Clone(answerModes), dialect.Names()...),
	"answers.mode":   answerModes,
	"answers.unit":   {"s", "ms"},

	"answers.dialect":    dialect.Names(),
	"answers.also.means": {string(upstream.Limited), string(upstream.Failed), string(upstream.Fine)},

	"pool.choose":   {string(ChooseSpread), string(ChooseDrain)},
	"pool.affinity": {string(AffinityTenant)},
}

var answerModes = []string{string(AnswersHeed), string(AnswersRefusals), string(AnswersPause), string(AnswersIgnore)}

// Words returns the words that a field of limits.yaml takes: unmatched, algorithm, on_redis_error, answers, of the long form of
// answers mode, unit, dialect and also.means, and of pool choose and affinity. It returns nil for a field that takes other values.
func Words(field string) []string { return slices.Clone(words[field]) }

const (
	maxNames  = 100 // of the lists and shares of a scope
	maxWeight = 1000
)

// earliestEnd and latestEnd bound the end of a pause to times that the scripts can count: µs since the epoch.
var earliestEnd, latestEnd = time.Unix(0, 0), time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)

// checker collects the faults of a policy.
type checker struct {
	diag.Faults
	raises bool // some limit may grow above the configured one
	breaks bool // some level has a breaker
	tiered bool // some names have tiers
}

func (c *checker) add(at diag.Place, path, format string, args ...any) {
	c.Add(at, path, fmt.Sprintf(format, args...))
}

// word checks a field that takes one of a few words. field is its name in words.
func (c *checker) word(w written, path, field string) {
	if w.good() && !slices.Contains(words[field], w.text) {
		c.add(w.at, path, "%s is %s; %s", field[strings.LastIndexByte(field, '.')+1:], quote(w.text), diag.Meant(w.text, words[field]))
	}
}

// scopes checks the names below a tree, and adds them to it. path is where faults have them, and level their level. It goes no
// deeper than the deepest level that is allowed: a map can contain itself.
func (c *checker) scopes(t *tree, source *Source, configs map[string]ScopeConfig, path string, level int) {
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		switch child := c.scope(t, source.under(name), configs[name], strings.TrimPrefix(t.path+"/"+name, "/"), diag.PathTo(path, name), name, level); {
		case child == nil:
		case name == anyName:
			t.every = child
		default:
			t.scopes = with(t.scopes, name, child)
		}
	}
}

// tiers is scopes for the tiers of these names.
func (c *checker) tiers(t *tree, source *Source, configs map[string]ScopeConfig, path string, level int) {
	for _, tier := range slices.Sorted(maps.Keys(configs)) {
		from, at := source.under(tier), diag.PathTo(path, tier)
		if tier == anyName {
			c.Add(from.place(), at, `"*" is no tier; write it under scopes, for the names without one`)
		}
		if child := c.scope(t, from, configs[tier], t.path+"/"+tierMark+tier, at, tier, level); child != nil {
			c.tiered, t.tiers = true, with(t.tiers, tier, child)
		}
	}
}

// scope checks a name or a tier below a tree. place is its own, and at is where faults have it. It returns nil below the deepest level.
func (c *checker) scope(t *tree, from *Source, s ScopeConfig, place, at, name string, level int) *tree {
	if level > maxLevels {
		c.add(from.place(), at, "%s is at level %d; the most is %d", diag.PathName(name), level, maxLevels)
		return nil
	}
	if reason := diag.NameReason(name); reason != "" {
		c.Add(from.place(), at, "name "+reason)
	}
	child := &tree{ScopeConfig: s, path: place}
	child.Scopes, child.Tiers, child.Rules = nil, nil, c.rules(s.Rules, from.under("rules"), at)
	c.pool(s, from, at, level, t.pooled)
	child.Pool = s.Pool.withDefaults()
	child.pooled = t.pooled || hasPool(child)
	c.tiers(child, from.under("tiers"), s.Tiers, at+".tiers", level+1)
	c.scopes(child, from.under("scopes"), s.Scopes, at+".scopes", level+1)
	c.fields(child, from, at)
	child.Shares = c.shares(s, from, at, level)
	child.weighs = child.weighs || len(s.Shares) > 0
	c.answers(child, from, at+".answers")
	c.breaker(child, from, at+".breaker")
	t.weighs = t.weighs || s.Weight > 0
	return child
}

// with puts a value into a map, which may be nil.
func with[V any](m map[string]V, name string, v V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	m[name] = v
	return m
}

// fields checks the fields of a scope that stand for themselves.
func (c *checker) fields(t *tree, from *Source, path string) {
	if reason := diag.NameReason(t.Owner); t.Owner != "" && reason != "" {
		c.Add(from.place(), path+".owner", "owner "+reason)
	}
	t.Apps = c.names(t.Apps, from.under("apps"), path+".apps", "application", "application %[1]s is one of %[2]d; the most is %[3]d", diag.NameReason)
	t.Hosts = c.names(t.Hosts, from.under("hosts"), path+".hosts", "host", "hosts are %[2]d; the most is %[3]d", func(host string) string {
		_, fault := parseHostPattern(host)
		return fault
	})
	t.Envoy = c.names(t.Envoy, from.under("envoy"), path+".envoy", "descriptor", "descriptors are %[2]d; the most is %[3]d", func(text string) string {
		return envoyFault(text, t.path)
	})

	until := from.under("paused_until").place()
	switch {
	case t.Pause != PauseInherited && t.Pause != PauseOn && t.Pause != PauseOff:
		c.add(from.place(), path+".paused", "paused is %s; write true or false, or remove it", quote(string(t.Pause)))
	case t.PausedUntil.IsZero():
	case t.Pause != PauseOn:
		c.add(until, path+".paused_until", "paused_until stands without paused: true; write both, or remove it")
	case !t.PausedUntil.After(earliestEnd) || t.PausedUntil.After(latestEnd):
		c.add(until, path+".paused_until", "paused_until is not between 1970 and 2255; remove it for a pause that has no end")
	}
	t.PausedUntil = t.PausedUntil.UTC()
	c.weight(t.Weight, from, path)
}

// names checks a list of names, whose kind is kind. tooMany is the reason against the first one beyond maxNames.
func (c *checker) names(names []string, from *Source, path, kind, tooMany string, reasonOf func(string) string) []string {
	for i, name := range names {
		if i >= maxNames {
			c.add(from.item(i).place(), path, tooMany, quote(name), len(names), maxNames)
			break
		}
		reason := reasonOf(name)
		if reason == "" && slices.Contains(names[:i], name) {
			reason = "is there already; keep one of the two"
		}
		if reason != "" {
			c.add(from.item(i).place(), path, "%s %s %s", kind, quote(name), reason)
		}
	}
	return slices.Clone(names)
}

func (c *checker) weight(weight int64, from *Source, path string) {
	w := from.field("weight", strconv.FormatInt(weight, 10), weight != 0)
	if w.good() && (weight < 1 || weight > maxWeight) {
		c.add(w.at, path+".weight", "weight is %s; it must be 1 to %d", w.text, maxWeight)
	}
}

// shares checks the shares of the names below a scope, and that none of these names has a weight besides.
func (c *checker) shares(s ScopeConfig, scope *Source, path string, level int) map[string]Share {
	if len(s.Shares) == 0 {
		return nil
	}
	names, source, at := slices.Sorted(maps.Keys(s.Shares)), scope.under("shares"), path+".shares"
	first := source.under(names[0]).place()
	if level >= maxLevels {
		c.add(first, at, "shares stands at level %d, below which no scope has names; the most is %d", level, maxLevels)
	}
	if len(names) > maxNames {
		c.add(source.under(names[maxNames]).place(), at, "shares has %d names; the most is %d", len(names), maxNames)
	}
	shares, parts, without := make(map[string]Share, len(names)), int64(0), ""
	for _, name := range names {
		share := s.Shares[name]
		c.share(name, share, source.under(name), diag.PathTo(at, name))
		shares[name] = Share{Guaranteed: share.Guaranteed, Weight: share.weight()}
		if share.Guaranteed >= 1 && share.Guaranteed <= wholePart {
			parts += share.Guaranteed
		}
		if share.Guaranteed == 0 && without == "" {
			without = name
		}
	}
	switch {
	case parts > wholePart:
		c.add(first, at, "the parts are %d%% together; the most is %d%%", parts, wholePart)
	case parts == wholePart && without != "":
		c.add(source.under(without).place(), diag.PathTo(at, without), "the parts are %d%% together, and %s has none: leave it one, or use priorities of tasks",
			parts, quote(without))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Scopes)) {
		weight := s.Scopes[name].Weight
		w := scope.under("scopes").under(name).field("weight", "", weight != 0)
		if _, shared := shares[name]; shared && w.good() {
			c.add(w.at, diag.PathTo(path+".scopes", name)+".weight", "weight of %s is in shares of the scope above; keep one of the two", quote(name))
		}
	}
	return shares
}

func (c *checker) share(name string, share Share, from *Source, path string) {
	reason := diag.NameReason(name)
	if name == anyName {
		reason = `is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`
	}
	if reason != "" {
		c.Add(from.place(), path, "name "+reason)
	}
	c.weight(share.Weight, from, path)
	part := from.field("part", strconv.FormatInt(share.Guaranteed, 10)+"%", share.Guaranteed != 0)
	if part.good() && (share.Guaranteed < 1 || share.Guaranteed > wholePart) {
		c.add(part.at, path+".part", "part is %s; it must be 1%% to %d%%", part.text, wholePart)
	}
}
