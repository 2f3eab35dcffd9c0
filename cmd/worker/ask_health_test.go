package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// asksHealth runs "worker health".
func asksHealth(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"health"}, args...), func(name string) string { return env[name] }, &out, &errs)
	return code, out.String(), errs.String()
}

// serving is a worker's -listen, without the worker.
func serving(t *testing.T, addr, token string, h http.Handler) string {
	t.Helper()
	l, err := parseListen(addr, token)
	must(t, err)
	s, err := l.open(h, nil, slog.New(slog.DiscardHandler))
	must(t, err)
	go func() { _ = s.serve() }()
	t.Cleanup(s.close)
	return s.addr()
}

// A worker that takes tasks is 0, and any other 1 with the reason. The token comes from the environment, and is in no line.
func TestAskHealth(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123"
	redis := &fakeHealth{}
	h := &health{of: redis}
	addr := serving(t, "0.0.0.0:0", token, statusHandler(h, http.NotFoundHandler(), false))
	_, port, err := net.SplitHostPort(addr)
	must(t, err)
	env := map[string]string{tokenVariable: token, "HEADWAY_LISTEN": "0.0.0.0:" + port}
	asks := func(want int, line string, args ...string) {
		t.Helper()
		code, out, errs := asksHealth(t, env, args...)
		if code != want || !strings.Contains(out+errs, line) || strings.Count(strings.Split(out+errs, "try: ")[0], "\n") != 1 {
			t.Errorf("%v: exit %d, %s%s; want %d, %q", args, code, out, errs, want, line)
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

// What answers without being a worker, or not at all, and what is asked for wrongly.
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
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	nobody := closed.Addr().String()
	must(t, closed.Close())
	addr := strings.TrimPrefix(server.URL, "http://")
	for name, c := range map[string]struct {
		code  int
		token string
		line  string
		args  []string
	}{
		"another program": {cli.ExitFailed, "", `is no worker, or not well: status 404, no page`, []string{"-listen", addr}},
		"a redirect":      {cli.ExitFailed, "moved", "status 302", []string{"-listen", addr}},
		"a silent one":    {cli.ExitFailed, "hangs", "no answer from " + addr + " within 100ms", []string{"-listen", addr, "-timeout", "100ms"}},
		"nobody":          {cli.ExitFailed, "", "no worker answers at " + nobody + ": ", []string{"-listen", nobody}},
		"no port":         {cli.ExitUsage, "", `-listen "localhost" is not HOST:PORT`, []string{"-listen", "localhost"}},
		"an argument":     {cli.ExitUsage, "", `unexpected argument "now"`, []string{"now"}},
		"no time":         {cli.ExitUsage, "", "-timeout 0s is not above 0", []string{"-timeout", "0s"}},
	} {
		code, out, errs := asksHealth(t, map[string]string{tokenVariable: c.token}, c.args...)
		if code != c.code || out != "" || !strings.Contains(errs, c.line) || strings.Contains(errs, "\x1b") {
			t.Errorf("%s: exit %d, %q %q; want %d, %q", name, code, out, errs, c.code, c.line)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
	code, out, _ := asksHealth(t, nil, "-h")
	if code != cli.ExitOK {
		t.Errorf("-h: exit %d", code)
	}
	golden(t, filepath.Join("testdata", "health.golden"), out)
}
