package main

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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/events"
)

type fakeHealth struct {
	redis, limits error
	workers       int
}

func (f fakeHealth) RedisErr(context.Context, time.Duration) error { return f.redis }
func (f fakeHealth) LimitsErr() error                              { return f.limits }
func (fakeHealth) FileErr() error                                  { return nil }
func (f fakeHealth) Workers() int                                  { return f.workers }

// docs/operations.md: "the previous limits stay in force until the file is mended": /healthz and a metric say so, and the log does
// not say that nothing was started.
func TestFaultyEdit(t *testing.T) {
	t.Parallel()
	path := limitsFile(t, someLimits)
	r := start(t, whole, nil, "-redis", ownRedis(t), "-limits", path, "-listen", "127.0.0.1:0")
	r.says("msg=ready")
	base := "http://" + r.found("addr")
	is := func(faulty int, parts ...string) {
		t.Helper()
		redistest.WaitFor(t, "the metric to be there", bound, func() bool {
			return strings.Contains(get(t, base+"/metrics", http.StatusOK), fmt.Sprintf("\nheadway_limits_file_faulty %d\n", faulty))
		})
		a := getHealth(t, base, http.StatusOK)
		if a.Status != "ok" || a.Limits != "ok" {
			t.Errorf("%+v", a)
		}
		says(t, a.LimitsFile, parts...)
	}
	is(0, "ok")
	write(t, path, someLimits+"      - {name: other, algorithm: later}\n")
	is(1, "invalid limits file; keeping the current limits: "+path+":5:", ", and 1 more; the log has all")
	says(t, r.stderr.String(), "!nothing was started")
	write(t, path, strings.Replace(someLimits, "200", "300", 1))
	is(0, "ok")
}

