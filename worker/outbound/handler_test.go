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
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

func TestNewListsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := New(Config{AllowHosts: []string{"http://a", "ok", "::1"}, MaxResponse: -1, Snippet: -1, MaxIdleConnsPerHost: -1, UserAgent: "a\nb"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"http://a"`, `"::1"`, "MaxResponse", "Snippet", "MaxIdleConnsPerHost", "UserAgent"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if _, err := New(Config{Snippet: 4097}); err == nil || !strings.Contains(err.Error(), "4096 at most") {
		t.Errorf("a Snippet of 4097: %v", err)
	}
	if h, err := New(Config{}); err != nil {
		t.Errorf("the zero Config does not work: %v", err)
	} else {
		h.Close()
	}
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := listen(t, func(p *peer) {
		for {
			req := p.request()
			if req == nil {
				return
			}
			got <- req
			p.say(ok)
		}
	})
	host := s.addr
	cases := map[string]struct {
		p    payload
		want string
	}{
		"defaults": {
			payload{URL: s.url},
			"GET / " + host + " length=0 map[User-Agent:[headway]] ",
		},
		"all fields": {
			payload{Method: "POST", URL: s.url + "/a%2Fb?q=1#frag", Headers: map[string]string{"x-tenant": "acme", "User-Agent": "mine"}, Body: `{"a":1}`},
			"POST /a%2Fb?q=1 " + host + ` length=7 map[Content-Length:[7] User-Agent:[mine] X-Tenant:[acme]] {"a":1}`,
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
	}
	h := handler(t, Config{}, seams{})
	for name, tc := range cases { // one after the other: they share the channel
		if err := run(t, h, tc.p); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
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
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 6 {
		case 0:
			w.WriteHeader(http.StatusNoContent)
		case 1:
			_, _ = io.WriteString(w, "ok")
		case 2:
			_, _ = io.WriteString(w, long) // chunked
		case 3:
			http.Error(w, long, http.StatusNotFound)
		case 4:
			w.Header().Set("Trailer", "X-After")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-After", strings.Repeat("t", 60))
		case 5:
			w.Header().Set("X-Long", strings.Repeat("h", 20<<10))
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	var conns atomic.Int64
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	h := handler(t, Config{}, seams{})
	for i := range 60 {
		method := []string{"GET", "POST", "HEAD"}[i/6%3]
		err := run(t, h, payload{Method: method, URL: s.URL, Body: "x"})
		var status *StatusError
		if err != nil && !errors.As(err, &status) {
			t.Fatalf("task %d: %v", i, err)
		}
	}
	// One, on a quiet machine. net/http gives a connection up when its writer has
	// not come back 50 ms after the answer was read.
	if got := conns.Load(); got > 30 {
		t.Errorf("%d connections for 60 tasks one after the other", got)
	}
}

func TestTimeoutSaysHowLongAndForWhat(t *testing.T) {
	t.Parallel()
	s := listen(t, func(p *peer) { p.request(); p.request() })
	h := handler(t, Config{}, seams{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := h.ProcessTask(ctx, task(t, payload{Method: "POST", URL: s.url + "/charge?k=v"}))
	wantPermanent(t, err, false)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the deadline is hidden: %v", err)
	}
	want := regexp.MustCompile(`^outbound: timed out after \d+(\.\d+)?ms waiting for POST ` + regexp.QuoteMeta(s.url) + `/charge$`)
	if !want.MatchString(err.Error()) {
		t.Errorf("got %q", err)
	}
}

func TestTimeoutCoversDialling(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	resolver := &net.Resolver{PreferGo: true, Dial: func(_ context.Context, _, _ string) (net.Conn, error) {
		<-stuck
		return nil, errors.New("closed")
	}}
	h := handler(t, Config{}, seams{resolver: resolver})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := h.ProcessTask(ctx, task(t, payload{URL: "http://slow.test"}))
	wantPermanent(t, err, false)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for GET http://slow.test") {
		t.Error(err)
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
		wantPermanent(t, err, false)
		if !errors.Is(err, context.Canceled) || cause != nil && !errors.Is(err, cause) {
			t.Errorf("%s: hidden in %v", name, err)
		}
		if !strings.Contains(err.Error(), "cancelled after") || cause != nil && !strings.Contains(err.Error(), cause.Error()) {
			t.Errorf("%s: %v", name, err)
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
	var out syncBuffer
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
