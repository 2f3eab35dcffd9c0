package throttle

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// maxFileBytes is the longest limits.yaml that is read, and the longest that a
// policy may be when written out: it must fit where it is published.
const maxFileBytes = 4 << 20

// LoadPolicy reads the limits.yaml at path. The error is a *PolicyError that
// names path, or that of the file system.
func LoadPolicy(path string) (*Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	defer func() { _ = file.Close() }() // nothing was written that could be lost
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("throttle: read limits: %w", err)
	}
	return ParsePolicy(path, data)
}

// ParsePolicy reads a limits.yaml of at most 4 MiB, with every default written
// out; name is what errors call it. The error is a *PolicyError with every fault
// of the text, each with its line and column; nothing in it is guessed at.
//
// The text is plain YAML: one document in UTF-8, without anchors, aliases, merge
// keys or tags.
func ParsePolicy(name string, data []byte) (*Policy, error) {
	var faults faultList
	p := parsePolicy(data, &faults)
	if err := faults.err(name); err != nil {
		return nil, err
	}
	return p, nil
}

func parsePolicy(data []byte, faults *faultList) *Policy {
	root := readYAML(data, faults)
	if root == nil {
		return nil
	}
	return (&decoder{faults: faults}).draft(root).policy(faults)
}

var (
	fileFields = []string{"unmatched", "limits"}
	nodeFields = []string{"rules", "scopes", "owner", "apps"}
	// laterFields are in files that were written for a later version.
	laterFields = []string{"unit", "shadow", "active"}
)

func (d *decoder) draft(root *yaml.Node) draft {
	out := draft{at: fileStart}
	file := entry{label: "the file", key: root, value: root}
	if !d.kind(file, yaml.MappingNode, "", "its fields, "+oneOf(fileFields)) {
		return out
	}
	for _, e := range d.entries(root, "") {
		switch e.name {
		case "unmatched":
			_, out.unmatched = d.word(e, e.name, unmatcheds)
		case "limits":
			out.scopes = d.scopes(e, e.name, 1)
		default:
			d.unknown(e, e.label, "the file", fileFields)
		}
	}
	return out
}

// scopes reads the names of one level. It stops one level below the deepest that
// is allowed, which is fault enough.
func (d *decoder) scopes(e entry, path string, level int) []draftScope {
	if !d.kind(e, yaml.MappingNode, path, "names under it, or {} for none") {
		return nil
	}
	entries := d.entries(e.value, path)
	scopes := make([]draftScope, 0, len(entries))
	for _, e := range entries {
		s := draftScope{name: e.name, at: placeOf(e.key)}
		if level <= maxLevels {
			d.node(&s, e, pathTo(path, e.name), level)
		}
		scopes = append(scopes, s)
	}
	return scopes
}

func (d *decoder) node(s *draftScope, e entry, path string, level int) {
	if !d.kind(e, yaml.MappingNode, path, "rules and scopes under it, or {} for none") {
		return
	}
	for _, f := range d.entries(e.value, path) {
		switch f.name {
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
			s.apps = d.apps(f, path+".apps")
		default:
			d.unknown(f, pathTo(path, f.name), "a scope", nodeFields)
		}
	}
}

// apps reads a list of names.
func (d *decoder) apps(e entry, path string) (apps []draftApp) {
	if !d.kind(e, yaml.SequenceNode, path, "a list of applications, such as [billing]") {
		return nil
	}
	for _, n := range e.value.Content {
		if name, w := d.text(entry{label: "the application", key: n, value: n}, path); w.good() {
			apps = append(apps, draftApp{name: name, at: placeOf(n)})
		}
	}
	if len(e.value.Content) == 0 {
		d.bad(e, path, "is empty, and nobody could spend from here; name one, or remove the line")
	}
	return apps
}

func (d *decoder) rules(e entry, node string) []draftRule {
	if !d.kind(e, yaml.SequenceNode, node+".rules", "a list under it, one - {name: account, ...} a rule, or [] for none") {
		return nil
	}
	rules := make([]draftRule, 0, len(e.value.Content))
	for i, n := range e.value.Content {
		item := entry{label: "the rule", key: n, value: n}
		if !d.kind(item, yaml.MappingNode, pathToRule(node, i), "its fields, such as {name: account, ...}") {
			continue
		}
		rules = append(rules, d.rule(n, node, i))
	}
	return rules
}

