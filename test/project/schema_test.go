package project

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// property is what a JSON Schema says of a field.
type property struct {
	Description string              `json:"description"`
	Enum        []string            `json:"enum"`
	AnyOf       []property          `json:"anyOf"`
	Properties  map[string]property `json:"properties"`
	Additional  *json.RawMessage    `json:"additionalProperties"`
	Items       *property           `json:"items"`
}

// The fields of limits.yaml are in three lists: those of the parser, of the schema and of the page. test/bench/schemas holds the schema
// against the parser; this holds that each field is in all three, with the same words on the page.
func TestLimitsSchema(t *testing.T) {
	t.Parallel()
	var schema struct {
		property
		Definitions map[string]property `json:"definitions"`
	}
	must(t, json.Unmarshal([]byte(read(t, "docs/limits.schema.json")), &schema))
	scope := schema.Definitions["scope"]
	var share property
	must(t, json.Unmarshal(*scope.Properties["shares"].Additional, &share))
	page := strings.ReplaceAll(read(t, "docs/limits-yaml.md"), "`", "")
	for _, name := range policy.RuleFields() {
		if _, is := schema.Definitions["rule"].Properties[name]; !is {
			t.Errorf("the schema has no field %s of a rule", name)
		}
	}
	for kind, of := range map[string]struct {
		property
		before, after string // what stands around a field in a file
	}{
		"file":    {schema.property, "", ""},
		"scope":   {scope, "limits: {p: {", "}}"},
		"rule":    {schema.Definitions["rule"], "limits: {p: {rules: [{", "}]}}"},
		"share":   {share, "limits: {p: {shares: {a: {", "}}}}"},
		"pool":    {scope.Properties["pool"], "limits: {p: {pool: {members: [a], ", "}}}"},
		"member":  {scope.Properties["pool"].Properties["members"].Items.AnyOf[1], "limits: {p: {pool: {members: [{", "}]}}}"},
		"answers": {scope.Properties["answers"].AnyOf[1], "limits: {p: {answers: {", "}}}"},
		"answer":  {*scope.Properties["answers"].AnyOf[1].Properties["also"].Items, "limits: {p: {answers: {also: [{", "}]}}}"},
		"breaker": {scope.Properties["breaker"], "limits: {p: {breaker: {", "}}}"},
	} {
		if len(of.Properties) < 2 {
			t.Fatalf("%s has the fields %v", kind, of.Properties)
		}
		for name, p := range of.Properties {
			if !strings.Contains(page, "| "+name+" | "+p.Description+" |") {
				t.Errorf("docs/limits-yaml.md does not say of %s, a field of %s: %s", name, kind, p.Description)
			}
			if _, err := limitsyaml.Parse("f", []byte(of.before+name+": x"+of.after)); err != nil && strings.Contains(err.Error(), name+" is not a field") {
				t.Errorf("the parser has no field %s of %s: %v", name, kind, err)
			}
			field := name
			switch kind {
			case "answers":
				field = "answers." + name
			case "answer":
				field = "answers.also." + name
			case "pool":
				field = "pool." + name
			}
			if words := policy.Words(field); len(words) > 0 && len(p.Enum)+len(p.AnyOf) > 0 && !slices.Equal(p.Enum, words) && !slices.Equal(p.AnyOf[0].Enum, words) {
				t.Errorf("%s of %s is one of %q, by the parser of %q", name, kind, p.Enum, words)
			}
		}
	}
}
