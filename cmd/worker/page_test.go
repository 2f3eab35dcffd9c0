package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

// runPageWith runs "worker page" until it ends.
func runPageWith(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	code = run(ctx, append([]string{"page"}, args...), func(string) string { return "" }, &out, &errs)
	return code, out.String(), errs.String()
}

// Faults of flags are refused before anything is tried, and an address that others reach unless it is known who asks.
func TestPageFlags(t *testing.T) {
	t.Parallel()
	faulty := filepath.Join(t.TempDir(), "users.yaml")
	must(t, os.WriteFile(faulty, []byte("people: {anna: {role: king}}"), 0o600))
	server := redistest.NewServer(t)
	for _, one := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-listen", "0.0.0.0:0"}, cli.ExitUsage, "can be reached by other machines, and neither -users nor -proxy"},
		{[]string{"-listen", "nowhere"}, cli.ExitUsage, "is not HOST:PORT"},
		{[]string{"-proxy", "10.0.0.1"}, cli.ExitUsage, "no range of addresses"},
		{[]string{"-proxy-admin", "ops"}, cli.ExitUsage, "need -proxy"},
		{[]string{"-prefix", "limits"}, cli.ExitUsage, "does not begin with a slash"},
		{[]string{"token", "more"}, cli.ExitUsage, "unexpected argument"},
		{[]string{"-redis", "redis://" + server.Addr(), "-users", faulty, "-listen", ":0"}, cli.ExitFailed, `role is "king"`},
	} {
		code, _, errs := runPageWith(t, one.args...)
		if code != one.code || !strings.Contains(errs, one.want) {
			t.Errorf("%v: %d %s", one.args, code, errs)
		}
	}
	if code, out, errs := runPageWith(t, "token"); code != cli.ExitOK || !strings.Contains(out, "sha256  ") || len(strings.Fields(out)[1]) < 40 {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// A worker refuses a page that nobody reaches, or of which it is not known who may use it.
func TestWorkerPageFlags(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		args  []string
		token string
		want  string
	}{
		{[]string{"-page"}, "", "-page needs -listen"},
		{[]string{"-page", "-listen", "0.0.0.0:0"}, "", "HEADWAY_LISTEN_TOKEN is not set\ntry: HEADWAY_LISTEN_TOKEN=$(openssl rand -hex 16) worker …, or -listen :0 for this machine only\n"},
		{[]string{"-page-users", "users.yaml"}, "", "-page-users needs -page"},
		{[]string{"-page", "-listen", "0.0.0.0:0"}, token, "-page-users does not say who may"},
		{[]string{"-page", "-listen", ":0"}, token, "HEADWAY_LISTEN_TOKEN is set"},
	} {
		var errs strings.Builder
		getenv := func(name string) string { return map[string]string{tokenVariable: one.token}[name] }
		if code := run(t.Context(), one.args, getenv, io.Discard, &errs); code != cli.ExitUsage || !strings.Contains(errs.String(), one.want) || strings.Count(errs.String(), "\ntry: ") != 1 {
			t.Errorf("%v: %d %s", one.args, code, errs.String())
		}
	}
}

// The page stands beside /metrics, and knows by itself who asks: the token is for the others.
func TestPageBesideMetrics(t *testing.T) {
	t.Parallel()
	shown := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	l, err := parseListen("127.0.0.1:0", token)
	must(t, err)
	s, err := l.open(statusHandler(&health{of: fakeHealth{}}, http.NotFoundHandler(), true), shown, slog.New(slog.DiscardHandler))
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	for path, want := range map[string]int{"/page": http.StatusOK, "/page/scope?scope=a": http.StatusOK, "/metrics": http.StatusUnauthorized, "/": http.StatusUnauthorized} {
		answer, err := http.Get("http://" + s.addr() + path) //nolint:noctx // of this process
		must(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
		}
	}
	s.close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
