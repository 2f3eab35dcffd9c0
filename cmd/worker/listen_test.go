package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
		"127.0.0.1:1":     {"", "127.0.0.1:1", true},
		"127.8.8.8:1":     {"", "127.8.8.8:1", true},
		"[::1]:1":         {"", "[::1]:1", true},
		"localhost:1":     {"", "localhost:1", true},
		"LocalHost.:1":    {"", "LocalHost.:1", true},
		"0.0.0.0:1":       {token, "0.0.0.0:1", false},
		"[::]:1":          {token, "[::]:1", false},
		"10.0.0.5:9090":   {token, "10.0.0.5:9090", false},
		"example.com:443": {token, "example.com:443", false},
	} {
		got, err := parseListen(in, want.token)
		if err != nil || got.addr != want.addr || got.loopback != want.loopback {
			t.Errorf("%q: got %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, tt := range []struct{ in, token, want string }{
		{"9090", "", "is not HOST:PORT"},
		{"127.0.0.1", "", "is not HOST:PORT"},
		{"::1:9090", "", "is not HOST:PORT"},
		{"http://x:1", "", "is not HOST:PORT"},
		{":http", "", "the port is not a number"},
		{":65536", "", "the port is not a number"},
		{":-1", "", "the port is not a number"},
		{"0.0.0.0:1", "", "can be reached by other machines, and HEADWAY_LISTEN_TOKEN is not set"},
		{"[::]:1", "", "can be reached by other machines"},
		{"10.0.0.5:1", "", "can be reached by other machines"},
		{"localhost.example.com:1", "", "can be reached by other machines"},
		{"0.0.0.0:1", token[:15], "has 15 characters; 16 are needed"},
		{":1", "x", "has 1 characters; 16 are needed"},
	} {
		if _, err := parseListen(tt.in, tt.token); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.in, err, tt.want)
		}
	}
}

// TestGuard holds who is let in: on the loopback those who ask for it by name,
// elsewhere those who have the token.
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
		"local without port":   {local, "127.0.0.1", "", http.StatusOK},
		"local by name":        {local, "localhost:9090", "", http.StatusOK},
		"local IPv6":           {local, "[::1]:9090", "", http.StatusOK},
		"local IPv6 bare":      {local, "[::1]", "", http.StatusOK},
		"rebound name":         {local, "evil.example:9090", "", http.StatusMisdirectedRequest},
		"name like localhost":  {local, "localhost.evil.example", "", http.StatusMisdirectedRequest},
		"no host":              {local, "", "", http.StatusMisdirectedRequest},
		"local, token missing": {localToken, "localhost", "", http.StatusUnauthorized},
		"local, token":         {localToken, "localhost", "Bearer " + token, http.StatusOK},
		"rebound with token":   {localToken, "evil.example", "Bearer " + token, http.StatusMisdirectedRequest},
		"public, none":         {public, "worker.example", "", http.StatusUnauthorized},
		"public, token":        {public, "worker.example", "Bearer " + token, http.StatusOK},
		"public, lower case":   {public, "worker.example", "bearer " + token, http.StatusOK},
		"public, spaces":       {public, "worker.example", "Bearer   " + token + " ", http.StatusOK},
		"public, wrong":        {public, "worker.example", "Bearer " + token + "0", http.StatusUnauthorized},
		"public, prefix":       {public, "worker.example", "Bearer " + token[:8], http.StatusUnauthorized},
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

// TestServerTimeouts holds that a slow client cannot keep a connection.
func TestServerTimeouts(t *testing.T) {
	t.Parallel()
	l := listenAddr{addr: "127.0.0.1:0", loopback: true}
	s, err := l.open(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	must(t, err)
	defer s.close()
	if v := s.srv; v.ReadHeaderTimeout == 0 || v.ReadTimeout == 0 || v.WriteTimeout == 0 || v.IdleTimeout == 0 || v.MaxHeaderBytes == 0 {
		t.Errorf("no bound: %+v", v)
	}
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	resp, err := http.Get("http://" + s.addr())
	must(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.Header.Get("Cache-Control") != "no-store" {
		t.Error("answers may be cached")
	}
	s.close()
	if err := <-served; err != http.ErrServerClosed { //nolint:errorlint // exactly this one
		t.Errorf("serve: %v", err)
	}
	// Not by its port, which may be somebody else's by now.
	if _, err := s.ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listens after close: %v", err)
	}
}
