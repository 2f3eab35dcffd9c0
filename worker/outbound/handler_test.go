package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/programs"
)

func TestNewListsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := New(Config{
		AllowHosts: []string{"http://a", "ok", "::1"}, OnlyHosts: []string{"*.a", "a"}, DenyCIDRs: []string{"x", "10.0.0.1"}, Ports: []int{0, 80, 65536},
		AllowMethods: []string{"CONNECT", "TRACE", "A B", ""}, UserAgent: "a\nb",
		Secrets: []string{"env:KEY", "KEY@api.example.com", "env:@a", "file:{}@a", "env:KEY@a/b", "env:KEY@"},
	})
	for _, want := range []string{
		`"http://a"`, `"::1"`, "UserAgent",
		`only host "*.a": `, `deny CIDR "x": `, `deny CIDR "10.0.0.1": `, "port 0 is", "port 65536 is",
		`allow method "CONNECT": `, `allow method "TRACE": `, `allow method "A B": `, `allow method "": `,
		`"env:KEY": names no host; write env:NAME@HOST`, `"KEY@api.example.com": names no secret; write env:NAME@HOST`, `"env:@a": names no secret`,
		`"file:{}@a": names no secret`, `secret "env:KEY@a/b": `, `secret "env:KEY@": empty`,
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	zero, err := New(Config{})
	must(t, err)
	zero.Close()
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := listen(t, func(p *peer) {
		for req := p.request(); req != nil; req = p.request() {
			got <- req
			p.say(ok)
		}
	})
	host, h := s.addr, handler(t, Config{}, seams{})
	for name, tc := range map[string]struct { // one after the other: they share the channel
		p    payload
		want string
	}{
		"defaults": {
			payload{URL: s.url},
			"GET / " + host + " length=0 map[User-Agent:[headway]] ",
		},
		"all fields": {
			payload{Method: "POST", URL: s.url + "/a%2Fb?q=1#frag", Headers: map[string]string{"x-tenant": "acme", "User-Agent": "mine", "X-Latin": "é\tb"}, Body: `{"a":1}`},
			"POST /a%2Fb?q=1 " + host + ` length=7 map[Content-Length:[7] User-Agent:[mine] X-Latin:[é	b] X-Tenant:[acme]] {"a":1}`,
		},
		"host header": {
			payload{URL: s.url, Headers: map[string]string{"host": "api.example.com:8443"}},
			"GET / api.example.com:8443 length=0 map[User-Agent:[headway]] ",
		},
		"userinfo becomes basic auth": {
			payload{URL: "http://u:p%40@" + host},
			"GET / " + host + " length=0 map[Authorization:[Basic dTpwQA==] User-Agent:[headway]] ",
		},
		"authorization stands over userinfo": {
			payload{URL: "http://u:p@" + host, Headers: map[string]string{"Authorization": "Bearer t"}},
			"GET / " + host + " length=0 map[Authorization:[Bearer t] User-Agent:[headway]] ",
		},
		"post without body, with key": {
			payload{Method: "POST", URL: s.url, Headers: map[string]string{"Idempotency-Key": "k"}},
			"POST / " + host + " length=0 map[Content-Length:[0] Idempotency-Key:[k] User-Agent:[headway]] ",
		},
		"get with body": {
			payload{URL: s.url, Body: "b"},
			"GET / " + host + " length=1 map[Content-Length:[1] User-Agent:[headway]] b",
		},
	} {
		must(t, run(t, h, tc.p))
		req := <-got
		body, _ := io.ReadAll(req.Body)
		line := fmt.Sprintf("%s %s %s length=%d %v %s", req.Method, req.RequestURI, req.Host, req.ContentLength, req.Header, body)
		if line != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, line, tc.want)
		}
	}
}

func TestOneConnectionForManyTasks(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100<<10)
	var n atomic.Int64
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 3 {
		case 0:
			w.WriteHeader(http.StatusNoContent)
		case 1:
			_, _ = io.WriteString(w, long) // chunked
		case 2:
			http.Error(w, long, http.StatusNotFound)
		}
	})
	var conns atomic.Int64
	h := handler(t, Config{}, seams{wrap: func(c net.Conn) net.Conn {
		conns.Add(1)
		return c
	}})
	for i := range 60 {
		method := []string{"GET", "POST", "HEAD"}[i/6%3]
		err := run(t, h, payload{Method: method, URL: s.URL, Body: "x"})
		if err != nil && !errors.As(err, new(*StatusError)) {
			t.Fatalf("task %d: %v", i, err)
		}
	}
	// One, on a quiet machine. net/http gives a connection up when its writer has not come back 50 ms after the answer was read.
	if got := conns.Load(); got > 30 {
		t.Errorf("%d connections for 60 tasks one after the other", got)
	}
}

// The error of a run that timed out says after how long and what it waited for, also before there is a connection.
func TestTimeoutSaysHowLongAndForWhat(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	resolver := &net.Resolver{PreferGo: true, Dial: func(_ context.Context, _, _ string) (net.Conn, error) {
		<-stuck
		return nil, errors.New("closed")
	}}
	h := handler(t, Config{}, seams{resolver: resolver})
	for _, base := range []string{listen(t, func(p *peer) { p.request(); p.request() }).url, "http://slow.test"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := h.ProcessTask(ctx, task(t, payload{Method: "POST", URL: base + "/charge?k=v"}))
		cancel()
		wantPermanent(t, err, false)
		want := regexp.MustCompile(`^outbound: timed out after \d+(\.\d+)?ms waiting for POST ` + regexp.QuoteMeta(base) + `/charge$`)
		if !errors.Is(err, context.DeadlineExceeded) || !want.MatchString(err.Error()) {
			t.Errorf("got %q", err)
		}
	}
}