// A worker that takes tasks is 0, and any other 1 with the reason. The token comes from the environment, and is in no line.
func TestAskHealth(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123"
	redis := &fakeHealth{}
	h := &health{of: redis}
	l, err := parseListen("0.0.0.0:0", token)
	must(t, err)
	s, err := l.open(h, http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	must(t, err)
	go func() { _ = s.serve() }()
	t.Cleanup(s.close)
	_, port, err := net.SplitHostPort(s.addr())
	must(t, err)
	env := map[string]string{tokenVariable: token, "HEADWAY_LISTEN": "0.0.0.0:" + port}
	asks := func(want int, line string, args ...string) {
		t.Helper()
		out, errs := askIn(t, env, want, append([]string{"health"}, args...)...)
		if !strings.Contains(out+errs, line) || strings.Count(strings.Split(out+errs, "try: ")[0], "\n") != 1 {
			t.Errorf("%v: %s%s; want %q", args, out, errs, line)
		}
		if strings.Contains(out+errs, token) {
			t.Errorf("the token is printed: %s%s", out, errs)
		}
	}
	asks(cli.ExitOK, "ok: the worker takes tasks")
	asks(cli.ExitOK, "ok: the worker answers", "-live")
	asks(cli.ExitOK, "ok: ", "-listen", "127.0.0.1:"+port)

	redis.redis = errors.New("dial tcp 10.0.0.5:6379:\nconnection refused")
	asks(cli.ExitFailed, "worker health: the worker takes no tasks: dial tcp 10.0.0.5:6379: connection refused")
	asks(cli.ExitOK, "ok: ", "-live")
	h.stopping.Store(true)
	asks(cli.ExitFailed, "the worker is stopping")

	env[tokenVariable] = token + "x"
	asks(cli.ExitFailed, "refuses the token")
	delete(env, tokenVariable)
	asks(cli.ExitFailed, "refuses the token", "-live")
}

// What answers without being a worker, or not at all.
func TestAskHealthInVain(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { elsewhere++; _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer hangs":
			<-hangs
		case "Bearer moved":
			http.Redirect(w, r, other.URL, http.StatusFound)
		default:
			http.Error(w, "no page\x1b here", http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hangs) })
	addr := strings.TrimPrefix(server.URL, "http://")
	for token, c := range map[string][2]string{
		"moved": {addr, "status 302"},
		"hangs": {addr, "no answer from " + addr + " within 100ms"},
		"":      {"127.0.0.1:1", "no worker answers at 127.0.0.1:1: "},
	} {
		out, errs := askIn(t, map[string]string{tokenVariable: token}, cli.ExitFailed, "health", "-listen", c[0], "-timeout", "100ms")
		if out != "" || !strings.Contains(errs, c[1]) || strings.Contains(errs, "\x1b") {
			t.Errorf("%q: %q %q; want %q", token, out, errs, c[1])
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
}

const token = "0123456789abcdef"

func TestParseListen(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		token, addr string
		loopback    bool
	}{
		"":                {"", "", false},
		":9090":           {"", "127.0.0.1:9090", true},
		":0":              {token, "127.0.0.1:0", true},
		"[::1]:1":         {"", "[::1]:1", true},
		"localhost:1":     {"", "localhost:1", true},
		"0.0.0.0:1":       {token, "0.0.0.0:1", false},
		"example.com:443": {token, "example.com:443", false},
	} {
		got, err := parseListen(in, want.token)
		if err != nil || got.addr != want.addr || got.loopback != want.loopback {
			t.Errorf("%q: got %+v, %v, want %+v", in, got, err, want)
		}
	}
}

// TestGuard holds who is let in: on the loopback those who ask for it by name, elsewhere those who have the token.
func TestGuard(t *testing.T) {
	t.Parallel()
	local := listenAddr{addr: "127.0.0.1:9090", loopback: true}
	localToken := listenAddr{addr: "127.0.0.1:9090", loopback: true, token: token}
	public := listenAddr{addr: "0.0.0.0:9090", token: token}
	for name, tt := range map[string]struct {
		l          listenAddr
		host, auth string
		want       int
	}{
		"local":                {local, "127.0.0.1:9090", "", http.StatusOK},
		"local by name":        {local, "localhost:9090", "", http.StatusOK},
		"local IPv6":           {local, "[::1]:9090", "", http.StatusOK},
		"rebound name":         {local, "evil.example:9090", "", http.StatusMisdirectedRequest},
		"name like localhost":  {local, "localhost.evil.example", "", http.StatusMisdirectedRequest},
		"no host":              {local, "", "", http.StatusMisdirectedRequest},
		"local, token missing": {localToken, "localhost", "", http.StatusUnauthorized},
		"local, token":         {localToken, "localhost", "Bearer " + token, http.StatusOK},
		"public, none":         {public, "worker.example", "", http.StatusUnauthorized},
		"public, token":        {public, "worker.example", "Bearer " + token, http.StatusOK},
		"public, lower case":   {public, "worker.example", "bearer " + token, http.StatusOK},
		"public, wrong":        {public, "worker.example", "Bearer " + token + "0", http.StatusUnauthorized},
		"public, basic":        {public, "worker.example", "Basic " + token, http.StatusUnauthorized},
		"public, bare":         {public, "worker.example", token, http.StatusUnauthorized},
		"public from here":     {public, "localhost", "", http.StatusUnauthorized},
	} {
		r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
		r.Host = tt.host
		if tt.auth != "" {
			r.Header.Set("Authorization", tt.auth)
		}
		w := httptest.NewRecorder()
		served := false
		tt.l.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).ServeHTTP(w, r)
		if w.Code != tt.want || served != (tt.want == http.StatusOK) {
			t.Errorf("%s: status %d, served %v, want %d", name, w.Code, served, tt.want)
		}
		if strings.Contains(w.Body.String(), token) {
			t.Errorf("%s: the answer tells the token", name)
		}
		if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", name)
		}
	}
}

