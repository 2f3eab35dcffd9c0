package limitsfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// readOf is a limits file as a worker reads it that starts.
func readOf(t *testing.T, path string) File {
	t.Helper()
	read, err := Read(t.Context(), path)
	must(t, err)
	return read
}

// The file is read again when the process is told, even if it looks the same.
func TestSignalReads(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	var out output
	path := settledFile(t, oneRule)
	l := New(rdb, readOf(t, path), Config{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	signals, done := make(chan os.Signal), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); l.Reload(ctx, signals) }()
	signals <- syscall.SIGHUP
	redistest.WaitFor(t, "the file to be read", time.Minute, func() bool {
		return strings.Contains(out.String(), "limits file unchanged")
	})
	cancel()
	<-done
}

// A worker whose file was superseded does not bring it back where Redis was emptied.
func TestSupersededFileIsNotRestored(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	var out output
	with := func(text string) *Source {
		l := New(rdb, readOf(t, settledFile(t, text)), Config{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		if _, err := l.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	with(oneRule)
	newer := with(strings.Replace(oneRule, "200", "300", 1))
	older := with(oneRule)
	rdb.FlushAll(t.Context())
	older.restore(t.Context())
	if n := rdb.Exists(t.Context(), "hw:limits").Val(); n != 0 {
		t.Error("the older file was published again")
	}
	newer.restore(t.Context())
	if p, err := newer.store.Now(t.Context()); err != nil || !strings.Contains(string(limitsyaml.Format(p)), "300") {
		t.Errorf("%v, %v", p, err)
	}
}

// output is written by several goroutines at once.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// expect holds a text against parts that it must have, or, behind a "!", must not.
func expect(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if want, missing := strings.CutPrefix(part, "!"); missing == strings.Contains(text, want) {
			t.Errorf("%q is missing: %t, in\n%s", want, !missing, text)
		}
	}
}

// settledFile writes a limits file that nobody is writing any more.
func settledFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	replace(t, path, text)
	settled := time.Now().Add(-time.Minute)
	must(t, os.Chtimes(path, settled, settled))
	return path
}

// replace writes a file that others may read at any moment.
func replace(t *testing.T, path, text string) {
	t.Helper()
	part := path + ".part"
	must(t, os.WriteFile(part, []byte(text), 0o600))
	must(t, os.Rename(part, path))
}

const oneRule = "limits:\n  payments:\n    rules:\n      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}\n"

// docs/limits.md: "The log warns of it at once when a new file leaves waiting tasks without a rule", with how many, and where.
func TestLeftWithoutARule(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		before, err := limitsyaml.Parse("limits.yaml", []byte(twoTenants))
		must(t, err)
		limiter, err := throttle.New(r.rdb, before, throttle.Config{})
		must(t, err)
		for { // what could start at once would not wait
			d, err := limiter.Decide(t.Context(), throttle.Request{Scope: "payments/acme"})
			must(t, err)
			if !d.Allowed {
				break
			}
		}
		for scope, n := range map[string]int{"payments/acme": 3, "payments/acme/refunds": 1} {
			for i := range n {
				ask := throttle.Waiter{Scope: scope, ID: fmt.Sprint(scope, i)}
				if _, err := limiter.Waitlist().Join(t.Context(), []throttle.Waiter{ask}, 0, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		must(t, limiter.Waitlist().PublishActive(t.Context(), "payments"))
		inPlace(t, r.path, strings.Replace(twoTenants, "limit: 5", "limit: 6", 1))
		later(2 * time.Second)
		r.says([]string{"limit: 6"}, []string{"!level=WARN"})
		inPlace(t, r.path, strings.Replace(twoTenants, "payments", "mail", 1))
		later(2 * time.Second)
		r.says([]string{"mail", "!payments"}, []string{"tasks wait in scopes that no rule of the new limits matches", "tasks=4 scopes=2 scope=payments/acme"})
	})
}
