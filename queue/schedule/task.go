package schedule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/queue"
)

// A task is written as a line of NDJSON that package queue reads, so that both files accept and refuse the same.

// taskFields are the fields of a task and of its parts, by the part's name in package queue.
var taskFields = map[string][]string{
	"":     {"type", "scope", "cost", "queue", "max_retry", "timeout", "max_wait", "priority", "http", "payload"},
	"http": {"method", "url", "headers", "body"},
}

// notRecurring are fields of a line that are invalid for a recurring task.
var notRecurring = map[string]string{
	"id":       "each run gets one, made of the schedule's name and the run's time",
	"delay":    "cron says when a run is, and jitter puts it off",
	"deadline": "a moment would end all runs",
}

// line is a task that is being encoded as NDJSON.
type line struct {
	*reader
	places map[string]diag.Place // by the name of the field in queue's faults
	bad    map[string]bool       // fields with a reported fault
}

func (r *reader) task(f strictyaml.Field) (queue.Task, map[string]diag.Place) {
	l := &line{reader: r, places: map[string]diag.Place{"": strictyaml.PlaceOf(f.Key)}, bad: map[string]bool{}}
	if !r.Is(f, yaml.MappingNode, f.Path, "its fields under it: type, scope and what to do") {
		return queue.Task{}, nil
	}
	t, err := queue.ParseLine(l.object(f, ""))
	if ie, ok := errors.AsType[*queue.InvalidError](err); ok {
		for _, fault := range ie.Faults {
			l.report(f.Path, fault)
		}
	}
	return t, l.places
}

// object returns a mapping without the fields that have a fault, which it reports. name is that of the mapping in package queue.
func (l *line) object(f strictyaml.Field, name string) jsontext.Value {
	var members [][]byte
	for _, f := range l.Fields(f.Value, f.Path) {
		member := strings.TrimPrefix(name+"."+f.Name, ".")
		l.places[member] = f.Place()
		value := l.member(f, name, member)
		if value == nil {
			l.bad[member] = true
			continue
		}
		members = append(members, slices.Concat(quote(f.Name), []byte(":"), value))
	}
	return slices.Concat([]byte("{"), bytes.Join(members, []byte(",")), []byte("}"))
}

// member returns the value of a field, nil if it has a fault.
func (l *line) member(f strictyaml.Field, within, name string) jsontext.Value {
	known := taskFields[within]
	switch {
	case within == "" && notRecurring[name] != "":
		l.fault(strictyaml.PlaceOf(f.Key), f.Path, "%s is not for a schedule: %s; remove it", name, notRecurring[name])
		return nil
	case known != nil && !slices.Contains(known, f.Name):
		l.unknown(f, map[string]string{"": "a schedule's task", "http": "http"}[within], known)
		return nil
	case name == "type", name == "scope", name == "queue", within == "http" && name != "http.headers", within == "http.headers":
		if text, ok := l.text(f, "a text"); ok {
			return quote(text)
		}
		return nil
	}
	return l.value(f, name)
}

// value returns any value, nil if it has a fault.
func (l *line) value(f strictyaml.Field, name string) jsontext.Value {
	mayBeNull := name == "payload" || strings.HasPrefix(name, "payload.")
	switch kind := f.Value.Kind; {
	case !l.Plain(f, f.Path):
		return nil
	case kind == yaml.MappingNode:
		return l.object(f, name)
	case kind == yaml.SequenceNode:
		return l.list(f, name)
	case !mayBeNull && !l.Is(f, yaml.ScalarNode, f.Path, "a text or a number"):
		return nil
	}
	return l.scalar(f)
}

func (l *line) list(f strictyaml.Field, name string) jsontext.Value {
	var values [][]byte
	for i, n := range f.Value.Content {
		item := fmt.Sprintf("%s[%d]", f.Name, i)
		value := l.value(strictyaml.Field{
			Name: item, Label: diag.PathName(item), Path: fmt.Sprintf("%s[%d]", f.Path, i), Key: n, Value: n,
		}, name)
		if value == nil {
			return nil
		}
		values = append(values, value)
	}
	return slices.Concat([]byte("["), bytes.Join(values, []byte(",")), []byte("]"))
}

// scalar returns a scalar as JSON has it; package queue checks which one it must be. YAML has many more
// ways to write a number (0x10, 010, 1_000, .inf), and parsers differ on half of them.
func (l *line) scalar(f strictyaml.Field) jsontext.Value {
	switch n := f.Value; n.Tag {
	case "!!str":
		return quote(n.Value)
	case "!!null":
		return jsontext.Value("null")
	case "!!bool", "!!int", "!!float":
		if text := jsontext.Value(strings.ToLower(n.Value)); text.IsValid() {
			return text
		}
	}
	l.Bad(f, f.Path, "is %s; write it as JSON does, or in quotes if that text is meant", strictyaml.Describe(f.Value))
	return nil
}

func quote(text string) jsontext.Value {
	quoted, _ := jsontext.AppendQuote(nil, text) // YAML is valid UTF-8
	return quoted
}

// report adds a fault from package queue, unless it follows from a fault that was reported already: a field
// that was left out for its fault is not reported as missing.
func (l *line) report(path string, f queue.Fault) {
	aboutType := f.Field == "http" || f.Field == "payload"
	if l.bad[f.Field] || aboutType && l.bad["type"] {
		return
	}
	at, there := l.places[f.Field]
	if !there { // it is missing: report the place of its parent
		parent, _, _ := strings.Cut(f.Field, ".")
		at = cmp.Or(l.places[parent], l.places[""])
	}
	if f.Field != "" {
		path += "." + f.Field
	}
	l.Add(at, path, f.Reason)
}
