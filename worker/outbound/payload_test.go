package outbound

import (
	"errors"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

func TestBadPayloadSaysWhichField(t *testing.T) {
	t.Parallel()
	h := handler(t, Config{}, seams{})
	const u = `"url":"http://127.0.0.1:1/"`
	for _, tc := range []struct{ json, field, reason string }{
		{``, "payload", "empty"},
		{` `, "payload", "empty"},
		{`{`, "payload", "not valid JSON"},
		{`{"url":"hush`, "payload", "not valid JSON"},
		{`[]`, "payload", "must be a JSON object"},
		{`"hush"`, "payload", "must be a JSON object"},
		{`{` + u + `} {}`, "payload", "behind"},
		{`{` + u + `} hush`, "payload", "behind"},
		{`{` + u + `,"timeout":"hush"}`, `"timeout"`, "unknown field"},
		{`null`, "url", "missing"},
		{`{}`, "url", "missing"},
		{`{"url":5}`, "url", "must be a string"},
		{`{"url":"/relative?hush"}`, "url", "http://"},
		{`{"url":"ftp://hush/"}`, "url", "http://"},
		{`{"url":"http:hush"}`, "url", "no host"},
		{`{"url":"http:///hush"}`, "url", "no host"},
		{`{"url":"http://:80/hush"}`, "url", "no host"},
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
		{`{"url":"http://host:65536/hush"}`, "url", "port"},
		{`{"url":"http://host:99999999999999999999/hush"}`, "url", "port"},
		{`{` + u + `,"method":"hush hush"}`, "method", "not a valid HTTP method"},
		{`{` + u + `,"method":"GET\r\nX: hush"}`, "method", "not a valid HTTP method"},
		{`{` + u + `,"method":"CONNECT"}`, "method", "tunnel"},
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
		{`{` + u + `,"headers":{"Host":"a/hush"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"Host":"a hush"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"Host":"a:hush"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"content-length":"hush"}}`, `headers["content-length"]`, "set from the body"},
		{`{` + u + `,"headers":{"Transfer-Encoding":"hush"}}`, `headers["Transfer-Encoding"]`, "set from the body"},
		{`{` + u + `,"headers":{"Connection":"hush"}}`, `headers["Connection"]`, "belongs to the connection"},
		{`{` + u + `,"headers":{"TE":"hush"}}`, `headers["TE"]`, "belongs to the connection"},
		{`{` + u + `,"headers":{"upgrade":"hush"}}`, `headers["upgrade"]`, "belongs to the connection"},
		{`{` + u + `,"headers":{"Keep-Alive":"hush"}}`, `headers["Keep-Alive"]`, "belongs to the connection"},
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
		if _, err := parseCall([]byte(text), "ua"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// No payload makes the parser panic or quote what it was given.
func FuzzParseCall(f *testing.F) {
	f.Add([]byte(`{"url":"http://u:p@h/p?q#f","method":"GET","headers":{"A":"b"},"body":"{\"a\":\"bcdef\"}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCall(data, "ua")
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
