package main

import (
	"encoding/json"
	"io"
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
