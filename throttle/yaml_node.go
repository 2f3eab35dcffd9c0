package throttle

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// decoder turns the nodes of a limits.yaml into a draft. It tells which nodes
// are not what they have to be; whether their values are allowed is not for it.
type decoder struct{ faults *faultList }

// entry is one field of a mapping.
type entry struct {
	name  string
	label string // the name as a reason begins with it
	key   *yaml.Node
	value *yaml.Node
}

// place is where a fault of the value is shown. An empty value stands nowhere:
// its node is often on the next line.
func (e entry) place() place {
	if e.value.Kind == yaml.ScalarNode && e.value.Value == "" && e.value.Style == 0 {
		return placeOf(e.key)
	}
	return placeOf(e.value)
}

func placeOf(n *yaml.Node) place { return place{line: int32(n.Line), column: int32(n.Column)} }

// bad reports a fault of a value.
func (d *decoder) bad(e entry, path, format string, args ...any) written {
	d.faults.add(e.place(), path, e.label+" "+fmt.Sprintf(format, args...))
	return written{at: e.place(), set: true, bad: true}
}

// kind reports whether the value is of a kind, and the fault if it is not.
func (d *decoder) kind(e entry, kind yaml.Kind, path, want string) bool {
	n := e.value
	switch {
	case n.Kind == yaml.AliasNode:
		d.bad(e, path, "is an alias, and aliases are not read; write its value out")
	case n.Anchor != "":
		d.bad(e, path, "has an anchor, and anchors are not read; remove &%s", mark(n.Anchor))
	case tagged(n):
		d.bad(e, path, "has a tag, and tags are not read; remove %s", mark(n.Tag))
	case n.Kind != kind || n.Tag == "!!null":
		d.bad(e, path, "is %s; write %s", describe(n), want)
	default:
		return true
	}
	return false
}

// tagged reports whether somebody wrote a tag, such as !!int or !.
func tagged(n *yaml.Node) bool { return n.Style&yaml.TaggedStyle != 0 || n.Tag == "!" }

// scalar reads what text, words, numbers and durations have in common.
func (d *decoder) scalar(e entry, path, want string) written {
	return written{at: e.place(), text: clip(e.value.Value), set: true, bad: !d.kind(e, yaml.ScalarNode, path, want)}
}

// entries returns the fields of a mapping that have a name of their own.
func (d *decoder) entries(n *yaml.Node, path string) []entry {
	entries := make([]entry, 0, len(n.Content)/2)
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if reason := keyReason(key); reason != "" {
			d.faults.add(placeOf(key), path, reason)
			continue
		}
		e := entry{name: key.Value, label: pathName(key.Value), key: key, value: value}
		if line, twice := lines[e.name]; twice {
			d.faults.add(placeOf(key), pathTo(path, e.name),
				fmt.Sprintf("%s is there already, on line %d; keep one of the two", e.label, line))
			continue
		}
		lines[e.name] = key.Line
		entries = append(entries, e)
	}
	return entries
}

// keyReason says what is wrong with the key of a mapping, if anything. A plain
// scalar of any type is its own text: 404 is the name "404".
func keyReason(key *yaml.Node) string {
	switch {
	case key.Kind == yaml.AliasNode:
		return fmt.Sprintf("*%s is an alias, and aliases are not read; write the name out", mark(key.Value))
	case key.Anchor != "":
		return fmt.Sprintf("%s has an anchor, and anchors are not read; remove &%s", pathName(key.Value), mark(key.Anchor))
	case tagged(key):
		return fmt.Sprintf("%s has a tag, and tags are not read; remove %s", pathName(key.Value), mark(key.Tag))
	case key.Kind != yaml.ScalarNode:
		return fmt.Sprintf("%s stands where a name has to; write a name", describe(key))
	case key.Tag == "!!merge":
		return "<< is a merge key, and merge keys are not read; write the fields out"
	}
	return ""
}

// unknown reports a field that its owner does not have.
func (d *decoder) unknown(e entry, path, owner string, fields []string) {
	reason := fmt.Sprintf("%s is not a field of %s; ", e.label, owner)
	near := nearest(e.name, fields)
	switch {
	case slices.Contains(laterFields, e.name):
		reason = fmt.Sprintf("%s is not known in this version; remove it", e.label)
	case near != "":
		reason += fmt.Sprintf("did you mean %s?", near)
	case owner == "a scope":
		reason += "write " + oneOf(fields[:2]) + ", and names of the next level under scopes"
	default:
		reason += "write " + oneOf(fields)
	}
	d.faults.add(placeOf(e.key), path, reason)
}

// describe names a node as a person would who reads the file.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case n.Tag == "!!null" && n.Value == "":
		return "empty"
	case n.Tag == "!!int" || n.Tag == "!!float":
		return "the number " + clip(n.Value)
	case n.Tag == "!!timestamp":
		return "the date " + clip(n.Value)
	case n.Tag == "!!str":
		return fmt.Sprintf("the text %q", clip(n.Value))
	}
	return clip(n.Value)
}

// mark shows an anchor or a tag, which can hold anything by way of escapes.
func mark(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return quote(clip(s))
	}
	return clip(s)
}

// clip keeps what is quoted of a file readable.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
