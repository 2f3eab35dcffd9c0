package policy

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
)

// maxFileBytes is the longest limits.yaml that is read, and the longest that a
// policy may be when written out: it must fit where it is published.
const maxFileBytes = strictyaml.MaxBytes

var file = strictyaml.Format{
	TooLong: `let "*" carry what scopes have in common`,
	Empty:   "write limits: {} if no rules are meant",
}

// decoder turns the nodes of a limits.yaml into a draft. It tells which nodes
// are not what they have to be; whether their values are allowed is not for it.
type decoder struct{ *strictyaml.Faults }

// bad reports a fault of a value.
func (d decoder) bad(e strictyaml.Field, path, format string, args ...any) written {
	d.Bad(e, path, format, args...)
	return written{at: e.Place(), set: true, bad: true}
}

// scalar reads what text, words, numbers and durations have in common.
func (d decoder) scalar(e strictyaml.Field, path, want string) written {
	return written{at: e.Place(), text: diag.Clip(e.Value.Value), set: true, bad: !d.Is(e, yaml.ScalarNode, path, want)}
}

// unknown reports a field that its owner does not have.
func (d decoder) unknown(e strictyaml.Field, path, owner string, fields []string) {
	reason := fmt.Sprintf("%s is not a field of %s; ", e.Label, owner)
	near := diag.Nearest(e.Name, fields)
	switch {
	case near == "" && owner == "a scope":
		reason += "write " + diag.OneOf(fields[:2]) + ", and names of the next level under scopes"
	default:
		reason += diag.Meant(e.Name, fields)
	}
	d.Add(strictyaml.PlaceOf(e.Key), path, reason)
}

// Load reads the limits.yaml at path. The error is a *Error that
// names path, or that of the file system.
func Load(path string) (*Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	defer func() { _ = file.Close() }() // nothing was written that could be lost
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a limits.yaml of at most 4 MiB, with every default written
// out; name is what errors call it. The error is a *Error with every fault
// of the text, each with its line and column; nothing in it is guessed at.
//
// The text is plain YAML: one document in UTF-8, without anchors, aliases, merge
// keys or tags.
func Parse(name string, data []byte) (*Policy, error) {
	var faults strictyaml.Faults
	p := parsePolicy(data, &faults)
	if err := refused(name, &faults); err != nil {
		return nil, err
	}
	return p, nil
}

func parsePolicy(data []byte, faults *strictyaml.Faults) *Policy {
	root := file.Read(data, faults)
	if root == nil {
		return nil
	}
	return decoder{faults}.draft(root).policy(faults)
}

var (
	fileFields = []string{"unmatched", "limits"}
	nodeFields = []string{"rules", "scopes", "owner", "apps", "hosts", "paused", "paused_until", "weight", "shares", "max_priority", "answers"}
)

func (d decoder) draft(root *yaml.Node) draft {
	out := draft{at: diag.Start}
	whole := strictyaml.Field{Label: "the file", Key: root, Value: root}
	if !d.Is(whole, yaml.MappingNode, "", "its fields, "+diag.OneOf(fileFields)) {
		return out
	}
	for _, e := range d.Fields(root, "") {
		switch e.Name {
		case "unmatched":
			_, out.unmatched = d.word(e, e.Name, unmatcheds)
		case "limits":
			out.scopes = d.scopes(e, e.Name, 1)
		default:
			d.unknown(e, e.Label, "the file", fileFields)
		}
	}
	return out
}

// scopes reads the names of one level. It stops one level below the deepest that
// is allowed, which is fault enough.
func (d decoder) scopes(e strictyaml.Field, path string, level int) []draftScope {
	if !d.Is(e, yaml.MappingNode, path, "names under it, or {} for none") {
		return nil
	}
	entries := d.Fields(e.Value, path)
	scopes := make([]draftScope, 0, len(entries))
	for _, e := range entries {
		s := draftScope{name: e.Name, at: strictyaml.PlaceOf(e.Key)}
		if level <= maxLevels {
			d.node(&s, e, diag.PathTo(path, e.Name), level)
		}
		scopes = append(scopes, s)
	}
	return scopes
}

func (d decoder) node(s *draftScope, e strictyaml.Field, path string, level int) {
	if !d.Is(e, yaml.MappingNode, path, "rules and scopes under it, or {} for none") {
		return
	}
	for _, f := range d.Fields(e.Value, path) {
		switch f.Name {
		case "rules":
			s.rules = d.rules(f, path)
		case "scopes":
			s.scopes = d.scopes(f, path+".scopes", level+1)
		case "owner":
			var w written
			if s.owner, w = d.text(f, path+".owner"); !w.good() {
				s.owner = ""
			}
		case "apps":
			s.apps = d.names(f, path+".apps", "application", "a list of applications, such as [billing]", "nobody could spend from here")
		case "hosts":
			s.hosts = d.names(f, path+".hosts", "host", "a list of hosts, such as [api.example.com]", "no answer would count")
		case "paused":
			s.pause = d.pause(f, path+".paused")
		case "paused_until":
			s.until, s.untilAt = d.moment(f, path+".paused_until"), f.Place()
		case "weight":
			s.weight, s.weighed = d.number(f, path+".weight")
		case "shares":
			s.shares = d.shares(f, path+".shares")
		case "max_priority":
			s.maxPriority, s.capped = d.number(f, path+".max_priority")
		case "answers":
			s.answers = d.answers(f, path+".answers")
		default:
			d.unknown(f, diag.PathTo(path, f.Name), "a scope", nodeFields)
		}
	}
}

// names reads a list of names of one kind; so is what follows from an empty one.
func (d decoder) names(e strictyaml.Field, path, kind, list, so string) (names []draftName) {
	if !d.Is(e, yaml.SequenceNode, path, list) {
		return nil
	}
	for _, n := range e.Value.Content {
		if name, w := d.text(strictyaml.Field{Label: "the " + kind, Key: n, Value: n}, path); w.good() {
			names = append(names, draftName{name: name, at: strictyaml.PlaceOf(n)})
		}
	}
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty, and %s; name one, or remove the line", so)
	}
	return names
}

