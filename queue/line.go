package queue

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headway-go/headway/throttle/policy"
)

// MaxLine is the maximum length of a line in bytes.
const MaxLine = 1 << 20

const lineFields = "type, scope, id, cost, queue, max_retry, delay, timeout, deadline, max_wait, priority, http, payload"

// ParseLine parses a task from one line of NDJSON:
//
//	{"type":"http","id":"inv-1","scope":"payments/acme","http":{"url":"https://api.example.com/charge"}}
//
// It is strict, so that a mistake costs a message and not a task. It refuses unknown and repeated
// fields, wrong types, numbers and durations out of range, unpaired surrogates, and a second value
// after the object. Absent fields stay zero in the Task. The error is an *InvalidError with every
// fault; the Task then has only ID and Queue, if the line has valid ones.
func ParseLine(line []byte) (Task, error) { return parseLine(line, time.Now()) }

func parseLine(line []byte, now time.Time) (Task, error) {
	var found faults
	if len(line) > MaxLine {
		found.add("", "longer than %d bytes", MaxLine)
		return Task{}, found.err()
	}
	if !utf8.Valid(line) {
		found.add("", "not valid UTF-8")
		return Task{}, found.err()
	}
	obj, reason := object(line)
	if reason != "" {
		found.add("", "%s", reason)
		return Task{}, found.err()
	}
	d := decoder{}
	t := d.task(obj)
	if found = t.validate(now, d.found); len(found) > 0 {
		return found.named(t), found.err()
	}
	return t, nil
}

// named returns a Task with only the fields by which a report names a refused task, if they are valid.
func (f faults) named(t Task) (name Task) {
	if !f.has("id") {
		name.ID = t.ID
	}
	if !f.has("queue") {
		name.Queue = t.Queue
	}
	return name
}

// AppendLine appends the task as one line of NDJSON, without the newline, and returns the extended
// slice. ParseLine reads an equal task back, apart from Remember, which a line does not hold. The
// error is an *InvalidError.
func (t Task) AppendLine(dst []byte) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(dst, '{')
	for _, field := range t.lineFields() {
		value, err := encodeJSON(field.value)
		if err != nil {
			return dst[:start], err
		}
		dst = fmt.Appendf(dst, "%q:", field.name)
		dst = append(dst, value...)
		dst = append(dst, ',')
	}
	if t.Payload != nil {
		dst = append(dst, `"payload":`...)
		dst = append(dst, onOneLine(t.Payload)...)
		dst = append(dst, ',')
	}
	dst[len(dst)-1] = '}'
	if n := len(dst) - start; n > MaxLine {
		found := faults{}
		found.add("", "a line of %d bytes; %d at most", n, MaxLine)
		return dst[:start], found.err()
	}
	return dst, nil
}

type lineField struct {
	name  string
	value any
}

// lineFields returns the fields that are not zero, in the order of the manual.
func (t Task) lineFields() []lineField {
	fields := []lineField{{"type", t.Type}}
	put := func(present bool, name string, value any) {
		if present {
			fields = append(fields, lineField{name, value})
		}
	}
	put(t.ID != "", "id", t.ID)
	put(true, "scope", t.Scope)
	put(t.Cost != 0, "cost", t.Cost)
	put(len(t.Costs) > 0, "cost", t.Costs)
	put(t.Queue != "", "queue", t.Queue)
	put(t.MaxRetry != nil, "max_retry", t.MaxRetry)
	put(t.Delay != 0, "delay", t.Delay.String())
	put(t.Timeout != 0, "timeout", t.Timeout.String())
	put(!t.Deadline.IsZero(), "deadline", t.Deadline.UTC().Format(time.RFC3339Nano))
	put(t.MaxWait != 0, "max_wait", t.MaxWait.String())
	put(t.Priority != 0, "priority", t.Priority)
	put(t.HTTP != nil, "http", t.HTTP)
	return fields
}

// onOneLine replaces the newlines between a payload's tokens, the only ones that valid JSON can hold,
// by spaces.
func onOneLine(payload []byte) []byte {
	if !bytes.ContainsAny(payload, "\r\n") {
		return payload
	}
	return bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, payload)
}

// decoder decodes the members of a line into fields and collects every fault.
type decoder struct{ found faults }

func (d *decoder) task(obj []byte) Task {
	var t Task
	d.each("", obj, func(name string, value []byte) {
		switch name {
		case "type":
			t.Type = d.text(name, value)
		case "scope":
			t.Scope = d.text(name, value)
		case "id":
			t.ID = d.text(name, value)
		case "cost":
			t.Cost, t.Costs = d.cost(name, value)
		case "queue":
			t.Queue = d.text(name, value)
		case "max_retry":
			t.MaxRetry = Retries(int(d.number(name, value, 0, MaxRetries)))
		case "delay":
			t.Delay = d.duration(name, value)
		case "timeout":
			if t.Timeout = d.duration(name, value); t.Timeout == 0 && !d.found.has(name) {
				d.found.add(name, "0 leaves no time to run; leave it out for the default")
			}
		case "deadline":
			t.Deadline = d.time(name, value)
		case "max_wait":
			t.MaxWait = d.duration(name, value)
		case "priority":
			t.Priority = int(d.number(name, value, -MaxPriority, MaxPriority))
		case "http":
			t.HTTP = d.http(name, value)
		case "payload":
			t.Payload = bytes.Clone(value)
		default:
			d.found.add("", "unknown field %q; a line has %s", clip(name), lineFields)
		}
	})
	return t
}

