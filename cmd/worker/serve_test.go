package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const servedLimits = `limits: {pay: {rules: [{name: account, algorithm: fixed-window, limit: 3, per: 24h}]}}`

// posts asks a server of decisions, and returns its status and answer.
func posts(t *testing.T, base, path, body, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(text)
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// worker serve on the loopback, as docs/serve.md has it: two of them share their limits, and /healthz answers beside.
func TestServe(t *testing.T) {
	t.Parallel()
	url := ownRedis(t)
	first := start(t, whole, nil, "serve", "-redis", url, "-limits", written(t, "limits.yaml", servedLimits), "-listen", ":0")
	first.says("url=")
	second := start(t, whole, nil, "serve", "-redis", url, "-listen", ":0")
	second.says("url=")
	for i, r := range []*running{first, second, first, second} {
		base := strings.TrimSuffix(r.found("url"), "/v1/")
		status, text := posts(t, base, "/v1/decide", `{"scope":"pay/a"}`, "")
		if (status == http.StatusOK) != (i < 3) {
			t.Errorf("%d: %d %s", i, status, text)
		}
		says(t, get(t, base+"/healthz", http.StatusOK), `"status":"ok"`)
	}
	first.quits()
	second.quits()
}

// Beyond the loopback a client needs its token; /metrics needs that of -listen, which here nobody has.
func TestServeAsksForTokens(t *testing.T) {
	t.Parallel()
	clients := written(t, "clients.yaml", "clients: {billing: {sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08, scopes: [pay/a]}}") // test
	r := start(t, whole, nil, "serve", "-redis", ownRedis(t), "-limits", written(t, "limits.yaml", servedLimits), "-listen", "0.0.0.0:0", "-clients", clients)
	r.says("tokens are sent in the clear")
	r.says("url=")
	base := strings.TrimSuffix(r.found("url"), "/v1/")
	for _, row := range []struct {
		token, scope string
		status       int
	}{{"test", "pay/a", 200}, {"test", "pay/b", 403}, {"", "pay/a", 401}, {"tes", "pay/a", 401}} {
		if status, text := posts(t, base, "/v1/decide", `{"scope":"`+row.scope+`"}`, row.token); status != row.status {
			t.Errorf("%v: %d %s", row, status, text)
		}
	}
	if status, text := posts(t, base, "/metrics", "", "test"); status != http.StatusUnauthorized {
		t.Errorf("%d %s", status, text)
	}
	r.quits()
}
