package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// A worker sends each request with the key of the pool's member that it was granted. The keys are in no log, no metric and no last error,
// even where the API refuses one and repeats it.
func TestKeysOfAPool(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]int{}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Authorization")
		if got[key]++; key == "Bearer hush-revoked" {
			http.Error(w, "no such key: "+key, http.StatusForbidden)
		}
	}))
	t.Cleanup(api.Close)
	host := strings.TrimPrefix(api.URL, "http://")
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "team"), 0o700))
	for alias, key := range map[string]string{"alice": "hush-alice", "team/key1": "hush-team", "bob": "hush-revoked"} {
		must(t, os.WriteFile(filepath.Join(dir, filepath.FromSlash(alias)), []byte(key+"\n"), 0o600))
	}
	limits := limitsFile(t, `
limits:
  github:
    pool: {members: [alice, team/key1, bob], choose: drain}
    scopes: {"@*": {rules: [{name: key, algorithm: fixed-window, limit: 2, per: 1h}]}}
  open: {rules: [{name: r, algorithm: fixed-window, limit: 2, per: 1h}]}
`)
	url, rdb := ownClient(t)
	r := start(t, whole, nil, "-redis", url, "-limits", limits, "-allow-host", host, "-secret", "file:"+dir+"/{member}@"+host,
		"-listen", "127.0.0.1:0", "-log-level", "debug")
	r.says("msg=ready")
	task := func(scope, id string) queue.Task {
		return queue.Task{
			Type: queue.TypeHTTP, Scope: scope, ID: id, MaxRetry: queue.Retries(0),
			HTTP: &queue.HTTP{URL: api.URL, Headers: map[string]string{"Authorization": "Bearer {{secret .member}}"}},
		}
	}
	calls := func(n int) {
		t.Helper()
		redistest.WaitFor(t, "the calls", bound, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return got["Bearer hush-alice"]+got["Bearer hush-team"]+got["Bearer hush-revoked"] == n
		})
	}
	enqueue(t, rdb, task("open/a", "none"), task("github/a", "1"), task("github/a", "2"), task("github/b", "3"), task("github/b", "4"))
	calls(4)
	enqueue(t, rdb, task("github/b", "refused"))
	calls(5)
	refused := becomes(t, rdb, "refused", asynq.TaskStateArchived).LastErr
	says(t, refused, "answered 403 Forbidden: no such key: Bearer [redacted]")
	none := becomes(t, rdb, "none", asynq.TaskStateArchived).LastErr
	says(t, none, `headers["Authorization"]: names the secret of a pool's member, and the task was granted none`)
	mu.Lock()
	if len(got) != 3 || got["Bearer hush-alice"] != 2 || got["Bearer hush-team"] != 2 {
		t.Errorf("keys that were used: %v", got)
	}
	mu.Unlock()
	for what, text := range map[string]string{
		"last errors": refused + none, "metrics": get(t, "http://"+r.found("addr")+"/metrics", http.StatusOK), "log": r.stderr.String(),
	} {
		if strings.Contains(text, "hush") {
			t.Errorf("a key is in the %s:\n%s", what, text)
		}
	}
}
