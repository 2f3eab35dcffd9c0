package limitsyaml

import (
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

var ruleFields = policy.RuleFields()

// rules reads the rules of a scope. An element that is no mapping keeps its place in the list, marked as bad.
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
	clock := map[string]strictyaml.Field{}
	for _, e := range d.Fields(n, path) {
		read, want := ruleReaders[e.Name], clockWant[e.Name]
		switch {
		case want != "":
			_, source.Fields[e.Name] = d.words(e, path+"."+e.Name, want)
			clock[e.Name] = e
		case read != nil:
			source.Fields[e.Name] = read(d, &r, e, path+"."+e.Name)
		default:
			d.unknown(e, diag.PathTo(path, e.Name), "a rule", ruleFields)
			misspelt(source, e)
		}
	}
	d.clock(&r, clock, source, path)
	return r, source
}

// misspelt marks the known field that is nearest to an unknown one as given, so that it is not reported as missing too.
func misspelt(rule *policy.Source, e strictyaml.Field) {
	near := diag.Nearest(e.Name, ruleFields)
	if near != "" && rule.Fields[near] == nil {
		rule.Fields[near] = sourceAt(strictyaml.PlaceOf(e.Key), "", true)
	}
}

// ruleReaders read the fields of a rule but those of clockWant. Package policy checks the values.
var ruleReaders = map[string]reader[policy.Rule]{
	"name":           into(decoder.text, func(r *policy.Rule) *string { return &r.Name }),
	"algorithm":      into(word[policy.Algorithm]("algorithm"), func(r *policy.Rule) *policy.Algorithm { return &r.Algorithm }),
	"on_redis_error": into(word[policy.FailurePolicy]("on_redis_error"), func(r *policy.Rule) *policy.FailurePolicy { return &r.OnRedisError }),
	"limit":          into(decoder.number, func(r *policy.Rule) *int64 { return &r.Limit }),
	"burst":          into(decoder.number, func(r *policy.Rule) *int64 { return &r.Burst }),
	"rollover":       into(decoder.number, func(r *policy.Rule) *int64 { return &r.Rollover }),
	"per":            into(decoder.duration, func(r *policy.Rule) *time.Duration { return &r.Per }),
	"lease":          into(decoder.duration, func(r *policy.Rule) *time.Duration { return &r.Lease }),
	"margin":         into(decoder.duration, func(r *policy.Rule) *time.Duration { return &r.Margin }),
	"max_wait":       into(decoder.duration, func(r *policy.Rule) *time.Duration { return &r.MaxWait }),
	"opens_on_use":   into(decoder.flag, func(r *policy.Rule) *bool { return &r.OpensOnUse }),
	"spread":         into(decoder.flag, func(r *policy.Rule) *bool { return &r.Spread }),
	"shadow":         into(decoder.flag, func(r *policy.Rule) *bool { return &r.Shadow }),
	"cap":            into(decoder.percent, func(r *policy.Rule) *int64 { return &r.Cap }),
	"unlimited":      into(decoder.flag, func(r *policy.Rule) *bool { return &r.Unlimited }),
	"unit": into(func(d decoder, e strictyaml.Field, path string) (string, *policy.Source) {
		return d.words(e, path, "the name of a unit, such as tokens")
	}, func(r *policy.Rule) *string { return &r.Unit }),
	"vendor": into(vendorName, func(r *policy.Rule) *string { return &r.Vendor }),
}

func vendorName(d decoder, e strictyaml.Field, path string) (string, *policy.Source) {
	return d.words(e, path, "what the vendor's answers call the limit, such as requests-per-minute")
}

// clockWant are the fields of a rule that have a meaning only together, and what each takes: two expressions, and the time zone
// of both.
var clockWant = map[string]string{
	"resets":   `a cron expression, such as "0 0 * * *"`,
	"active":   `a cron expression, such as "* 8-19 * * 1-5"`,
	"timezone": "a time zone, such as UTC or America/Los_Angeles",
}

// clock makes the rule's calendar and hours from these fields. It leaves fields that do not go with the rule to package policy,
// which rejects them whatever their value. The zone is checked first, since without it an expression has no meaning.
func (d decoder) clock(r *policy.Rule, fields map[string]strictyaml.Field, source *policy.Source, path string) {
	if r.Unlimited {
		return
	}
	calendar := r.Algorithm == policy.Calendar || !slices.Contains(policy.Words("algorithm"), string(r.Algorithm))
	good := func(name string) bool { return source.Fields[name] != nil && !source.Fields[name].Bad }
	bad := func(name, format string, args ...any) {
		source.Fields[name] = d.bad(fields[name], path+"."+name, format, args...)
	}
	zone := defaultTimezone
	if good("timezone") && (calendar || source.Fields["active"] != nil) {
		text := fields["timezone"].Value.Value
		switch _, err := wallclock.Zone(text); {
		case text == "":
			bad("timezone", "is empty; write UTC or America/Los_Angeles, or remove it for UTC")
		case err != nil:
			bad("timezone", "cannot be read: %v", err)
		default:
			zone = text
		}
	}
	if good("resets") && calendar {
		if schedule, err := wallclock.Parse(fields["resets"].Value.Value, zone); err != nil {
			bad("resets", "cannot be read: %v", err)
		} else {
			r.Resets = schedule
		}
	}
	if good("active") {
		if window, err := wallclock.ParseWindow(fields["active"].Value.Value, zone); err != nil {
			bad("active", "cannot be heeded: %v", err)
		} else {
			r.Active = window
		}
	}
}
