package strictyaml

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
)

// Field is one field of a mapping.
type Field struct {
	Name  string
	Label string // the name in the form in which a reason begins with it
	Path  string // the names from the root, as diag.PathTo writes them
	Key   *yaml.Node
	Value *yaml.Node
}

// Place returns the place of a fault of the value. For an empty value it is that of the key, since the node of such a value is
// often on the next line.
func (f Field) Place() diag.Place {
	if f.Value.Kind == yaml.ScalarNode && f.Value.Value == "" && f.Value.Style == 0 {
		return PlaceOf(f.Key)
	}
	return PlaceOf(f.Value)
}

// Bad reports a fault of a value.
func (l *Faults) Bad(f Field, path, format string, args ...any) {
	l.Add(f.Place(), path, f.Label+" "+fmt.Sprintf(format, args...))
}

// Plain returns whether a value has no alias, anchor or tag, and reports the fault if it has one.
func (l *Faults) Plain(f Field, path string) bool {
	reason := marked(f.Value)
	if f.Value.Kind == yaml.AliasNode {
		reason = "is an alias, and aliases are not read; write its value out"
	}
	if reason != "" {
		l.Bad(f, path, "%s", reason)
	}
	return reason == ""
}

// Is returns whether the value is plain and of a kind, and reports the fault if it is not. want is what to write instead.
func (l *Faults) Is(f Field, kind yaml.Kind, path, want string) bool {
	if !l.Plain(f, path) {
		return false
	}
	if f.Value.Kind != kind || f.Value.Tag == "!!null" {
		l.Bad(f, path, "is %s; write %s", Describe(f.Value), want)
		return false
	}
	return true
}

// marked returns why a node with an anchor or a tag, such as !!int or !, is not read. It returns "" for any other node.
func marked(n *yaml.Node) string {
	switch {
	case n.Anchor != "":
		return "has an anchor, and anchors are not read; remove &" + mark(n.Anchor)
	case n.Style&yaml.TaggedStyle != 0 || n.Tag == "!":
		return "has a tag, and tags are not read; remove " + mark(n.Tag)
	}
	return ""
}

// Fields returns the fields of a mapping, and reports keys that are no plain names or that occur twice.
func (l *Faults) Fields(n *yaml.Node, path string) []Field {
	fields := make([]Field, 0, len(n.Content)/2)
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if reason := keyReason(key); reason != "" {
			l.Add(PlaceOf(key), path, reason)
			continue
		}
		f := Field{Name: key.Value, Label: diag.PathName(key.Value), Path: diag.PathTo(path, key.Value), Key: key, Value: value}
		if line, twice := lines[f.Name]; twice {
			l.Add(PlaceOf(key), f.Path,
				fmt.Sprintf("%s is there already, on line %d; keep one of the two", f.Label, line))
			continue
		}
		lines[f.Name] = key.Line
		fields = append(fields, f)
	}
	return fields
}

// Named returns the fields below the sections of a file, each with the name of its section: people: {anna: {…}}. Their names are such as
// scopes have. Anything else in the file is a fault.
func (l *Faults) Named(root *yaml.Node, sections ...string) iter.Seq2[string, Field] {
	return func(yield func(string, Field) bool) {
		if !l.Is(Field{Label: "the file", Key: root, Value: root}, yaml.MappingNode, "", sections[0]+": and names under it") {
			return
		}
		for _, section := range l.Fields(root, "") {
			if !slices.Contains(sections, section.Name) {
				l.Bad(section, section.Path, "is not a field of the file; write %s", strings.Join(sections, " or "))
				continue
			}
			if !l.Is(section, yaml.MappingNode, section.Path, "names under it") {
				continue
			}
			for _, f := range l.Fields(section.Value, section.Path) {
				if reason := diag.NameReason(f.Name); reason != "" {
					l.Add(PlaceOf(f.Key), f.Path, "the name "+reason)
				}
				if !yield(section.Name, f) {
					return
				}
			}
		}
	}
}

// Text returns the value of a field that is a scalar; another one is a fault.
func (l *Faults) Text(f Field, want string) string {
	if !l.Is(f, yaml.ScalarNode, f.Path, want) {
		return ""
	}
	return f.Value.Value
}

// Texts returns the values of a field that is a list of scalars, such as want; anything else is a fault.
func (l *Faults) Texts(f Field, want string) (list []string) {
	if !l.Is(f, yaml.SequenceNode, f.Path, "a list, such as "+want) {
		return nil
	}
	for _, item := range f.Value.Content {
		if item.Kind != yaml.ScalarNode || item.Value == "" {
			l.Add(PlaceOf(item), f.Path, "an entry is "+Describe(item)+"; write a name")
			continue
		}
		list = append(list, item.Value)
	}
	return list
}

// keyReason returns what is wrong with the key of a mapping, empty for nothing. A plain scalar of any type counts as its text:
// 404 is the name "404".
func keyReason(key *yaml.Node) string {
	switch reason := marked(key); {
	case key.Kind == yaml.AliasNode:
		return fmt.Sprintf("*%s is an alias, and aliases are not read; write the name out", mark(key.Value))
	case reason != "":
		return diag.PathName(key.Value) + " " + reason
	case key.Kind != yaml.ScalarNode:
		return fmt.Sprintf("%s stands where a name has to; write a name", Describe(key))
	case key.Tag == "!!merge":
		return "<< is a merge key, and merge keys are not read; write the fields out"
	}
	return ""
}

// Describe returns what a node is in the words of a person who reads the file, such as "a list".
func Describe(n *yaml.Node) string {
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
		return "the number " + diag.Clip(n.Value)
	case n.Tag == "!!timestamp":
		return "the date " + diag.Clip(n.Value)
	case n.Tag == "!!str":
		return fmt.Sprintf("the text %q", diag.Clip(n.Value))
	}
	return diag.Clip(n.Value)
}

// mark returns an anchor or a tag in a printable form, since escapes let it contain any character.
func mark(s string) string {
	s = diag.Clip(s)
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return diag.Quote(s)
	}
	return s
}