func (d *decoder) http(field string, value []byte) *HTTP {
	if !d.is(field, value, '{', "an object") {
		return nil
	}
	h := &HTTP{}
	d.each(field, value, func(name string, value []byte) {
		switch name {
		case "method":
			h.Method = d.text("http.method", value)
		case "url":
			h.URL = d.text("http.url", value)
		case "headers":
			h.Headers = d.headers("http.headers", value)
		case "body":
			h.Body = d.body("http.body", value)
		default:
			d.found.add(field, "unknown field %q; http has method, url, headers, body", clip(name))
		}
	})
	return h
}

func (d *decoder) headers(field string, value []byte) map[string]string {
	var headers map[string]string
	if !d.is(field, value, '{', "an object of strings") {
		return nil
	}
	d.each(field, value, func(name string, value []byte) {
		if headers == nil {
			headers = make(map[string]string)
		}
		headers[name] = d.body(field, value)
	})
	return headers
}

// each calls f once for every member of an object. A repeated name is a fault.
func (d *decoder) each(field string, obj []byte, f func(name string, value []byte)) {
	var seen nameSet
	members(obj, func(quoted, value []byte) {
		name, reason := fieldName(quoted)
		switch {
		case reason != "":
			d.found.add(field, "a field's name: %s", reason)
		case seen.add(name):
			f(name, value)
		default:
			d.found.add(field, "field %q stands there twice", clip(name))
		}
	})
}

// fieldNames holds the names of all known fields, so that a name is not allocated again for each line.
var fieldNames = func() map[string]string {
	names := map[string]string{}
	for name := range strings.SplitSeq(lineFields+", method, url, headers, body", ", ") {
		names[strconv.Quote(name)] = name
	}
	return names
}()

func fieldName(quoted []byte) (name, reason string) {
	if name, ok := fieldNames[string(quoted)]; ok {
		return name, ""
	}
	return unquote(quoted)
}

// is reports whether a value begins as its kind does, and adds a fault if it does not.
func (d *decoder) is(field string, value []byte, first byte, want string) bool {
	if value[0] == first {
		return true
	}
	d.found.add(field, "want %s, got %s", want, kindOf(value))
	return false
}

// body reads a string, which may be empty.
func (d *decoder) body(field string, value []byte) string {
	if !d.is(field, value, '"', "a string") {
		return ""
	}
	text, reason := unquote(value)
	if reason != "" {
		d.found.add(field, "%s", reason)
	}
	return text
}

// text reads a string that is not empty.
func (d *decoder) text(field string, value []byte) string {
	text := d.body(field, value)
	if text == "" && !d.found.has(field) {
		d.found.add(field, "empty; leave it out where it has a default")
	}
	return text
}

// cost reads a number, or an object of numbers by unit.
func (d *decoder) cost(field string, value []byte) (int64, policy.Costs) {
	if value[0] != '{' {
		return d.number(field, value, 1, MaxCost), nil
	}
	costs := policy.Costs{}
	d.each(field, value, func(unit string, value []byte) {
		before := len(d.found)
		costs[unit] = d.number(field, value, 0, MaxCost)
		for i := range d.found[before:] {
			d.found[before+i].Reason = fmt.Sprintf("of %q: %s", clip(unit), d.found[before+i].Reason)
		}
	})
	return 0, costs
}

// number reads a whole number that is written in digits.
func (d *decoder) number(field string, value []byte, low, high int64) int64 {
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		d.found.add(field, "want a whole number, got %s", kindOf(value))
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	switch {
	case bytes.ContainsAny(value, ".eE"):
		d.found.add(field, "%s is not a whole number in plain digits, such as 1000", clip(value))
	case value[0] == '-' && (err != nil || n < low):
		d.found.add(field, "%s is below %d", clip(value), low)
	case err != nil:
		d.found.add(field, "%s is above %d", clip(value), high)
	default:
		checkRange(n, low, high, func(format string, args ...any) { d.found.add(field, format, args...) })
	}
	return n
}

func (d *decoder) duration(field string, value []byte) time.Duration {
	if !d.is(field, value, '"', "a string such as \"90s\"") {
		return 0
	}
	text, reason := unquote(value)
	if reason != "" {
		d.found.add(field, "%s", reason)
		return 0
	}
	span, err := ParseDuration(text)
	if err != nil {
		d.found.add(field, "%v", err)
		return 0
	}
	return span
}

func (d *decoder) time(field string, value []byte) time.Time {
	text := d.text(field, value)
	if d.found.has(field) {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.IsZero() {
		d.found.add(field, "%q is not an RFC 3339 time, such as 2030-01-31T12:00:00Z", clip(text))
		return time.Time{}
	}
	return at.UTC()
}
