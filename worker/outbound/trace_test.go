package outbound

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// "A malformed context is not sent."
func TestTraceContext(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ parent, state, wantParent, wantState string }{
		"none":          {"", "", "", ""},
		"both":          {parent, "vendor=1", parent, "vendor=1"},
		"without state": {parent, "", parent, ""},
		"state alone":   {"", "vendor=1", "", ""},
		"long state":    {parent, "a=" + strings.Repeat("a", 254) + ",b=" + strings.Repeat("a", 254), parent, ""},
		"no state":      {parent, "of no vendor", parent, ""},
		"later version": {"01" + parent[2:] + "-more", "", "01" + parent[2:] + "-more", ""},
		"longer":        {parent + "-more", "", "", ""},
		"upper case":    {strings.ToUpper(parent), "", "", ""},
		"no trace":      {"00-" + strings.Repeat("0", 32) + parent[35:], "", "", ""},
		"no span":       {parent[:36] + strings.Repeat("0", 16) + "-01", "", "", ""},
		"short":         {parent[:54], "", "", ""},
		"version ff":    {"ff" + parent[2:], "", "", ""},
		"injected":      {parent + "\r\nX-Evil: 1", "", "", ""},
	} {
		header := http.Header{}
		TraceContext(t.Context(), asynq.NewTaskWithHeaders("http", nil, map[string]string{"traceparent": tt.parent, "tracestate": tt.state}), header)
		if header.Get("Traceparent") != tt.wantParent || header.Get("Tracestate") != tt.wantState {
			t.Errorf("%s: %v", name, header)
		}
	}
}

// "A header that the task itself names stays as it is."
func TestHeadersAreAdded(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r }))
	defer s.Close()
	h := handler(t, Config{Headers: func(ctx context.Context, t *asynq.Task, header http.Header) {
		TraceContext(ctx, t, header)
		header["x-tenant"] = []string{"of the hook"}
		header["Host"] = []string{"elsewhere.example"}
		header["Transfer-Encoding"] = []string{"chunked"}
		header["X-Broken"] = []string{"a\r\nb: c"}
		header["X-None"] = nil
	}}, seams{})
	plain := task(t, payload{URL: s.URL, Headers: map[string]string{"X-Tenant": "acme"}})
	traced := asynq.NewTaskWithHeaders(plain.Type(), plain.Payload(), map[string]string{"traceparent": parent})
	must(t, h.ProcessTask(t.Context(), traced))
	r := <-got
	if r.Header.Get("Traceparent") != parent || r.Header.Get("X-Tenant") != "acme" || r.Host != s.Listener.Addr().String() ||
		len(r.TransferEncoding) != 0 || r.Header["X-Broken"] != nil || r.Header["X-None"] != nil {
		t.Errorf("%s %v", r.Host, r.Header)
	}
}
