package policy

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/strictyaml"
)

// Limits returns the policy as the tree that New makes an equal one of, for a
// program that changes something in it. The caller may keep and change it.
func (p *Policy) Limits() (Unmatched, map[string]ScopeConfig) {
	unmatched := p.unmatched
	if unmatched == "" {
		unmatched = UnmatchedDeny
	}
	return unmatched, p.root.node().Scopes
}

func (t *tree) node() ScopeConfig {
	n := ScopeConfig{Rules: slices.Clone(t.rules), Scopes: map[string]ScopeConfig{}, Owner: t.owner, Apps: slices.Clone(t.apps), Hosts: slices.Clone(t.hosts), Pause: t.pause, PausedUntil: t.until}
	n.Weight, n.Shares, n.Answers, n.Corrects = t.weight, maps.Clone(t.shares), t.answers, t.corrects
	if t.maxPriority != nil {
		n.MaxPriority = new(*t.maxPriority)
	}
	if t.every != nil {
		n.Scopes[anyName] = t.every.node()
	}
	for name, child := range t.scopes {
		n.Scopes[name] = child.node()
	}
	return n
}

// YAML returns the rule as it stands in limits.yaml, on one line and without its
// defaults: {name: tenant, algorithm: token-bucket, limit: 20, per: 1s}. ParseRule
// reads it back.
func (r Rule) YAML() string { return yamlRule(r) }

// ParseRule reads one rule, as it stands in limits.yaml, with every default written
// out; name is what errors call the text. The error is a *Error.
func ParseRule(name string, data []byte) (Rule, error) {
	var faults strictyaml.Faults
	root := file.Read(data, &faults)
	if root == nil {
		return Rule{}, refused(name, &faults)
	}
	return ruleOf(root, name, &faults)
}

// RuleWith returns a rule with some of its fields written anew, each as limits.yaml has
// it: limit as "100", per as "1s". An empty text takes a field away. Fields that are
// not named keep their value, but for these: "unlimited" as "true" takes all others
// away, and any other field takes "unlimited" away. The error is a *Error, whose
// faults have no place in a text.
func RuleWith(r Rule, fields map[string]string) (Rule, error) {
	var faults strictyaml.Faults
	n, err := yaml.NewLoader(strings.NewReader(yamlRule(r)))
	if err != nil {
		return Rule{}, err
	}
	var doc yaml.Node
	if err := n.Load(&doc); err != nil {
		return Rule{}, err
	}
	root := doc.Content[0]
	for i := range root.Content {
		root.Content[i].Line, root.Content[i].Column = 0, 0
	}
	root.Line, root.Column = 0, 0
	if fields[fieldUnlimited.String()] == "true" || r.Algorithm == "" {
		root.Content = root.Content[:2] // the name
	} else if len(fields) > 0 {
		setField(root, fieldUnlimited.String(), "")
	}
	for _, name := range append(fieldNames, unknownFields(fields)...) {
		if value, given := fields[name]; given {
			setField(root, name, value)
		}
	}
	return ruleOf(root, "the rule", &faults)
}

// unknownFields are those that no rule has: their fault is told with the others.
func unknownFields(fields map[string]string) (unknown []string) {
	for name := range fields {
		if fieldNamed(name) == fieldCount {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// setField writes a field of a mapping, or takes it away.
func setField(mapping *yaml.Node, name, value string) {
	at := -1
	for i := 0; i < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			at = i
		}
	}
	switch {
	case value == "" && at >= 0:
		mapping.Content = append(mapping.Content[:at], mapping.Content[at+2:]...)
	case value == "":
	case at >= 0:
		mapping.Content[at+1] = plainScalar(value)
	default:
		mapping.Content = append(mapping.Content, plainScalar(name), plainScalar(value))
	}
}

// plainScalar is a text as YAML would take it without quotes, if it can be so written.
func plainScalar(value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
	switch {
	case plainNumber(value):
		n.Tag = "!!int"
	case value == "true" || value == "false":
		n.Tag = "!!bool"
	}
	return n
}

// ruleOf reads and checks one rule that stands by itself.
func ruleOf(root *yaml.Node, name string, faults *strictyaml.Faults) (Rule, error) {
	d := decoder{faults}
	item := strictyaml.Field{Label: "the rule", Key: root, Value: root}
	if !d.Is(item, yaml.MappingNode, "", "its fields, such as {name: account, ...}") {
		return Rule{}, refused(name, faults)
	}
	r := d.rule(root, "", 0)
	ruleCheck{draftRule: &r, faults: faults, path: func() string { return "" }}.run()
	if err := refused(name, faults); err != nil {
		for i := range err.Faults {
			err.Faults[i].Path = "" // it stands alone, and each reason names its field
		}
		return Rule{}, err
	}
	return r.rule.withDefaults(), nil
}