func (d decoder) rules(e strictyaml.Field, node string) []draftRule {
	if !d.Is(e, yaml.SequenceNode, node+".rules", "a list under it, one - {name: account, ...} a rule, or [] for none") {
		return nil
	}
	rules := make([]draftRule, 0, len(e.Value.Content))
	for i, n := range e.Value.Content {
		item := strictyaml.Field{Label: "the rule", Key: n, Value: n}
		if !d.Is(item, yaml.MappingNode, pathToRule(node, i), "its fields, such as {name: account, ...}") {
			continue
		}
		rules = append(rules, d.rule(n, node, i))
	}
	return rules
}

func (d decoder) rule(n *yaml.Node, node string, index int) draftRule {
	r := draftRule{index: index, at: strictyaml.PlaceOf(n)}
	path := pathToRule(node, index)
	for _, e := range d.Fields(n, path) {
		f := fieldNamed(e.Name)
		if f == fieldCount {
			d.unknown(e, diag.PathTo(path, e.Name), "a rule", fieldNames)
			r.misspelt(e)
			continue
		}
		r.fields[f] = d.field(&r.rule, f, e, path+"."+e.Name)
	}
	return r
}

// misspelt takes the field that an unknown one is near to as given, so that it
// is not called missing as well.
func (r *draftRule) misspelt(e strictyaml.Field) {
	f := fieldNamed(diag.Nearest(e.Name, fieldNames))
	if f != fieldCount && !r.fields[f].set {
		r.fields[f] = written{at: strictyaml.PlaceOf(e.Key), set: true, bad: true}
	}
}

func fieldNamed(name string) field {
	for f, known := range fieldNames {
		if name == known {
			return field(f)
		}
	}
	return fieldCount
}

// field reads one field into the rule. Whether the value is allowed is checked
// later, with the rest of the rule.
func (d decoder) field(r *Rule, f field, e strictyaml.Field, path string) (w written) {
	var word string
	switch f {
	case fieldName:
		r.Name, w = d.text(e, path)
	case fieldAlgorithm:
		word, w = d.word(e, path, algorithms)
		r.Algorithm = Algorithm(word)
	case fieldOnRedisError:
		word, w = d.word(e, path, failurePolicies)
		r.OnRedisError = FailurePolicy(word)
	case fieldLimit:
		r.Limit, w = d.number(e, path)
	case fieldBurst:
		r.Burst, w = d.number(e, path)
	case fieldPer:
		r.Per, w = d.duration(e, path)
	case fieldLease:
		r.Lease, w = d.duration(e, path)
	case fieldMargin:
		r.Margin, w = d.duration(e, path)
	case fieldPrefetch:
		r.Prefetch, w = d.duration(e, path)
	case fieldMaxWait:
		r.MaxWait, w = d.duration(e, path)
	case fieldResets:
		r.Resets, w = d.words(e, path, `a cron expression, such as "0 0 * * *"`)
	case fieldActive:
		r.Active, w = d.words(e, path, `a cron expression, such as "* 8-19 * * 1-5"`)
	case fieldTimezone:
		r.Timezone, w = d.words(e, path, "a time zone, such as UTC or America/Los_Angeles")
	case fieldRollover:
		r.Rollover, w = d.number(e, path)
	case fieldSpread:
		r.Spread, w = d.flag(e, path)
	case fieldShadow:
		r.Shadow, w = d.flag(e, path)
	case fieldUnit:
		r.Unit, w = d.words(e, path, "the name of a unit, such as tokens")
	case fieldUnlimited:
		r.Unlimited, w = d.flag(e, path)
	}
	return w
}

