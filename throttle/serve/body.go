package serve

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/policy"
)

// ask is the body of decide. Its fields are those of a line of enqueue, where both have them.
type ask struct {
	Scope  string `json:"scope"`
	Cost   cost   `json:"cost,omitzero"`
	ID     string `json:"id,omitzero"`
	Wait   span   `json:"wait,omitzero"`
	AtOnce bool   `json:"at_once,omitzero"`
}

// askAndKeep is the body of reserve.
type askAndKeep struct {
	ask
	Keep span `json:"keep,omitzero"`
}

// askLease is the body of lease.
type askLease struct {
	askAndKeep
	Connected bool `json:"connected,omitzero"`
}

// ref names what was reserved or leased: the body of refund, renew and release.
type ref struct {
	Scope string `json:"scope"`
	ID    string `json:"id"`
}

// settlement is the body of settle.
type settlement struct {
	ref
	Cost policy.Costs `json:"cost"`
}

// apiAnswer is the body of report.
type apiAnswer struct {
	Scope   string            `json:"scope"`
	ID      string            `json:"id,omitzero"`
	Status  int               `json:"status,omitzero"`
	Headers map[string]string `json:"headers,omitzero"`
	Body    string            `json:"body,omitzero"`
	Host    string            `json:"host,omitzero"`
	TookMS  int64             `json:"took_ms,omitzero"`
	Failed  bool              `json:"failed,omitzero"`
}

// cost is units under each rule, or by unit.
type cost struct {
	each  int64
	units policy.Costs
}

func (c *cost) UnmarshalJSON(text []byte) error {
	if jsontext.Value(text).Kind() == '{' {
		return json.Unmarshal(text, &c.units)
	}
	if err := json.Unmarshal(text, &c.each); err != nil || c.each > 0 {
		return err
	}
	return errValue
}

// span is a duration as files have it: 10s.
type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, is := duration.Parse(string(text))
	if !is || d < 0 {
		return errValue
	}
	*s = span(d)
	return nil
}

var errValue = errors.New("a value out of its range")

// forms are what to write for a field that cannot be read.
var forms = map[string]string{
	"scope": `"scope": "payments/acme"`, "id": `"id": "inv-1"`, "cost": `"cost": 1, or "cost": {"tokens": 500}`, "wait": `"wait": "10s"`, "keep": `"keep": "1h"`,
	"at_once": `"at_once": true`, "connected": `"connected": true`, "failed": `"failed": true`, "status": `"status": 429`, "took_ms": `"took_ms": 120`,
	"headers": `"headers": {"Retry-After": "30"}`, "body": `"body": "the first 4 KiB of the answer"`, "host": `"host": "api.example.com"`,
}

// formOfSpent is the form of what was spent: each unit has a settlement of its own.
const formOfSpent = `"cost": {"tokens": 500}`

// read reads the body of a request strictly, and checks that its client may use the scope that it names.
func read[B any](r *request, scope func(*B) string) (*B, error) {
	b := new(B)
	if err := json.Unmarshal(r.body, b, json.RejectUnknownMembers(true)); err != nil {
		return nil, unread(err, reflect.TypeFor[B]())
	}
	s, err := policy.ParseScope(scope(b))
	if err != nil {
		return nil, err
	}
	if r.client != nil && !r.client.May(s.String()) {
		return nil, &fault{http.StatusForbidden, "the client " + r.client.Name + " may not use the scope " + diag.Quote(s.String()), "one of its scopes: " + strings.Join(r.client.Scopes, ", ")}
	}
	return b, nil
}

// unread says why a body is not what it should be.
func unread(err error, body reflect.Type) *fault {
	bad := func(try, format string, args ...any) *fault {
		return &fault{http.StatusBadRequest, fmt.Sprintf(format, args...), try}
	}
	if syntax, is := errors.AsType[*jsontext.SyntacticError](err); is {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return bad("each field once", "the field %s is given twice", diag.Quote(diag.Clip(syntax.JSONPointer.LastToken())))
		}
		return bad(`{"scope": "payments/acme"}`, "the body is not JSON at byte %d", syntax.ByteOffset+1)
	}
	semantic, is := errors.AsType[*json.SemanticError](err)
	if !is {
		return bad("", "the body cannot be read")
	}
	field := ""
	for field = range semantic.JSONPointer.Tokens() {
		break
	}
	switch {
	case errors.Is(err, json.ErrUnknownName):
		return bad(diag.Meant(field, fieldsOf(body)), "there is no field %s", diag.Quote(diag.Clip(field)))
	case field == "":
		return bad(`{"scope": "payments/acme"}`, "the body is no JSON object")
	}
	form := forms[field]
	if body == reflect.TypeFor[settlement]() && field == "cost" {
		form = formOfSpent
	}
	return bad(form, "the field %s has a value that cannot be read", field)
}

// fieldsOf are the JSON names of a body's fields.
func fieldsOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}
