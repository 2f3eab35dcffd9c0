package limitsyaml

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// decoder converts the nodes of a limits.yaml to the values of package policy, with the place of each. It reports nodes of the
// wrong form; package policy checks their values.
type decoder struct{ *strictyaml.Faults }

// unknown reports a field that owner does not have.
func (d decoder) unknown(e strictyaml.Field, path, owner string, fields []string) {
	reason := fmt.Sprintf("%s is not a field of %s; ", e.Label, owner)
	if owner == "a scope" && diag.Nearest(e.Name, fields) == "" {
		reason += "write " + diag.OneOf(fields[:2]) + ", and names of the next level under scopes"
	} else {
		reason += diag.Meant(e.Name, fields)
	}
	d.Add(strictyaml.PlaceOf(e.Key), path, reason)
}

// The fields of each part of the file, as faults list them.
var (
	fileFields    = []string{"unmatched", "limits"}
	scopeFields   = []string{"rules", "scopes", "tiers", "owner", "apps", "hosts", "envoy", "paused", "paused_until", "weight", "shares", "pool", "answers", "breaker"}
	shareFields   = []string{"part", "weight"}
	poolFields    = []string{"members", "choose", "affinity", "affinity_wait", "overflow_after", "quarantine"}
	memberFields  = []string{"name", "weight", "priority"}
	answersFields = []string{"mode", "cut", "grow", "least", "most", "pause", "counts", "unit", "dialect", "also", "reasons"}
	caseFields    = []string{"status", "header", "body", "json", "means", "wait", "scope", "burns", "counts"}
	breakerFields = []string{"failures", "of", "in", "probe", "wait", "retry", "shadow"}
)

// file reads the whole file.
func (d decoder) file(root *yaml.Node) (source *policy.Source, unmatched policy.Unmatched, limits map[string]policy.ScopeConfig) {
	if root == nil {
		return &policy.Source{}, unmatched, nil
	}
	source = mappingAt(strictyaml.PlaceOf(root))
	whole := strictyaml.Field{Label: "the file", Key: root, Value: root}
	if !d.Is(whole, yaml.MappingNode, "", "its fields, "+diag.OneOf(fileFields)) {
		return source, unmatched, nil
	}
	for _, e := range d.Fields(root, "") {
		switch e.Name {
		case "unmatched":
			unmatched, source.Fields[e.Name] = word[policy.Unmatched]("unmatched")(d, e, e.Name)
		case "limits":
			limits, source.Fields[e.Name] = d.scopes(e, e.Name)
		default:
			d.unknown(e, e.Label, "the file", fileFields)
		}
	}
	return source, unmatched, limits
}

// scopes reads the names of one level, and those below it.
func (d decoder) scopes(e strictyaml.Field, path string) (map[string]policy.ScopeConfig, *policy.Source) {
	source := mappingAt(e.Place())
	if !d.Is(e, yaml.MappingNode, path, "names under it, or {} for none") {
		return nil, source
	}
	scopes := map[string]policy.ScopeConfig{}
	for _, e := range d.Fields(e.Value, path) {
		scopes[e.Name], source.Fields[e.Name] = d.scope(e, diag.PathTo(path, e.Name))
	}
	return scopes, source
}

// scope reads the fields under one name.
func (d decoder) scope(e strictyaml.Field, path string) (s policy.ScopeConfig, source *policy.Source) {
	source = mappingAt(strictyaml.PlaceOf(e.Key))
	if !d.Is(e, yaml.MappingNode, path, "rules and scopes under it, or {} for none") {
		return s, source
	}
	for _, f := range d.Fields(e.Value, path) {
		if from := d.scopeField(&s, f, path); from != nil {
			source.Fields[f.Name] = from
		}
	}
	return s, source
}

