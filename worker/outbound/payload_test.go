package outbound

import (
	"errors"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue/httpsyntax"
)

func TestBadPayloadSaysWhichField(t *testing.T) {
	t.Parallel()
	h := handler(t, Config{}, seams{})
	const u = `"url":"http://127.0.0.1:1/"`
	for _, tc := range []struct{ json, field, reason string }{
		{``, "payload", "empty"},
		{`{`, "payload", "not valid JSON"},
		{`{"url":"hush`, "payload", "not valid JSON"},
		{`[]`, "payload", "must be a JSON object"},
		{`{` + u + `} {}`, "payload", "behind"},
		{`{` + u + `} hush`, "payload", "behind"},
		{`{` + u + `,"timeout":"hush"}`, `"timeout"`, "unknown field"},
		{`null`, "url", "missing"},
		{`{}`, "url", "missing"},
		{`{"url":5}`, "url", "must be a string"},
		{`{"url":"/relative?hush"}`, "url", "http://"},
		{`{"url":"http:hush"}`, "url", "no host"},
		{`{"url":"http://user:hush@/"}`, "url", "no host"},
		{`{"url":"http://user:hu/sh@host/"}`, "url", "not a valid URL"},
		{`{"url":"http://host:hush/"}`, "url", "not a valid URL"},
		{`{"url":"http://host/\nhush"}`, "url", "a control character at position 13, in its path; write %0A"},
		{`{"url":"http://127.0.0.1:6379/?x hush"}`, "url", "a space at position 25, in its query; write %20"},
		{`{"url":"http://host/?\"hush\""}`, "url", "a quote at position 14, in its query; write %22"},
		{`{"url":"http://host/\\hush"}`, "url", "a backslash at position 13, in its path; write %5C"},
		{`{"url":"http://ho%20st/hush"}`, "url", "valid"},
		{`{"url":"http://ho;st/hush"}`, "url", "1 to 63 letters"},
		{`{"url":"http://host:0/hush"}`, "url", "port"},
		{`{` + u + `,"method":"hush hush"}`, "method", "not an HTTP method"},
		{`{` + u + `,"method":"GET\r\nX: hush"}`, "method", "not an HTTP method"},
		{`{` + u + `,"method":"CONNECT"}`, "method", "tunnel"},
		{`{` + u + `,"method":"TRACE"}`, "method", "credentials"},
		{`{` + u + `,"method":"get"}`, "method", "upper case: GET"},
		{`{` + u + `,"method":"DEL"}`, "method", "not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS; if it is meant, start the worker with -allow-method NAME"},
		{`{` + u + `,"method":7}`, "method", "must be a string"},
		{`{` + u + `,"body":{"hush":1}}`, "body", "must be a string"},
		{`{` + u + `,"headers":[]}`, "headers", "object"},
		{`{` + u + `,"headers":{"A":1234567}}`, "headers", "strings"},
		{`{` + u + `,"headers":{"Authorization: hush":""}}`, "headers", "of 19 bytes"},
		{`{` + u + `,"headers":{"":"hush"}}`, "headers", "of 0 bytes"},
		{`{` + u + `,"headers":{"A\r\nB":"hush"}}`, "headers", "not a header name"},
		{`{` + u + `,"headers":{"X-A":"hush\r\nB: c"}}`, `headers["X-A"]`, "control character"},
		{`{` + u + `,"headers":{"X-A":"hush\u0000"}}`, `headers["X-A"]`, "control character"},
		{`{` + u + `,"headers":{"X-A":"hush\u007f"}}`, `headers["X-A"]`, "control character"},
		{`{` + u + `,"headers":{"X-A":"hush","x-a":"hush"}}`, `headers["x-a"]`, "twice"},
		{`{` + u + `,"headers":{"Host":"a","host":"a"}}`, `headers["host"]`, "twice"},
		{`{` + u + `,"headers":{"Host":""}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"Host":"hush@a"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"Host":"a:hush"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"content-length":"hush"}}`, `headers["content-length"]`, "set from the body"},
		{`{` + u + `,"headers":{"Transfer-Encoding":"hush"}}`, `headers["Transfer-Encoding"]`, "set from the body"},
		{`{` + u + `,"headers":{"Connection":"hush"}}`, `headers["Connection"]`, "belongs to the connection"},
		{`{` + u + `,"headers":{"upgrade":"hush"}}`, `headers["upgrade"]`, "belongs to the connection"},
		{`{` + u + `,"headers":{"Proxy-Authorization":"hush"}}`, `headers["Proxy-Authorization"]`, "none is used"},
		{`{` + u + `,"headers":{"Trailer":"hush"}}`, `headers["Trailer"]`, "no trailers"},
		{`{` + u + `,"headers":{"Expect":"hush"}}`, `headers["Expect"]`, "sent at once"},
	} {
		err := h.ProcessTask(t.Context(), asynq.NewTask("http", []byte(tc.json)))
		var bad *PayloadError
		if !errors.As(err, &bad) {
			t.Errorf("%s: err = %v", tc.json, err)
			continue
		}
		wantPermanent(t, err, true)
		if bad.Field != tc.field || !strings.Contains(bad.Reason, tc.reason) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", tc.json, err)
		}
	}
}

