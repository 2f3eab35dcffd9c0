package outbound

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// payload is the JSON of a task of type http.
type payload struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// call is a valid payload: all that is needed to send it, to name it, and to know its secrets.
type call struct {
	method string
	url    *url.URL // without userinfo and fragment
	host   string   // of a Host header, or empty
	header http.Header
	body   string

	source payload  // for secrets
	parsed *url.URL // for secrets
	given  []string // secrets that the payload refers to
}

// PayloadError says that a task's payload is not a valid request. Nothing was sent, and no retry will
// cure it: it is returned with asynq.SkipRetry. It never quotes values of the payload.
type PayloadError struct {
	Field  string // "payload", "method", "url", "body", "headers" or headers["Name"]
	Reason string
}

func (e *PayloadError) Error() string {
	return fmt.Sprintf("outbound: bad payload: %s: %s", e.Field, e.Reason)
}

// parse reads the payload of a task that was granted a pool's member, "" for none.
func (h *Handler) parse(data []byte, member string) (*call, error) {
	p, err := decode(data)
	if err != nil {
		return nil, err
	}
	given, err := h.secrets.resolve(&p, member)
	if err != nil {
		return nil, err
	}
	c := &call{method: cmp.Or(p.Method, http.MethodGet), body: p.Body, source: p, given: given}
	if reason := httpsyntax.Methods(h.cfg.AllowMethods).Fault(c.method); reason != "" {
		return nil, &PayloadError{"method", reason}
	}
	if err := c.parseURL(p.URL); err != nil {
		return nil, err
	}
	if err := c.parseHeaders(p.Headers); err != nil {
		return nil, err
	}
	if _, set := c.header["User-Agent"]; !set {
		c.header["User-Agent"] = []string{h.cfg.UserAgent}
	}
	if user := c.parsed.User; user != nil && c.header.Get("Authorization") == "" {
		password, _ := user.Password()
		c.header["Authorization"] = []string{"Basic " + basicAuth(user.Username(), password)}
	}
	return c, nil
}

// decode is strict: one JSON object, known fields, each once. Its errors quote no value.
func decode(data []byte) (p payload, _ error) {
	err := json.Unmarshal(data, &p, json.RejectUnknownMembers(true))
	if err == nil {
		return p, nil
	}
	wrong, ok := errors.AsType[*json.SemanticError](err)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return p, &PayloadError{"payload", "has a field or a header twice"}
	case !ok || wrong.JSONPointer == "":
		return p, &PayloadError{"payload", `is not one JSON object, such as {"url":"https://…"}`}
	case errors.Is(err, json.ErrUnknownName):
		return p, &PayloadError{strconv.Quote(clean(wrong.JSONPointer.LastToken(), 64)), "unknown field; the fields are method, url, headers and body"}
	case strings.HasPrefix(string(wrong.JSONPointer), "/headers"):
		return p, &PayloadError{"headers", "must be an object whose values are strings"}
	}
	return p, &PayloadError{wrong.JSONPointer.LastToken(), "must be a string"}
}

// parseURL never quotes the URL: in a mistyped one a password may be in the wrong place.
func (c *call) parseURL(text string) error {
	u, fault := httpsyntax.ParseURL(text)
	if fault != "" {
		return &PayloadError{"url", fault}
	}
	c.parsed = u
	bare := *u
	bare.User, bare.Fragment, bare.RawFragment = nil, "", ""
	c.url = &bare
	return nil
}

func (c *call) parseHeaders(headers map[string]string) error {
	if faults := httpsyntax.HeaderFaults(headers); len(faults) > 0 {
		return &PayloadError{headerField(faults[0].Name), faults[0].Reason}
	}
	c.header = make(http.Header, len(headers)+2)
	for name, value := range headers {
		switch key := http.CanonicalHeaderKey(name); {
		case key != "Host":
			c.header[key] = []string{value}
		case !validHostHeader(value):
			return &PayloadError{headerField(name), "must be HOST or HOST:PORT"}
		default:
			c.host = value
		}
	}
	return nil
}

// headerField names a header in a PayloadError, all of them for "".
func headerField(name string) string {
	if name == "" {
		return "headers"
	}
	return fmt.Sprintf("headers[%q]", clean(name, 64))
}

// add adds the headers of Config.Headers, except those that the task has and those that no task may have.
func (c *call) add(more func(http.Header)) {
	added := http.Header{}
	more(added)
	for key, values := range added {
		key = http.CanonicalHeaderKey(key)
		if _, set := c.header[key]; !set && key != "Host" && len(values) > 0 && httpsyntax.HeaderFault(key, values[0]) == "" {
			c.header[key] = values[:1]
		}
	}
}

// TraceContext is a Config.Headers that sends the W3C trace context of a task on: its task headers traceparent and tracestate, as
// package worker/oteltask, enqueue or another program has set them at enqueue. The called API then belongs to the trace of the
// program that enqueued. A malformed context is not sent.
func TraceContext(_ context.Context, t *asynq.Task, header http.Header) {
	parent, state := t.Headers()[httpsyntax.Traceparent], t.Headers()[httpsyntax.Tracestate]
	if !httpsyntax.ValidTraceparent(parent) {
		return
	}
	header.Set(httpsyntax.Traceparent, parent)
	if state != "" && httpsyntax.ValidTracestate(state) {
		header.Set(httpsyntax.Tracestate, state)
	}
}

// request returns the request, bound to ctx.
func (c *call) request(ctx context.Context) *http.Request {
	req := &http.Request{
		Method: c.method, URL: c.url, Host: c.host, Header: c.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if c.body != "" {
		// GetBody serves the one harmless repetition: after a kept connection that accepted no byte. See permit.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(c.body)), nil }
		req.Body, _ = req.GetBody()
		req.ContentLength = int64(len(c.body))
	}
	return req.WithContext(ctx)
}

// target is the only name by which errors refer to a request: "POST https://host/path", without the
// parts of the path that look like a key.
func (c *call) target() string {
	return clean(c.method, 32) + " " + clean(c.url.Scheme+"://"+c.url.Host+shownPath(c.url.EscapedPath(), c.given), 300)
}

func basicAuth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}
