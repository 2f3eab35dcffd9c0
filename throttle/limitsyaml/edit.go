package limitsyaml

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// ParseRule parses one rule, as FormatRule writes it, and sets every default. name is the text's
// name in errors. The error is a *policy.Error.
func ParseRule(name string, data []byte) (policy.Rule, error) {
	d := decoder{&strictyaml.Faults{}}
	root := file.Read(data, d.Faults)
	if root == nil {
		return policy.Rule{}, d.refused(name, nil)
	}
	return d.ruleAlone(root, name)
}

// RuleWith returns a rule with some of its fields replaced. fields has each value in its form in
// limits.yaml: limit as "100", per as "1s". An empty text removes a field. Other fields keep their
// value, with one exception: "unlimited" as "true" removes all others, and any other field removes
// "unlimited". The error is a *policy.Error, whose faults have no place in a text.
func RuleWith(r policy.Rule, fields map[string]string) (policy.Rule, error) {
	n, err := yaml.NewLoader(strings.NewReader(FormatRule(r)))
	if err != nil {
		return policy.Rule{}, err
	}
	var doc yaml.Node
	if err := n.Load(&doc); err != nil {
		return policy.Rule{}, err
	}
	root := doc.Content[0]
	for i := range root.Content {
		root.Content[i].Line, root.Content[i].Column = 0, 0
	}
	root.Line, root.Column = 0, 0
	if fields["unlimited"] == "true" || r.Algorithm == "" {
		root.Content = root.Content[:2] // the name
	} else if len(fields) > 0 {
		setField(root, "unlimited", "")
	}
	for _, name := range append(slices.Clone(ruleFields), unknownFields(fields)...) {
		if value, given := fields[name]; given {
			setField(root, name, value)
		}
	}
	return decoder{&strictyaml.Faults{}}.ruleAlone(root, "the rule")
}

// unknownFields returns the names that are no field of a rule. Their faults are reported with the
// others.
func unknownFields(fields map[string]string) (unknown []string) {
	for name := range fields {
		if !slices.Contains(ruleFields, name) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// setField sets a field of a mapping, or removes it if value is empty.
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

// plainScalar returns the node that YAML makes of the text without quotes, if the text can be
// written so.
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

// ruleAlone reads and checks a single rule.
func (d decoder) ruleAlone(root *yaml.Node, name string) (policy.Rule, error) {
	item := strictyaml.Field{Label: "the rule", Key: root, Value: root}
	if !d.Is(item, yaml.MappingNode, "", "its fields, such as {name: account, ...}") {
		return policy.Rule{}, d.refused(name, nil)
	}
	rule, source := d.rule(root, "")
	p, err := aloneFrom(policy.ScopeConfig{Rules: []policy.Rule{rule}}, "rules", &policy.Source{Items: []*policy.Source{source}})
	if err := d.alone(name, err); err != nil {
		return policy.Rule{}, err
	}
	_, limits := p.Limits()
	return limits[somewhere].Rules[0], nil
}

// ParseAnswers parses the value of answers in limits.yaml, a word or fields, as FormatAnswers writes
// it. The result has these fields of a scope alone. name is the text's name in errors. The error is a *policy.Error.
func ParseAnswers(name string, data []byte) (answers policy.ScopeConfig, err error) {
	d := decoder{&strictyaml.Faults{}}
	root := file.Read(data, d.Faults)
	if root == nil {
		return answers, d.refused(name, nil)
	}
	source := d.answers(&answers, strictyaml.Field{Label: "answers", Key: root, Value: root}, "answers")
	p, err := aloneFrom(answers, "answers", source)
	if err := d.alone(name, err); err != nil {
		return policy.ScopeConfig{}, err
	}
	_, limits := p.Limits()
	return limits[somewhere], nil
}

// somewhere is the scope in which a single value is checked.
const somewhere = "somewhere"

// aloneFrom makes a policy with one field of a scope, so that package policy checks the field.
func aloneFrom(config policy.ScopeConfig, field string, source *policy.Source) (*policy.Policy, error) {
	under := func(name string, s *policy.Source) *policy.Source {
		return &policy.Source{Fields: map[string]*policy.Source{name: s}}
	}
	return policy.NewFrom(under("limits", under(somewhere, under(field, source))), policy.UnmatchedDeny, map[string]policy.ScopeConfig{somewhere: config})
}
