package limitsyaml

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

var ruleFields = policy.RuleFields()

// rules reads the rules of a scope. An element that is no mapping keeps its place in the list,
// marked as bad.
func (d decoder) rules(e strictyaml.Field, scope string) ([]policy.Rule, *policy.Source) {
	source := sourceAt(e.Place(), "", false)
	if !d.Is(e, yaml.SequenceNode, scope+".rules", "a list under it, one - {name: account, ...} a rule, or [] for none") {
		return nil, source
	}
	rules := make([]policy.Rule, len(e.Value.Content))
	source.Items = make([]*policy.Source, len(rules))
	for i, n := range e.Value.Content {
		path := scope + ".rules[" + strconv.Itoa(i) + "]"
		item := strictyaml.Field{Label: "the rule", Key: n, Value: n}
		if !d.Is(item, yaml.MappingNode, path, "its fields, such as {name: account, ...}") {
			source.Items[i] = sourceAt(strictyaml.PlaceOf(n), "", true)
			continue
		}
		rules[i], source.Items[i] = d.rule(n, path)
	}
	return rules, source
}

func (d decoder) rule(n *yaml.Node, path string) (r policy.Rule, source *policy.Source) {
	source = mappingAt(strictyaml.PlaceOf(n))
	var times clockTimes
	for _, e := range d.Fields(n, path) {
		if !slices.Contains(ruleFields, e.Name) {
			d.unknown(e, diag.PathTo(path, e.Name), "a rule", ruleFields)
			misspelt(source, e)
			continue
		}
		if text := times.of(e.Name); text != nil {
			source.Fields[e.Name] = text.read(d, e, path+"."+e.Name)
			continue
		}
		source.Fields[e.Name] = d.ruleField(&r, e, path+"."+e.Name)
	}
	times.compile(d, &r, source)
	return r, source
}

// misspelt marks the known field that is nearest to an unknown one as given, so that it is not
// reported as missing too.
func misspelt(rule *policy.Source, e strictyaml.Field) {
	near := diag.Nearest(e.Name, ruleFields)
	if near != "" && rule.Fields[near] == nil {
		rule.Fields[near] = sourceAt(strictyaml.PlaceOf(e.Key), "", true)
	}
}

// ruleField reads one field into the rule. Package policy checks the value.
func (d decoder) ruleField(r *policy.Rule, e strictyaml.Field, path string) (s *policy.Source) {
	var word string
	switch e.Name {
	case "name":
		r.Name, s = d.text(e, path)
	case "algorithm":
		word, s = d.word(e, path, e.Name)
		r.Algorithm = policy.Algorithm(word)
	case "on_redis_error":
		word, s = d.word(e, path, e.Name)
		r.OnRedisError = policy.FailurePolicy(word)
	case "limit":
		r.Limit, s = d.number(e, path)
	case "burst":
		r.Burst, s = d.number(e, path)
	case "per":
		r.Per, s = d.duration(e, path)
	case "opens_on_use":
		r.OpensOnUse, s = d.flag(e, path)
	case "lease":
		r.Lease, s = d.duration(e, path)
	case "margin":
		r.Margin, s = d.duration(e, path)
	case "max_wait":
		r.MaxWait, s = d.duration(e, path)
	case "rollover":
		r.Rollover, s = d.number(e, path)
	case "spread":
		r.Spread, s = d.flag(e, path)
	case "shadow":
		r.Shadow, s = d.flag(e, path)
	case "unit":
		r.Unit, s = d.words(e, path, "the name of a unit, such as tokens")
	case "unlimited":
		r.Unlimited, s = d.flag(e, path)
	}
	return s
}