func TestGoodPayloads(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"url":"http://a"}`,
		`{"url":"HTTPS://A:443/x?y#z","method":"M-SEARCH","headers":null,"body":""}`,
		`{"url":"http://[::1]:80/"}`,
		`{"url":"http://bücher.example/"}`,
		`{"url":"http://a_b.example:/"}`,
		`{"url":"http://a","headers":{"Host":"[::1]:80","X-Empty":"","X-Tab":"a\tb","X-Latin":"é"}}`,
	} {
		if _, err := parseCall([]byte(text), httpsyntax.Methods{"M-SEARCH"}, nil, "ua"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// No payload makes the parser panic or quote what it was given.
func FuzzParseCall(f *testing.F) {
	f.Add([]byte(`{"url":"http://u:p@h/p?q#f","method":"GET","headers":{"A":"b"},"body":"{\"a\":\"bcdef\"}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCall(data, nil, nil, "ua")
		if err != nil {
			var bad *PayloadError
			if !errors.As(err, &bad) || strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := c.hide(t.Context(), string(data), false); err != nil && c.secretBytes() <= maxSecret {
			t.Error(err)
		}
	})
}

// "Methods that tasks may have": those of RFC 9110 but CONNECT and TRACE, PATCH, and those that
// the configuration names. Of any other not a byte is sent: it may be a command to a server
// that does not speak HTTP, as DEL is to Redis.
func TestMethodsAreAList(t *testing.T) {
	t.Parallel()
	s := listen(t, always("HTTP/1.1 204 No Content\r\n\r\n"))
	plain, more := handler(t, Config{}, seams{}), handler(t, Config{AllowMethods: []string{"PROPFIND"}}, seams{})
	sent := int64(0)
	for _, method := range []string{"", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		sent++
		if err := run(t, plain, payload{Method: method, URL: s.url}); err != nil || s.requests.Load() != sent {
			t.Errorf("%s: %v, %d requests", method, err, s.requests.Load())
		}
	}
	conns := s.conns.Load()
	for _, method := range []string{"DEL", "SET", "get", "PROPFIND", "CONNECT", "TRACE", "connect"} {
		err := run(t, plain, payload{Method: method, URL: s.url + "/?x"})
		var bad *PayloadError
		if !errors.As(err, &bad) || bad.Field != "method" {
			t.Errorf("%s: %v", method, err)
		}
		wantPermanent(t, err, true)
	}
	if s.requests.Load() != sent || s.conns.Load() != conns {
		t.Errorf("%d requests, %d connections", s.requests.Load()-sent, s.conns.Load()-conns)
	}
	if err := run(t, more, payload{Method: "PROPFIND", URL: s.url}); err != nil {
		t.Error(err)
	}
	if err := run(t, more, payload{Method: "LOCK", URL: s.url}); err == nil || !strings.Contains(err.Error(), "OPTIONS, PROPFIND; if it is meant") {
		t.Error(err)
	}
	for _, name := range []string{"CONNECT", "TRACE", "A B", ""} {
		if _, err := New(Config{AllowMethods: []string{name}}); err == nil || !strings.Contains(err.Error(), "outbound: allow method ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
