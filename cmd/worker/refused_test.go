package main

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

// prints runs the program worker with other words, and returns what it prints.
func prints(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, os.Getenv, &out, &errs); code != cli.ExitOK {
		t.Fatalf("%q ends with %d: %s", args, code, errs.String())
	}
	return out.String()
}

// docs/limits.md: "Scopes without a rule": their tasks wait, those that come only then too, under workers that were started since,
// and where the scope was never known; they run when the rules are back.
func TestRenamedScopeWaits(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	url := ownRedis(t)
	rdb := open(t, url)
	renamed := strings.Replace(someLimits, "payments:", "pay:", 1)
	limits := limitsFile(t, someLimits)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	state := func(id string) asynq.TaskState {
		info, err := inspector.GetTaskInfo("default", id)
		if err != nil {
			return 0
		}
		return info.State
	}
	waits := func(id string) {
		t.Helper()
		redistest.WaitFor(t, id+" to wait", 30*time.Second, func() bool {
			if state(id) == asynq.TaskStateArchived {
				t.Fatal(id + " is archived")
			}
			return state(id) == asynq.TaskStateRetry
		})
	}
	args := []string{"-redis", url, "-limits", limits, "-allow-host", a.host(), "-listen", "127.0.0.1:0"}
	r := start(t, whole, nil, args...)
	r.says("msg=ready")
	write(t, limits, renamed)
	redistest.WaitFor(t, "the new limits to be in force", 30*time.Second, func() bool {
		return strings.Contains(r.stderr.String(), `msg="limits in force" version=2`)
	})
	enqueue(t, rdb, a.task("payments/a", "first"), a.task("never/known", "never"))
	waits("never")
	waits("first")
	r.says(`no rule matches the scope; its tasks wait until you add a rule, or delete them" scope=payments/a tasks=1`)
	if page := get(t, "http://"+r.found("addr")+"/metrics", http.StatusOK); !strings.Contains(page, `headway_refused_total{queue="default",why="unmatched"} 2`) ||
		!strings.Contains(page, `headway_refused_tasks{queue="default",why="unmatched"} 2`) {
		t.Error("the metrics do not tell")
	}
	if text := prints(t, "inspect", "-redis", url, "task", "first"); !strings.Contains(text, "meets no rule") {
		t.Errorf("inspect says %s", text)
	}
	r.stop()
	r.ends(cli.ExitOK)

	r = start(t, whole, nil, args...) // it has never seen the rules itself
	r.says("msg=ready")
	enqueue(t, rdb, a.task("payments/a", "second"))
	waits("second")
	write(t, limits, someLimits+strings.TrimPrefix(renamed, "limits:\n"))
	redistest.WaitFor(t, "both to run", 2*time.Minute, func() bool { return a.calls.Load() == 2 })
	r.stop()
	r.ends(cli.ExitOK)
}
