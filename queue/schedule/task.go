package schedule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/queue"
)

// A task is written as a line of NDJSON that package queue reads, so that both files accept and refuse
// the same.

var (
	taskFields = []string{"type", "scope", "cost", "queue", "max_retry", "timeout", "max_wait", "priority", "http", "payload"}
	httpFields = []string{"method", "url", "headers", "body"}

	// notRecurring are fields of a line that are invalid for a recurring task.
	notRecurring = map[string]string{
		"id":       "each run has one of its own, made of the schedule's name and the run's time",
		"delay":    "cron says when a run is, and jitter puts it off",
		"deadline": "a moment would end all runs",
	}
)

// line is a task that is being encoded as NDJSON.
type line struct {
	*reader
	text   bytes.Buffer
	places map[string]diag.Place // by the name of the field in queue's faults
	bad    map[string]bool       // fields with a reported fault
}

func (r *reader) task(f field) (queue.Task, map[string]diag.Place) {
	if !r.is(f, yaml.MappingNode, "its fields under it: type, scope and what to do") {
		return queue.Task{}, nil
	}
	l := &line{reader: r, places: map[string]diag.Place{"": strictyaml.PlaceOf(f.Key)}, bad: map[string]bool{}}
	l.object(f, "", l.taskField)
	t, err := queue.ParseLine(l.text.Bytes())
	if ie, ok := errors.AsType[*queue.InvalidError](err); ok {
		for _, fault := range ie.Faults {
			l.tell(f.path, fault)
		}
	}
	return t, l.places
}

// object writes a mapping. member writes the value of each field, or reports its fault and returns
// false. within is the field's name in package queue.
func (l *line) object(f field, within string, member func(field) bool) {
	l.text.WriteByte('{')
	first := true
	for _, f := range l.fields(f.Value, f.path) {
		before := l.text.Len()
		if !first {
			l.text.WriteByte(',')
		}
		l.json(f.Name)
		l.text.WriteByte(':')
		name := strings.TrimPrefix(within+"."+f.Name, ".")
		l.places[name] = f.Place()
		if !member(f) {
			l.bad[name] = true
			l.text.Truncate(before)
			continue
		}
		first = false
	}
	l.text.WriteByte('}')
}

func (l *line) taskField(f field) bool {
	switch {
	case notRecurring[f.Name] != "":
		l.fault(strictyaml.PlaceOf(f.Key), f.path, "%s is not for a schedule: %s; remove it", f.Name, notRecurring[f.Name])
		return false
	case !slices.Contains(taskFields, f.Name):
		l.unknown(f, "a schedule's task", taskFields)
		return false
	case f.Name == "http":
		if !l.is(f, yaml.MappingNode, "its fields under it, such as {url: ...}") {
			return false
		}
		l.object(f, "http", l.httpField)
		return true
	case f.Name == "cost" && f.Value.Kind == yaml.MappingNode:
		if !l.is(f, yaml.MappingNode, "") {
			return false
		}
		l.object(f, "cost", l.scalar)
		return true
	case slices.Contains([]string{"type", "scope", "queue"}, f.Name):
		return l.string(f)
	case f.Name == "payload":
		return l.value(f)
	}
	return l.scalar(f)
}

func (l *line) httpField(f field) bool {
	switch {
	case !slices.Contains(httpFields, f.Name):
		l.unknown(f, "http", httpFields)
		return false
	case f.Name == "headers":
		if !l.is(f, yaml.MappingNode, "names and texts under it") {
			return false
		}
		l.object(f, "http.headers", l.string)
		return true
	}
	return l.string(f)
}

// string writes a text.
func (l *line) string(f field) bool {
	text, ok := l.reader.text(f, "a text")
	if ok {
		l.json(text)
	}
	return ok
}

// scalar writes a text or a number in plain digits; package queue checks which one it must be.
func (l *line) scalar(f field) bool {
	if !l.is(f, yaml.ScalarNode, "a text or a number") {
		return false
	}
	return l.plain(f)
}

// plain writes a scalar as JSON has it. YAML has many more ways to write a number (0x10, 010, 1_000,
// .inf), and parsers differ on half of them.
func (l *line) plain(f field) bool {
	n := f.Value
	switch n.Tag {
	case "!!str":
		l.json(n.Value)
		return true
	case "!!null":
		l.text.WriteString("null")
		return true
	case "!!bool", "!!int", "!!float":
		if text := strings.ToLower(n.Value); json.Valid([]byte(text)) {
			l.text.WriteString(text)
			return true
		}
	}
	l.reader.bad(f, "is %s; write it as JSON does, or in quotes if that text is meant", strictyaml.Describe(n))
	return false
}

// value writes any value as JSON.
func (l *line) value(f field) bool {
	switch f.Value.Kind {
	case yaml.MappingNode:
		if !l.is(f, yaml.MappingNode, "") {
			return false
		}
		l.object(f, f.path, l.value)
		return true
	case yaml.SequenceNode:
		return l.is(f, yaml.SequenceNode, "") && l.list(f)
	}
	if !l.Plain(f.Field, f.path) {
		return false // nothing may be written in its place, too: that is null
	}
	return l.plain(f)
}

func (l *line) list(f field) bool {
	l.text.WriteByte('[')
	for i, n := range f.Value.Content {
		if i > 0 {
			l.text.WriteByte(',')
		}
		name := fmt.Sprintf("%s[%d]", f.Name, i)
		if !l.value(field{
			Field: strictyaml.Field{Name: name, Label: diag.PathName(name), Key: n, Value: n}, path: fmt.Sprintf("%s[%d]", f.path, i),
		}) {
			return false
		}
	}
	l.text.WriteByte(']')
	return true
}

// json writes a text as a JSON string.
func (l *line) json(text string) {
	enc := json.NewEncoder(&l.text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text)              // a string always has an encoding
	l.text.Truncate(l.text.Len() - 1) // its newline
}

// tell reports a fault from package queue, unless it follows from a fault that was reported already: a
// field that was left out for its fault is not reported as missing.
func (l *line) tell(path string, f queue.Fault) {
	aboutType := f.Field == "http" || f.Field == "payload"
	if l.bad[f.Field] || aboutType && l.bad["type"] {
		return
	}
	within := f.Field
	if _, there := l.places[within]; !there { // it is missing: report the place of its parent
		within, _, _ = strings.Cut(within, ".")
	}
	at, there := l.places[within]
	if !there {
		at = l.places[""]
	}
	if f.Field != "" {
		path += "." + f.Field
	}
	l.fault(at, path, "%s", f.Reason)
}
