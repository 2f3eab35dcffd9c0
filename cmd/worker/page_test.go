package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/events"
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

// The page stands beside /metrics, and knows by itself who asks: the token is for the others. The root leads to the page.
func TestPageBesideMetrics(t *testing.T) {
	t.Parallel()
	shown := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	l, err := parseListen("127.0.0.1:0", token)
	must(t, err)
	s, err := l.open(statusHandler(&health{of: fakeHealth{}}, http.NotFoundHandler(), true), shown, slog.New(slog.DiscardHandler))
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	for path, want := range map[string]int{"/page": http.StatusOK, "/page/scope?scope=a": http.StatusOK, "/metrics": http.StatusUnauthorized, "/": http.StatusOK} {
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

const eventsSecret = "0123456789abcdef-of-the-test"

// A worker sends the thresholds of a quota to the webhook, signed by the secret in a file or in the environment, and logs
// them; neither the secret nor the path of the URL gets into the log.
func TestEventsWebhookFlag(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte(eventsSecret+"\n"), 0o600))
	for name, tt := range map[string]struct {
		env   map[string]string
		flags []string
	}{
		"environment": {map[string]string{secretVariable: eventsSecret}, nil},
		"file":        {nil, []string{"-events-secret-file", file}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			t.Cleanup(api.Close)
			url := ownRedis(t)
			client := queue.NewClient(open(t, url), queue.ClientConfig{})
			for range 2 {
				if _, err := client.Enqueue(t.Context(), queue.Task{Type: queue.TypeHTTP, Scope: "quota/a", HTTP: &queue.HTTP{URL: api.URL}}); err != nil {
					t.Fatal(err)
				}
			}
			limits := limitsFile(t, "limits:\n  quota:\n    scopes:\n      \"*\":\n        rules:\n          - {name: daily, algorithm: fixed-window, limit: 2, per: 24h}\n")
			r := start(t, whole, tt.env, append(tt.flags, "-redis", url, "-limits", limits, "-app", "shop",
				"-allow-host", strings.TrimPrefix(api.URL, "http://"), "-events-webhook", hook.URL+"/T0KEN")...)
			select {
			case e := <-got:
				if e.Kind != events.Threshold || e.Scope != "quota/a" || e.Rule != "daily" || e.App != "shop" {
					t.Errorf("%+v", e)
				}
			case <-time.After(bound):
				t.Fatal("no event came")
			}
			r.stop()
			r.ends(cli.ExitOK)
			text := r.stderr.String()
			if !strings.Contains(text, "msg=event kind=threshold") || strings.Contains(text, eventsSecret) || strings.Contains(text, "T0KEN") {
				t.Errorf("the log: %s", text)
			}
		})
	}
}

// The page is served until the program is stopped.
func TestPageServes(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"page", "-redis", "redis://" + server.Addr(), "-listen", ":0", "-prefix", "/limits"}, func(string) string { return "" }, io.Discard, w)
		_ = w.Close()
	}()
	line := make([]byte, 4096)
	n, err := r.Read(line)
	must(t, err)
	go func() { _, _ = io.Copy(io.Discard, r) }()
	_, rest, is := strings.Cut(string(line[:n]), "url=")
	if !is {
		t.Fatalf("no address in %s", line[:n])
	}
	answer, err := http.Get(strings.Fields(rest)[0]) //nolint:noctx // of this process
	must(t, err)
	body, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), "There are no limits yet") {
		t.Errorf("%d %s", answer.StatusCode, body)
	}
	cancel()
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("stopped with %d", code)
	}
}

func TestEventsFaults(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), "long")
	must(t, os.WriteFile(long, make([]byte, mostSecret+1), 0o600))
	env := map[string]string{secretVariable: eventsSecret}
	for want, tt := range map[string]struct {
		env   map[string]string
		flags []string
	}{
		"HEADWAY_EVENTS_SECRET is not set":               {nil, []string{"-events-webhook", "https://h/T0KEN"}},
		"-events-secret-file is given without":           {nil, []string{"-events-secret-file", long}},
		"the secret of -events-webhook has 5 characters": {map[string]string{secretVariable: "short"}, []string{"-events-webhook", "https://h/T0KEN"}},
		"-events-webhook of h is not https":              {env, []string{"-events-webhook", "http://h/T0KEN"}},
		"-events-webhook of h has a user or a password":  {env, []string{"-events-webhook", "https://u:T0KEN@h/"}},
		"-events-webhook is no URL":                      {env, []string{"-events-webhook", "T0KEN"}},
		"-events-secret-file /none: no such file":        {env, []string{"-events-webhook", "https://h/T0KEN", "-events-secret-file", "/none"}},
		"has 4097 bytes; a secret has 4096 at most":      {env, []string{"-events-webhook", "https://h/T0KEN", "-events-secret-file", long}},
	} {
		r := start(t, with(newFakeSystem()), tt.env, tt.flags...)
		r.ends(cli.ExitUsage)
		if text := r.stderr.String(); !strings.Contains(text, want) || !strings.Contains(text, "try: ") || strings.Contains(text, "T0KEN") || strings.Contains(text, "short") {
			t.Errorf("%v: %s, want %q", tt.flags, text, want)
		}
	}
}