// scopeField reads one field of a scope. Package policy checks the value.
func (d decoder) scopeField(s *policy.ScopeConfig, f strictyaml.Field, path string) (source *policy.Source) {
	at := path + "." + f.Name
	switch f.Name {
	case "rules":
		s.Rules, source = d.rules(f, path)
	case "scopes":
		s.Scopes, source = d.scopes(f, at)
	case "tiers":
		s.Tiers, source = d.scopes(f, at)
	case "owner":
		s.Owner, source = d.text(f, at)
	case "apps":
		s.Apps, source = d.names(f, at, "application", "a list of applications, such as [billing]", "nobody could spend from here")
	case "hosts":
		s.Hosts, source = d.names(f, at, "host", "a list of hosts, such as [api.example.com]", "no answer would count")
	case "envoy":
		s.Envoy, source = d.names(f, at, "descriptor", "a list of descriptors, such as [edge tenant path]", "no request of Envoy would spend from here")
	case "paused":
		s.Pause, source = d.pause(f, at)
	case "paused_until":
		s.PausedUntil, source = d.moment(f, at)
	case "weight":
		s.Weight, source = d.number(f, at)
	case "shares":
		s.Shares, source = d.shares(f, at)
	case "pool":
		s.Pool, source = d.pool(f, at)
	case "answers":
		source = d.answers(s, f, at)
	case "breaker":
		source = d.breaker(s, f, at)
	default:
		d.unknown(f, diag.PathTo(path, f.Name), "a scope", scopeFields)
	}
	return source
}

// shares reads the shares of the names below a scope.
func (d decoder) shares(e strictyaml.Field, path string) (map[string]policy.Share, *policy.Source) {
	source := mappingAt(e.Place())
	if !d.Is(e, yaml.MappingNode, path, "names under it, such as {interactive: {part: 60%}, batch: {weight: 3}}") {
		return nil, source
	}
	shares := map[string]policy.Share{}
	for _, e := range d.Fields(e.Value, path) {
		at := diag.PathTo(path, e.Name)
		if !d.Is(e, yaml.MappingNode, at, "its share, such as {part: 60%, weight: 1}") {
			continue
		}
		share, from := policy.Share{}, mappingAt(strictyaml.PlaceOf(e.Key))
		readFields(d, e.Value, &share, from, at, "a share", shareFields, shareReaders)
		shares[e.Name], source.Fields[e.Name] = share, from
	}
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty; name a scope below, or remove the line")
	}
	return shares, source
}

var shareReaders = map[string]reader[policy.Share]{
	"part":   into(decoder.percent, func(s *policy.Share) *int64 { return &s.Guaranteed }),
	"weight": into(decoder.number, func(s *policy.Share) *int64 { return &s.Weight }),
}

// pool reads the pool of a scope.
func (d decoder) pool(e strictyaml.Field, path string) (pool policy.Pool, source *policy.Source) {
	source = mappingAt(e.Place())
	if d.Is(e, yaml.MappingNode, path, "its fields, such as {members: [alice, bob]}") {
		readFields(d, e.Value, &pool, source, path, "a pool", poolFields, poolReaders)
		if source.Fields["members"] == nil {
			d.bad(e, path, "has no members; write them, such as members: [alice, bob]")
		}
	}
	return pool, source
}

var poolReaders = map[string]reader[policy.Pool]{
	"members":  into(decoder.members, func(p *policy.Pool) *[]policy.Member { return &p.Members }),
	"choose":   into(word[policy.Choose]("pool.choose"), func(p *policy.Pool) *policy.Choose { return &p.Choose }),
	"affinity": into(word[policy.Affinity]("pool.affinity"), func(p *policy.Pool) *policy.Affinity { return &p.Affinity }),

	"affinity_wait":  into(decoder.duration, func(p *policy.Pool) *time.Duration { return &p.AffinityWait }),
	"overflow_after": into(decoder.duration, func(p *policy.Pool) *time.Duration { return &p.OverflowAfter }),
	"quarantine":     into(decoder.duration, func(p *policy.Pool) *time.Duration { return &p.Quarantine }),
}

