package main

import (
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
	"github.com/headway-go/headway/worker/events"
)

// Faults of flags are refused before anything is tried, and an address that others reach unless it is known who asks.
func TestPageFlags(t *testing.T) {
	t.Parallel()
	faulty := filepath.Join(t.TempDir(), "users.yaml")
	must(t, os.WriteFile(faulty, []byte("people: {anna: {role: king}}"), 0o600))
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
		{[]string{"-redis", ownRedis(t), "-users", faulty, "-listen", ":0"}, cli.ExitFailed, `role is "king"`},
	} {
		_, errs := ask(t, one.code, append([]string{"page"}, one.args...)...)
		says(t, errs, one.want)
	}
	if out, _ := ask(t, cli.ExitOK, "page", "token"); !strings.Contains(out, "sha256  ") || len(strings.Fields(out)[1]) < 40 {
		t.Error(out)
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
		start(t, with(newFakeSystem()), map[string]string{tokenVariable: one.token}, one.args...).refuses(cli.ExitUsage, one.want, "\ntry: ")
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
	for path, want := range map[string]int{
		"/page": http.StatusOK, "/page/scope?scope=a": http.StatusOK, "/metrics": http.StatusUnauthorized, "/": http.StatusOK, "/none": http.StatusUnauthorized,
	} {
		answer, err := http.Get("http://" + s.addr() + path) //nolint:noctx // of this process
		must(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != want || path == "/metrics" && answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v, want %d", path, answer.StatusCode, answer.Header, want)
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
				_, err := client.Enqueue(t.Context(), queue.Task{Type: queue.TypeHTTP, Scope: "quota/a", HTTP: &queue.HTTP{URL: api.URL}})
				must(t, err)
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
	r := start(t, whole, nil, "page", "-redis", ownRedis(t), "-listen", ":0", "-prefix", "/limits")
	r.says("url=")
	says(t, get(t, r.found("url"), http.StatusOK), "There are no limits yet")
	r.stop()
	r.ends(cli.ExitOK)
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
		start(t, with(newFakeSystem()), tt.env, tt.flags...).refuses(cli.ExitUsage, want, "try: ", "!T0KEN", "!short")
	}
}