func TestCancellationIsNotHidden(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 2)
	s := listen(t, func(p *peer) { p.request(); arrived <- struct{}{}; p.request() })
	h := handler(t, Config{}, seams{})
	leaseLost := errors.New("the lease was lost")
	for name, cause := range map[string]error{"plain": nil, "with a cause": leaseLost} {
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.ProcessTask(ctx, task(t, payload{URL: s.url})) }()
		<-arrived
		cancel(cause)
		err := <-done
		wantPermanent(t, err, false, "cancelled after")
		if !errors.Is(err, context.Canceled) || cause != nil && (!errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error())) {
			t.Errorf("%s: hidden in %v", name, err)
		}
	}
}

func TestWithoutDeadlineThirtySeconds(t *testing.T) {
	t.Parallel()
	var left time.Duration
	h := handler(t, Config{Headers: func(ctx context.Context, _ *asynq.Task, _ http.Header) {
		at, _ := ctx.Deadline()
		left = time.Until(at)
	}}, seams{})
	must(t, h.ProcessTask(context.Background(), task(t, payload{URL: listen(t, always(ok)).url})))
	if left <= 20*time.Second || left > 30*time.Second {
		t.Errorf("%s left of the run, want nearly 30s", left)
	}
}

func TestDebugRecord(t *testing.T) {
	t.Parallel()
	var out programs.Output
	s := listen(t, always(ok))
	h := handler(t, Config{Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}, seams{})
	must(t, run(t, h, payload{URL: s.url + "/path?q=1"}))
	var rec map[string]any
	must(t, json.Unmarshal([]byte(out.String()), &rec))
	delete(rec, "time")
	delete(rec, "elapsed_ms")
	if got, want := fmt.Sprint(rec), "map[host:"+s.addr+" level:DEBUG method:GET msg:outbound request status:200]"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestBadPayloadSaysWhichField(t *testing.T) {
	t.Parallel()
	h := handler(t, Config{}, seams{})
	const u = `"url":"http://127.0.0.1:1/"`
	for _, tc := range []struct{ json, field, reason string }{
		{``, "payload", "is not one JSON object"},
		{`{"url":"hush`, "payload", "is not one JSON object"},
		{`{"url":"http://h/hush","url":"http://h/"}`, "payload", "has a field or a header twice"},
		{`{` + u + `} {}`, "payload", "is not one JSON object"},
		{`{` + u + `,"timeout":"hush"}`, `"timeout"`, "unknown field"},
		{`null`, "url", "missing"},
		{`{"url":"/relative?hush"}`, "url", "http://"},
		{`{"url":"http://user:hu/sh@host/"}`, "url", "not a valid URL"},
		{`{"url":"http://host/\nhush"}`, "url", "a control character at position 13; leave it out, or behind the host write it as %0A"},
		{`{` + u + `,"method":"hush hush"}`, "method", "not an HTTP method"},
		{`{` + u + `,"body":{"hush":1}}`, "body", "must be a string"},
		{`{` + u + `,"headers":{"A":1234567}}`, "headers", "strings"},
		{`{` + u + `,"headers":{"Authorization: hush":""}}`, "headers", "of 19 bytes"},
		{`{` + u + `,"headers":{"X-A":"hush\r\nB: c"}}`, `headers["X-A"]`, "control character"},
		{`{` + u + `,"headers":{"X-A":"hush","x-a":"hush"}}`, `headers["x-a"]`, "twice"},
		{`{` + u + `,"headers":{"Host":"hush@a"}}`, `headers["Host"]`, "HOST:PORT"},
		{`{` + u + `,"headers":{"Transfer-Encoding":"hush"}}`, `headers["Transfer-Encoding"]`, "set from the body"},
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

// No payload makes the parser panic or quote what it was given.
func FuzzParseCall(f *testing.F) {
	f.Add([]byte(`{"url":"http://u:p@h/p?q#f","method":"GET","headers":{"A":"b"},"body":"{\"a\":\"bcdef\"}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := (&Handler{cfg: Config{UserAgent: "ua"}}).parse(data, "")
		if err != nil {
			var bad *PayloadError
			if !errors.As(err, &bad) || strings.ContainsAny(err.Error(), "\n\r\x00") {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := c.hide(string(data), false); err != nil && c.secretBytes() <= maxSecret {
			t.Error(err)
		}
	})
}

// No byte of a method that is not listed is sent: to a server that does not speak HTTP it may be a command, as DEL is to Redis.
func TestMethodsAreAList(t *testing.T) {
	t.Parallel()
	s := listen(t, always("HTTP/1.1 204 No Content\r\n\r\n"))
	h := handler(t, Config{AllowMethods: []string{"PROPFIND"}}, seams{})
	for i, method := range []string{"", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"} {
		if err := run(t, h, payload{Method: method, URL: s.url}); err != nil || s.requests.Load() != int64(i+1) {
			t.Errorf("%s: %v, %d requests", method, err, s.requests.Load())
		}
	}
	requests, conns := s.requests.Load(), s.conns.Load()
	for _, method := range []string{"DEL", "SET", "get", "LOCK", "CONNECT", "TRACE", "connect"} {
		var bad *PayloadError
		err := run(t, h, payload{Method: method, URL: s.url + "/?x"})
		if wantPermanent(t, err, true); !errors.As(err, &bad) || bad.Field != "method" {
			t.Errorf("%s: %v", method, err)
		}
	}
	if s.requests.Load() != requests || s.conns.Load() != conns {
		t.Errorf("%d requests, %d connections", s.requests.Load()-requests, s.conns.Load()-conns)
	}
}
