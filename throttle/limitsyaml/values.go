package limitsyaml

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// bad reports a fault of a value.
func (d decoder) bad(e strictyaml.Field, path, format string, args ...any) *policy.Source {
	d.Bad(e, path, format, args...)
	return sourceAt(e.Place(), "", true)
}

// scalar reads a scalar of any type, and reports any other node.
func (d decoder) scalar(e strictyaml.Field, path, want string) *policy.Source {
	return sourceAt(e.Place(), diag.Clip(e.Value.Value), !d.Is(e, yaml.ScalarNode, path, want))
}

// form reads a scalar, and reports any other node, and a scalar that is not ok. want is what to write instead.
func (d decoder) form(e strictyaml.Field, path, want string, ok bool) *policy.Source {
	s := d.scalar(e, path, want)
	if !s.Bad && !ok {
		s = d.unlike(e, path, want)
	}
	return s
}

func sourceAt(at diag.Place, text string, bad bool) *policy.Source {
	return &policy.Source{Line: int(at.Line), Column: int(at.Column), Text: text, Bad: bad}
}

// meant returns a value that was read, or the zero value if it is bad.
func meant[T any](value T, s *policy.Source) (T, *policy.Source) {
	if s.Bad {
		var none T
		return none, s
	}
	return value, s
}

// mappingAt returns the source of a mapping, without its fields.
func mappingAt(at diag.Place) *policy.Source {
	source := sourceAt(at, "", false)
	source.Fields = map[string]*policy.Source{}
	return source
}

// reader reads a field of an O.
type reader[O any] func(d decoder, o *O, e strictyaml.Field, path string) *policy.Source

// into returns a reader that puts what read returns into a field of an O.
func into[O, T any](read func(decoder, strictyaml.Field, string) (T, *policy.Source), field func(*O) *T) reader[O] {
	return func(d decoder, o *O, e strictyaml.Field, path string) (s *policy.Source) {
		*field(o), s = read(d, e, path)
		return s
	}
}

// unlike reports a value of the wrong form. want is what to write instead.
func (d decoder) unlike(e strictyaml.Field, path, want string) *policy.Source {
	return d.bad(e, path, "is %s; write %s", strictyaml.Describe(e.Value), want)
}

// text reads a name. A value that YAML reads as a number or the like must be quoted if text is meant.
func (d decoder) text(e strictyaml.Field, path string) (string, *policy.Source) {
	s := d.scalar(e, path, "a name, such as account")
	if !s.Bad && e.Value.Tag != "!!str" {
		s = d.unlike(e, path, fmt.Sprintf("%q in quotes if that text is meant", diag.Clip(e.Value.Value)))
	}
	return meant(e.Value.Value, s)
}

// words reads a text that is no name.
func (d decoder) words(e strictyaml.Field, path, want string) (string, *policy.Source) {
	return meant(e.Value.Value, d.form(e, path, want, e.Value.Tag == "!!str"))
}

// word returns a reader of one of the few words that a field takes. Package policy checks whether it is one of them.
func word[T ~string](field string) func(decoder, strictyaml.Field, string) (T, *policy.Source) {
	return func(d decoder, e strictyaml.Field, path string) (T, *policy.Source) {
		text, s := d.words(e, path, diag.OneOf(policy.Words(field)))
		return T(text), s
	}
}

// flag reads true or false.
func (d decoder) flag(e strictyaml.Field, path string) (bool, *policy.Source) {
	s := d.form(e, path, "true, or remove the line", e.Value.Tag == "!!bool")
	return !s.Bad && strings.EqualFold(e.Value.Value, "true"), s
}

// no reads false, and returns true for it.
func (d decoder) no(e strictyaml.Field, path string) (bool, *policy.Source) {
	s := d.form(e, path, "false, or remove the line", e.Value.Tag == "!!bool")
	return !s.Bad && strings.EqualFold(e.Value.Value, "false"), s
}

// pause reads whether a scope is paused.
func (d decoder) pause(e strictyaml.Field, path string) (policy.Pause, *policy.Source) {
	paused, s := d.flag(e, path)
	return meant(policy.Pause(strconv.FormatBool(paused)), s)
}

// moment reads a time in RFC 3339. The zero time is a fault.
func (d decoder) moment(e strictyaml.Field, path string) (time.Time, *policy.Source) {
	at, err := time.Parse(time.RFC3339Nano, e.Value.Value)
	return meant(at, d.form(e, path, "a time with its zone, such as 2030-01-31T12:00:00Z", err == nil && !at.IsZero()))
}

// percent reads whole percents. Of a number that is out of range it returns the nearest, which is out of bounds too.
func (d decoder) percent(e strictyaml.Field, path string) (int64, *policy.Source) {
	text, found := strings.CutSuffix(e.Value.Value, "%")
	n, _ := strconv.ParseInt(text, 10, 64)
	return meant(n, d.form(e, path, "whole percents, such as 60%", found && plainNumber(text)))
}

// number reads a whole number in plain digits, as percent does. YAML has many more forms (0x10, 010, 1_000, 1e3), and its readers
// disagree on half of them.
func (d decoder) number(e strictyaml.Field, path string) (int64, *policy.Source) {
	text := e.Value.Value
	s := d.form(e, path, "a whole number in plain digits, such as 100", plainNumber(text))
	if !s.Bad && e.Value.Style != 0 {
		s = d.unlike(e, path, diag.Clip(text)+" without quotes")
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return meant(n, s)
}

func plainNumber(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	return digits[0] != '0' || text == "0"
}

// duration reads a Go duration or whole days.
func (d decoder) duration(e strictyaml.Field, path string) (time.Duration, *policy.Source) {
	const want = "a duration, such as 500ms, 1m, 24h or 30d"
	s, text := d.scalar(e, path, want), diag.Clip(e.Value.Value)
	t, ok := duration.Parse(e.Value.Value)
	isText := e.Value.Tag == "!!str"
	switch {
	case s.Bad || isText && ok:
	case !isText && plainNumber(text) && text[0] != '-':
		s = d.bad(e, path, "is %s, which has no unit; write %ss if seconds are meant", strictyaml.Describe(e.Value), text)
	case isText && strings.Contains(text, "d"):
		s = d.unlike(e, path, want+": days stand alone and are whole")
	default:
		s = d.unlike(e, path, want)
	}
	return meant(t, s)
}
