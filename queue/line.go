package queue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/policy"
)

// MaxLine is the maximum length of a line in bytes.
const MaxLine = 1 << 20

const lineFields = "type, scope, id, cost, queue, max_retry, delay, timeout, deadline, max_wait, priority, http, payload"

// ParseLine parses a task from one line of NDJSON:
//
//	{"type":"http","id":"inv-1","scope":"payments/acme","http":{"url":"https://api.example.com/charge"}}
//
// It is strict, so that a mistake costs a message and not a task. It refuses unknown and repeated fields, wrong types, numbers
// and durations out of range, text that is not valid UTF-8, and anything after the object. Absent fields stay zero in the Task.
// The error is an *InvalidError: what is no JSON, or repeats a field, is one fault, and otherwise every fault is listed; the Task
// then has only ID and Queue, if the line has valid ones.
func ParseLine(line []byte) (Task, error) {
	if len(line) > MaxLine {
		return Task{}, &InvalidError{[]Fault{{Reason: fmt.Sprintf("longer than %d bytes", MaxLine)}}}
	}
	parser, _ := parsers.Get().(*jsontext.Decoder)
	defer parsers.Put(parser)
	parser.Reset(bytes.NewBuffer(line)) // which it reads without a copy
	d := decoder{json: parser}
	t, isObject := d.line()
	switch {
	case d.err != nil:
		return Task{}, &InvalidError{[]Fault{syntaxFault(d.err)}}
	case !isObject:
		return Task{}, d.found.err()
	}
	if found := t.validate(time.Now(), d.found); len(found) > 0 {
		return found.named(t), found.err()
	}
	return t, nil
}

var parsers = sync.Pool{New: func() any { return jsontext.NewDecoder(&bytes.Buffer{}) }}

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

// syntaxFault returns the fault of a line that is not JSON, or that has a name twice.
func syntaxFault(err error) Fault {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return Fault{Reason: "not JSON: " + err.Error()}
	case errors.Is(err, jsontext.ErrDuplicateName):
		object, name := syntax.JSONPointer.Parent(), syntax.JSONPointer.LastToken()
		return Fault{
			Field:  diag.Clip(strings.Join(slices.Collect(object.Tokens()), ".")),
			Reason: fmt.Sprintf("field %q is given twice", diag.Clip(name)),
		}
	}
	return Fault{Reason: fmt.Sprintf("not JSON at byte %d: %v", syntax.ByteOffset+1, syntax.Err)}
}

// taskLine is the JSON of a line, apart from the payload.
type taskLine struct {
	Type     string `json:"type"`
	ID       string `json:"id,omitzero"`
	Scope    string `json:"scope"`
	Cost     any    `json:"cost,omitzero"`
	Queue    string `json:"queue,omitzero"`
	MaxRetry *int   `json:"max_retry,omitzero"`
	Delay    string `json:"delay,omitzero"`
	Timeout  string `json:"timeout,omitzero"`
	Deadline string `json:"deadline,omitzero"`
	MaxWait  string `json:"max_wait,omitzero"`
	Priority int    `json:"priority,omitzero"`
	HTTP     *HTTP  `json:"http,omitzero"`
}

// AppendLine appends the task as one line of NDJSON, without the newline, and returns the extended slice. ParseLine reads an
// equal task back, apart from Remember, which a line does not hold. The error is an *InvalidError.
func (t Task) AppendLine(dst []byte) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return dst, err
	}
	line := taskLine{
		Type: t.Type, ID: t.ID, Scope: t.Scope, Queue: t.Queue, MaxRetry: t.MaxRetry,
		Delay: text(t.Delay), Timeout: text(t.Timeout), MaxWait: text(t.MaxWait), Priority: t.Priority, HTTP: t.HTTP,
	}
	switch {
	case len(t.Costs) > 0:
		line.Cost = t.Costs
	case t.Cost != 0:
		line.Cost = t.Cost
	}
	if !t.Deadline.IsZero() {
		line.Deadline = t.Deadline.UTC().Format(time.RFC3339Nano)
	}
	text, err := encodeJSON(line)
	if err != nil {
		return dst, err
	}
	if t.Payload != nil { // as it stands: json.Marshal would write it in another way
		text = append(text[:len(text)-1], `,"payload":`...)
		text = append(append(text, onOneLine(t.Payload)...), '}')
	}
	if len(text) > MaxLine {
		return dst, &InvalidError{[]Fault{{Reason: fmt.Sprintf("a line of %d bytes; %d at most", len(text), MaxLine)}}}
	}
	return append(dst, text...), nil
}