func (d *decoder) rule(n *yaml.Node, node string, index int) draftRule {
	r := draftRule{index: index, at: placeOf(n)}
	path := pathToRule(node, index)
	for _, e := range d.entries(n, path) {
		f := fieldNamed(e.name)
		if f == fieldCount {
			d.unknown(e, pathTo(path, e.name), "a rule", fieldNames)
			r.misspelt(e)
			continue
		}
		r.fields[f] = d.field(&r.rule, f, e, path+"."+e.name)
	}
	return r
}

// misspelt takes the field that an unknown one is near to as given, so that it
// is not called missing as well.
func (r *draftRule) misspelt(e entry) {
	f := fieldNamed(nearest(e.name, fieldNames))
	if f != fieldCount && !r.fields[f].set {
		r.fields[f] = written{at: placeOf(e.key), set: true, bad: true}
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
func (d *decoder) field(r *Rule, f field, e entry, path string) (w written) {
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
	case fieldMaxWait:
		r.MaxWait, w = d.duration(e, path)
	case fieldResets:
		r.Resets, w = d.words(e, path, `a cron expression, such as "0 0 * * *"`)
	case fieldTimezone:
		r.Timezone, w = d.words(e, path, "a time zone, such as UTC or America/Los_Angeles")
	case fieldRollover:
		r.Rollover, w = d.number(e, path)
	case fieldSpread:
		r.Spread, w = d.flag(e, path)
	case fieldUnlimited:
		r.Unlimited, w = d.flag(e, path)
	}
	return w
}

// text reads a piece of text. Where YAML sees a number or the like, a person
// has to say that text is meant.
func (d *decoder) text(e entry, path string) (string, written) {
	w := d.scalar(e, path, "a name, such as account")
	if w.good() && e.value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %q in quotes if that text is meant", describe(e.value), clip(e.value.Value))
	}
	return e.value.Value, w
}

// words reads a piece of text that is no name.
func (d *decoder) words(e entry, path, want string) (string, written) {
	w := d.scalar(e, path, want)
	if w.good() && e.value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %s", describe(e.value), want)
	}
	return e.value.Value, w
}

// word reads one of a few words. Which of them, if any, is checked later.
func (d *decoder) word(e entry, path string, words []string) (string, written) {
	w := d.scalar(e, path, oneOf(words))
	if w.good() && e.value.Tag != "!!str" {
		w = d.bad(e, path, "is %s; write %s", describe(e.value), oneOf(words))
	}
	return e.value.Value, w
}

// flag reads true or false.
func (d *decoder) flag(e entry, path string) (bool, written) {
	const want = "true, or remove the line"
	w := d.scalar(e, path, want)
	if w.good() && e.value.Tag != "!!bool" {
		w = d.bad(e, path, "is %s; write %s", describe(e.value), want)
	}
	return w.good() && strings.EqualFold(e.value.Value, "true"), w
}

// number reads a whole number in plain digits. YAML knows many more ways to
// write one (0x10, 010, 1_000, 1e3), and its readers differ on half of them.
func (d *decoder) number(e entry, path string) (int64, written) {
	const want = "a whole number in plain digits, such as 100"
	w := d.scalar(e, path, want)
	text := e.value.Value
	switch {
	case !w.good():
	case !plainNumber(text):
		w = d.bad(e, path, "is %s; write %s", describe(e.value), want)
	case e.value.Style != 0:
		w = d.bad(e, path, "is %s; write %s without quotes", describe(e.value), clip(text))
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
func (d *decoder) duration(e entry, path string) (t time.Duration, w written) {
	const want = "a duration, such as 500ms, 1m, 24h or 30d"
	w = d.scalar(e, path, want)
	if !w.good() {
		return 0, w
	}
	text := clip(e.value.Value)
	if e.value.Tag != "!!str" {
		if plainNumber(text) && text[0] != '-' {
			return 0, d.bad(e, path, "is %s, which has no unit; write %ss if seconds are meant", describe(e.value), text)
		}
		return 0, d.bad(e, path, "is %s; write %s", describe(e.value), want)
	}
	t, ok := parseDuration(e.value.Value)
	switch {
	case ok:
	case strings.Contains(text, "d"):
		w = d.bad(e, path, "is %s; write %s: days stand alone and are whole", describe(e.value), want)
	default:
		w = d.bad(e, path, "is %s; write %s", describe(e.value), want)
	}
	return t, w
}