// Users of the page are read before anything starts, and "page token" makes a line of theirs.
func TestPageUsersFile(t *testing.T) {
	t.Parallel()
	faulty := filepath.Join(t.TempDir(), "users.yaml")
	must(t, os.WriteFile(faulty, []byte("people: {anna: {role: king}}"), 0o600))
	_, errs := ask(t, cli.ExitFailed, "page", "-redis", ownRedis(t), "-users", faulty, "-listen", ":0")
	says(t, errs, `role is "king"`)
	if out, _ := ask(t, cli.ExitOK, "page", "token"); !strings.Contains(out, "sha256  ") || len(strings.Fields(out)[1]) < 40 {
		t.Error(out)
	}
}

// The page stands beside /metrics, and knows by itself who asks: the token is for the others. The root leads to the page.
// No client that is slow keeps a connection.
func TestPageBesideMetrics(t *testing.T) {
	t.Parallel()
	shown := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	l, err := parseListen("127.0.0.1:0", token)
	must(t, err)
	s, err := l.open(&health{of: fakeHealth{}}, http.NotFoundHandler(), shown, slog.New(slog.DiscardHandler))
	must(t, err)
	if v := s.srv; v.ReadHeaderTimeout == 0 || v.ReadTimeout == 0 || v.WriteTimeout == 0 || v.IdleTimeout == 0 || v.MaxHeaderBytes == 0 {
		t.Errorf("no bound: %+v", v)
	}
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	for request, want := range map[string]int{
		"GET /page": 200, "GET /page/scope?scope=a": 200, "GET /metrics": 401, "GET /": 200, "GET /none": 401,
		"GET /healthz " + token: 200, "HEAD /healthz " + token: 200, "POST /healthz " + token: 405, "GET /x " + token: 404, "DELETE /metrics " + token: 405,
	} {
		words := strings.Fields(request + " none")
		r, err := http.NewRequestWithContext(t.Context(), words[0], "http://"+s.addr()+words[1], nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+words[2])
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != want || words[1] == "/metrics" && answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v, want %d", request, answer.StatusCode, answer.Header, want)
		}
	}
	s.close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

const eventsSecret = "0123456789abcdef-of-the-test"

// A worker sends the thresholds of a quota to the webhook, signed by the secret in a file or in the environment, and logs
// them; neither the secret nor the path of the URL gets into the log.
func TestEventsWebhookFlag(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte(eventsSecret+"\n"), 0o600))
	for flags, env := range map[string]map[string]string{
		"":                            {secretVariable: eventsSecret},
		"-events-secret-file " + file: nil,
	} {
		got := make(chan events.Event, 10)
		hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			var e events.Event
			if err := json.Unmarshal(body, &e); err != nil {
				t.Errorf("%v: %s", err, body)
			}
			if err := events.Verify(eventsSecret, r.Header.Get(events.HeaderSignature), body, 0); err != nil || r.URL.Path != "/T0KEN" {
				t.Errorf("%s: %v", r.URL.Path, err)
			}
			got <- e
		}))
		t.Cleanup(hook.Close)
		a, url := newAPI(t, nil), ownRedis(t)
		enqueue(t, open(t, url), a.task("quota/a", "1"), a.task("quota/a", "2"))
		limits := limitsFile(t, "limits: {quota: {scopes: {\"*\": {rules: [{name: daily, algorithm: fixed-window, limit: 2, per: 24h}]}}}}")
		r := start(t, whole, env, append(strings.Fields(flags), "-redis", url, "-limits", limits, "-app", "shop",
			"-allow-host", a.host(), "-events-webhook", hook.URL+"/T0KEN")...)
		select {
		case e := <-got:
			if e.Kind != events.Threshold || e.Scope != "quota/a" || e.Rule != "daily" || e.App != "shop" {
				t.Errorf("%+v", e)
			}
		case <-time.After(bound):
			t.Fatal("no event came")
		}
		r.quits()
		text := r.stderr.String()
		if !strings.Contains(text, "msg=event kind=threshold") || strings.Contains(text, eventsSecret) || strings.Contains(text, "T0KEN") {
			t.Errorf("the log: %s", text)
		}
	}
}
