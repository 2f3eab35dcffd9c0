package limitsyaml

import (
	"errors"
	"maps"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// ParseRule parses one rule, as FormatRule writes it, and sets every default. name is the text's name in errors. The error is a
// *policy.Error.
func ParseRule(name string, data []byte) (policy.Rule, error) {
	d := decoder{&strictyaml.Faults{}}
	return d.ruleAlone(file.Read(data, d.Faults), name)
}

// RuleWith returns a rule with some of its fields replaced. fields has each value in its form in limits.yaml: limit as "100", per
// as "1s". An empty text removes a field. Other fields keep their value, with one exception: "unlimited" as "true" removes all
// others, and any other field removes "unlimited". The error is a *policy.Error, whose faults have no place in a text.
func RuleWith(r policy.Rule, fields map[string]string) (policy.Rule, error) {
	root := file.Read([]byte(FormatRule(r)), &strictyaml.Faults{})
	for _, n := range append(root.Content, root) {
		n.Line, n.Column = 0, 0
	}
	if fields["unlimited"] == "true" || r.Algorithm == "" {
		root.Content = root.Content[:2] // the name
	} else if len(fields) > 0 {
		setField(root, "unlimited", "")
	}
	order := slices.Concat(ruleFields, slices.Sorted(maps.Keys(fields))) // unknown fields have their faults too
	for _, name := range order {
		if value, given := fields[name]; given {
			setField(root, name, value)
		}
	}
	return decoder{&strictyaml.Faults{}}.ruleAlone(root, "the rule")
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

// plainScalar returns the node that YAML makes of the text without quotes, if the text can be written so.
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
	rule, source := policy.Rule{}, &policy.Source{Bad: true}
	if root != nil && d.Is(strictyaml.Field{Label: "the rule", Key: root, Value: root}, yaml.MappingNode, "", "its fields, such as {name: account, ...}") {
		rule, source = d.rule(root, "")
	}
	scope, err := d.alone(name, policy.ScopeConfig{Rules: []policy.Rule{rule}}, "rules", &policy.Source{Items: []*policy.Source{source}})
	if err != nil {
		return policy.Rule{}, err
	}
	return scope.Rules[0], nil
}

// setAnswers sets the answers of a scope to a text as FormatAnswers writes it, or to none if it is empty.
func setAnswers(s *policy.ScopeConfig, text string) (err error) {
	var a policy.ScopeConfig
	if text != "" {
		d, source := decoder{&strictyaml.Faults{}}, &policy.Source{}
		if root := file.Read([]byte(text), d.Faults); root != nil {
			source = d.answers(&a, strictyaml.Field{Label: "answers", Key: root, Value: root}, "answers")
		}
		a, err = d.alone("answers", a, "answers", source)
	}
	s.Answers, s.Corrects, s.Refusals, s.Reading = a.Answers, a.Corrects, a.Refusals, a.Reading
	return err
}

// setBreaker sets the breaker of a scope to a text as FormatBreaker writes it, or to none if it is empty.
func setBreaker(s *policy.ScopeConfig, text string) (err error) {
	var a policy.ScopeConfig
	if text != "" {
		d, source := decoder{&strictyaml.Faults{}}, &policy.Source{}
		if root := file.Read([]byte(text), d.Faults); root != nil {
			source = d.breaker(&a, strictyaml.Field{Label: "breaker", Key: root, Value: root}, "breaker")
		}
		a, err = d.alone("breaker", a, "breaker", source)
	}
	s.Breaker = a.Breaker
	return err
}

// alone checks a single field as that of a scope in a policy. The faults have no path, since each reason names its field.
func (d decoder) alone(name string, config policy.ScopeConfig, field string, source *policy.Source) (policy.ScopeConfig, error) {
	const somewhere = "somewhere"
	for _, under := range []string{field, somewhere, "limits"} {
		source = &policy.Source{Fields: map[string]*policy.Source{under: source}}
	}
	source.Name, source.Faults = name, d.All()
	p, err := policy.NewFrom(source, policy.UnmatchedDeny, map[string]policy.ScopeConfig{somewhere: config})
	if refused, is := errors.AsType[*policy.Error](err); is {
		for i := range refused.Faults {
			refused.Faults[i].Path = ""
		}
		return policy.ScopeConfig{}, refused
	}
	_, limits := p.Limits()
	return limits[somewhere], nil
}