func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// onOneLine replaces the newlines between a payload's tokens, the only ones that valid JSON can hold, by spaces.
func onOneLine(payload []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(payload, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
}

// decoder decodes one line and collects every fault of its fields. err, what is no JSON, ends it.
type decoder struct {
	json  *jsontext.Decoder
	found faults
	err   error
}

func (d *decoder) line() (t Task, isObject bool) {
	isObject = d.each("", "one JSON object", func(name string) { d.field(&t, name) })
	if _, err := d.json.ReadToken(); !errors.Is(err, io.EOF) {
		d.fail(errors.New("something follows the object"))
	}
	return t, isObject
}

func (d *decoder) field(t *Task, name string) {
	switch name {
	case "type":
		t.Type = d.text(name)
	case "scope":
		t.Scope = d.text(name)
	case "id":
		t.ID = d.text(name)
	case "cost":
		t.Cost, t.Costs = d.cost(name)
	case "queue":
		t.Queue = d.text(name)
	case "max_retry":
		t.MaxRetry = Retries(int(d.number(name, 0, MaxRetries)))
	case "delay":
		t.Delay = d.duration(name)
	case "timeout":
		if t.Timeout = d.duration(name); t.Timeout == 0 && !d.found.has(name) {
			d.found.add(name, "0 leaves no time to run; leave it out for the default")
		}
	case "deadline":
		t.Deadline = d.time(name)
	case "max_wait":
		t.MaxWait = d.duration(name)
	case "priority":
		t.Priority = int(d.number(name, -MaxPriority, MaxPriority))
	case "http":
		t.HTTP = &HTTP{}
		if !d.each(name, "an object", func(part string) { d.httpField(t.HTTP, part) }) {
			t.HTTP = nil
		}
	case "payload":
		// The handler gets it as it stands, so it may repeat names.
		d.fail(json.UnmarshalDecode(d.json, (*jsontext.Value)(&t.Payload), jsontext.AllowDuplicateNames(true)))
	default:
		d.found.add("", "unknown field %q; a line has %s", diag.Clip(name), lineFields)
		d.value()
	}
}

func (d *decoder) httpField(h *HTTP, name string) {
	switch name {
	case "method":
		h.Method = d.text("http.method")
	case "url":
		h.URL = d.text("http.url")
	case "headers":
		headers := map[string]string{}
		if d.each("http.headers", "an object of strings", func(name string) { headers[name] = d.string("http.headers") }); len(headers) > 0 {
			h.Headers = headers
		}
	case "body":
		h.Body = d.string("http.body")
	default:
		d.found.add("http", "unknown field %q; http has method, url, headers, body", diag.Clip(name))
		d.value()
	}
}

// cost reads a number, or an object of numbers by unit.
func (d *decoder) cost(field string) (int64, policy.Costs) {
	if d.json.PeekKind() != jsontext.KindBeginObject {
		return d.number(field, 1, MaxCost), nil
	}
	costs := policy.Costs{}
	d.each(field, "", func(unit string) { costs[unit] = d.number(field+"."+diag.Clip(unit), 0, MaxCost) })
	return 0, costs
}

// each calls f with the name of each member of the object that comes next; f reads the value. It
// returns false if no object comes next.
func (d *decoder) each(field, want string, f func(name string)) bool {
	if !d.is(field, jsontext.KindBeginObject, want) {
		return false
	}
	d.token()
	for d.err == nil {
		token := d.token()
		if d.err != nil || token.Kind() == jsontext.KindEndObject {
			break
		}
		f(token.String())
	}
	return true
}

// is reports whether a value of a kind comes next. If not, it adds a fault and skips the value.
func (d *decoder) is(field string, kind jsontext.Kind, want string) bool {
	got := d.json.PeekKind()
	if got == kind {
		return true
	}
	d.value()
	d.found.add(field, "want %s, got %s", want, kindNames[got])
	return false
}

var kindNames = map[jsontext.Kind]string{
	jsontext.KindBeginObject: "an object", jsontext.KindBeginArray: "a list", jsontext.KindString: "a string", jsontext.KindNumber: "a number",
	jsontext.KindTrue: "true", jsontext.KindFalse: "false", jsontext.KindNull: "null",
}

func (d *decoder) token() jsontext.Token {
	token, err := d.json.ReadToken()
	d.fail(err)
	return token
}

// value reads any value. It can be used until the next one is read.
func (d *decoder) value() jsontext.Value {
	value, err := d.json.ReadValue()
	d.fail(err)
	return value
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// string reads a string, which may be empty.
func (d *decoder) string(field string) string {
	if !d.is(field, jsontext.KindString, "a string") {
		return ""
	}
	return d.token().String()
}

// text reads a string that is not empty.
func (d *decoder) text(field string) string {
	text := d.string(field)
	if text == "" && !d.found.has(field) {
		d.found.add(field, "empty; leave it out where it has a default")
	}
	return text
}

// number reads a whole number that is written in digits.
func (d *decoder) number(field string, low, high int64) int64 {
	if !d.is(field, jsontext.KindNumber, "a whole number") {
		return 0
	}
	text := string(d.value())
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case strings.ContainsAny(text, ".eE"):
		such := "1000"
		if field == "cost."+policy.USD {
			such = "20000 for 2 cents"
		}
		d.found.add(field, "%s is not a whole number in plain digits, such as %s", diag.Clip(text), such)
	case err != nil && strings.HasPrefix(text, "-"):
		d.found.add(field, "%s is below %d", diag.Clip(text), low)
	case err != nil:
		d.found.add(field, "%s is above %d", diag.Clip(text), high)
	default:
		if reason := rangeFault(n, low, high); reason != "" {
			d.found.add(field, "%s", reason)
		}
	}
	return n
}

func (d *decoder) duration(field string) time.Duration {
	if !d.is(field, jsontext.KindString, "a string such as \"90s\"") {
		return 0
	}
	span, err := ParseDuration(d.token().String())
	if err != nil {
		d.found.add(field, "%v", err)
	}
	return span
}

func (d *decoder) time(field string) time.Time {
	text := d.text(field)
	if d.found.has(field) {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.IsZero() {
		d.found.add(field, "%q is not an RFC 3339 time, such as 2030-01-31T12:00:00Z", diag.Clip(text))
		return time.Time{}
	}
	return at.UTC()
}