// text reads a piece of text. Where YAML sees a number or the like, a person
// has to say that text is meant.
func (d decoder) text(e strictyaml.Field, path string) (string, written) {
	w := d.scalar(e, path, "a name, such as account")
	if w.good() && e.Value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %q in quotes if that text is meant", strictyaml.Describe(e.Value), diag.Clip(e.Value.Value))
	}
	return e.Value.Value, w
}

// words reads a piece of text that is no name.
func (d decoder) words(e strictyaml.Field, path, want string) (string, written) {
	w := d.scalar(e, path, want)
	if w.good() && e.Value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	}
	return e.Value.Value, w
}

// word reads one of a few words. Which of them, if any, is checked later.
func (d decoder) word(e strictyaml.Field, path string, words []string) (string, written) {
	w := d.scalar(e, path, diag.OneOf(words))
	if w.good() && e.Value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), diag.OneOf(words))
	}
	return e.Value.Value, w
}

// flag reads true or false.
func (d decoder) flag(e strictyaml.Field, path string) (bool, written) {
	const want = "true, or remove the line"
	w := d.scalar(e, path, want)
	if w.good() && e.Value.Tag != "!!bool" {
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	}
	return w.good() && strings.EqualFold(e.Value.Value, "true"), w
}

// pause reads whether a scope is paused.
func (d decoder) pause(e strictyaml.Field, path string) Pause {
	paused, w := d.flag(e, path)
	switch {
	case !w.good():
		return PauseInherited
	case paused:
		return PauseOn
	}
	return PauseOff
}

// moment reads a time as RFC 3339 has it. The zero time is none, and a fault.
func (d decoder) moment(e strictyaml.Field, path string) time.Time {
	const want = "a time with its zone, such as 2030-01-31T12:00:00Z"
	if w := d.scalar(e, path, want); !w.good() {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, e.Value.Value)
	if err != nil || at.IsZero() {
		d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
		return time.Time{}
	}
	return at
}

// number reads a whole number in plain digits. YAML knows many more ways to
// write one (0x10, 010, 1_000, 1e3), and its readers differ on half of them.
func (d decoder) number(e strictyaml.Field, path string) (int64, written) {
	const want = "a whole number in plain digits, such as 100"
	w := d.scalar(e, path, want)
	text := e.Value.Value
	switch {
	case !w.good():
	case !plainNumber(text):
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	case e.Value.Style != 0:
		w = d.bad(e, path, "is %s; write %s without quotes", strictyaml.Describe(e.Value), diag.Clip(text))
	}
	// Out of range gives the nearest number, which is out of bounds too.
	n, _ := strconv.ParseInt(text, 10, 64)
	return n, w
}

func plainNumber(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	return digits[0] != '0' || text == "0"
}

// duration reads a Go duration or whole days.
func (d decoder) duration(e strictyaml.Field, path string) (t time.Duration, w written) {
	const want = "a duration, such as 500ms, 1m, 24h or 30d"
	w = d.scalar(e, path, want)
	if !w.good() {
		return 0, w
	}
	text := diag.Clip(e.Value.Value)
	if e.Value.Tag != "!!str" {
		if plainNumber(text) && text[0] != '-' {
			return 0, d.bad(e, path, "is %s, which has no unit; write %ss if seconds are meant", strictyaml.Describe(e.Value), text)
		}
		return 0, d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	}
	t, ok := parseDuration(e.Value.Value)
	switch {
	case ok:
	case strings.Contains(text, "d"):
		w = d.bad(e, path, "is %s; write %s: days stand alone and are whole", strictyaml.Describe(e.Value), want)
	default:
		w = d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
	}
	return t, w
}