// members reads the members of a pool, each an alias or a mapping.
func (d decoder) members(e strictyaml.Field, path string) (members []policy.Member, source *policy.Source) {
	source = sourceAt(e.Place(), "", false)
	if !d.Is(e, yaml.SequenceNode, path, "a list of aliases, such as [alice, bob]") {
		return nil, source
	}
	for i, n := range e.Value.Content {
		at, item := path+"["+strconv.Itoa(i)+"]", strictyaml.Field{Label: "the member", Key: n, Value: n}
		m, from := policy.Member{}, mappingAt(strictyaml.PlaceOf(n))
		if n.Kind != yaml.MappingNode {
			m.Name, from = d.text(item, at)
		} else {
			readFields(d, n, &m, from, at, "a member", memberFields, memberReaders)
			name := from.Fields["name"]
			from.Bad = name != nil && name.Bad || name == nil && 2*len(from.Fields) < len(n.Content) // it may be misspelt
		}
		members, source.Items = append(members, m), append(source.Items, from)
	}
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty, and no task could start; name a member, or remove the pool")
	}
	return members, source
}

var memberReaders = map[string]reader[policy.Member]{
	"name":     into(decoder.text, func(m *policy.Member) *string { return &m.Name }),
	"weight":   into(decoder.number, func(m *policy.Member) *int64 { return &m.Weight }),
	"priority": into(decoder.number, func(m *policy.Member) *int64 { return &m.Priority }),
}

// readFields reads the fields of a mapping into an O, which faults call owner.
func readFields[O any](d decoder, n *yaml.Node, o *O, source *policy.Source, path, owner string, names []string, readers map[string]reader[O]) {
	for _, f := range d.Fields(n, path) {
		at := diag.PathTo(path, f.Name)
		if read := readers[f.Name]; read != nil {
			source.Fields[f.Name] = read(d, o, f, at)
		} else {
			d.unknown(f, at, owner, names)
		}
	}
}

// breaker reads the breaker of a scope.
func (d decoder) breaker(s *policy.ScopeConfig, e strictyaml.Field, path string) *policy.Source {
	source := mappingAt(e.Place())
	if !d.Is(e, yaml.MappingNode, path, "its fields, such as {failures: 50%, of: 20, in: 30s}") {
		source.Bad = true
		return source
	}
	readFields(d, e.Value, &s.Breaker, source, path, "a breaker", breakerFields, breakerReaders)
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty; write fields such as {failures: 50%%}, or remove the line")
	}
	return source
}

var breakerReaders = map[string]reader[policy.Breaker]{
	"failures": into(decoder.percent, func(b *policy.Breaker) *int64 { return &b.Failures }),
	"of":       into(decoder.number, func(b *policy.Breaker) *int64 { return &b.Of }),
	"in":       into(decoder.duration, func(b *policy.Breaker) *time.Duration { return &b.In }),
	"probe":    into(decoder.number, func(b *policy.Breaker) *int64 { return &b.Probe }),
	"wait":     into(decoder.duration, func(b *policy.Breaker) *time.Duration { return &b.Wait }),
	"retry":    into(decoder.no, func(b *policy.Breaker) *bool { return &b.KeepAttempts }),
	"shadow":   into(decoder.flag, func(b *policy.Breaker) *bool { return &b.Shadow }),
}

// names reads a list of names of one kind. so is the consequence of an empty list, which is a fault.
func (d decoder) names(e strictyaml.Field, path, kind, list, so string) (names []string, source *policy.Source) {
	source = sourceAt(e.Place(), "", false)
	if !d.Is(e, yaml.SequenceNode, path, list) {
		return nil, source
	}
	for _, n := range e.Value.Content {
		if name, s := d.text(strictyaml.Field{Label: "the " + kind, Key: n, Value: n}, path); !s.Bad {
			names, source.Items = append(names, name), append(source.Items, sourceAt(strictyaml.PlaceOf(n), "", false))
		}
	}
	if len(e.Value.Content) == 0 {
		d.bad(e, path, "is empty, and %s; name one, or remove the line", so)
	}
	return names, source
}
