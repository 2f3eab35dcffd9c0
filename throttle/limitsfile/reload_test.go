package limitsfile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// reloading is a worker's limits file, which is read again in a bubble of fake time.
type reloading struct {
	*Source
	rdb     *redis.Client
	t       *testing.T
	path    string
	out     *programs.Output
	signals chan os.Signal
	faults  atomic.Pointer[error] // what OnFault was given last
}

// fault returns what OnFault was given last.
func (r *reloading) fault() error {
	if err := r.faults.Load(); err != nil {
		return *err
	}
	return nil
}

const twoTenants = `limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}
    scopes:
      acme:
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 5, per: 1s}
`

// inPlace writes a file as an editor does that does not rename, at the bubble's time.
func inPlace(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	touch(t, path)
}

func touch(t *testing.T, path string) {
	t.Helper()
	must(t, os.Chtimes(path, time.Now(), time.Now()))
}

func later(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// looks stands for filewatch.Changes, whose watcher is of the system: in a bubble a file is looked at.
func looks(ctx context.Context, path string) <-chan struct{} {
	changed := make(chan struct{}, 1)
	go func() {
		reported, _ := filewatch.StampOf(path)
		seen, since := reported, time.Now()
		for pause(ctx, 100*time.Millisecond) {
			if stands, _ := filewatch.StampOf(path); !stands.Same(seen) {
				seen, since = stands, time.Now()
			}
			if !seen.Same(reported) && time.Since(since) >= filewatch.Settles {
				reported = seen
				changed <- struct{}{}
			}
		}
	}()
	return changed
}

// reloads has a worker publish twoTenants, and goes on to read the file again.
func reloads(t *testing.T, test func(t *testing.T, r *reloading)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		r := &reloading{rdb: rdb, t: t, path: filepath.Join(t.TempDir(), "limits.yaml"), out: &programs.Output{}, signals: make(chan os.Signal)}
		inPlace(t, r.path, twoTenants)
		r.Source = New(rdb, readOf(t, r.path), Config{Logger: slog.New(slog.NewTextHandler(r.out, nil)), OnFault: func(err error) { r.faults.Store(&err) }})
		r.changes = looks
		_, err := r.Settle(t.Context())
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Reload(ctx, r.signals) }()
		synctest.Wait() // it has looked at the file, which the test may write now
		test(t, r)
		cancel()
		<-done
	})
}

// says holds what was published against parts, and what was logged against others.
func (r *reloading) says(published, logged []string) {
	r.t.Helper()
	p, err := r.store.Now(r.t.Context())
	must(r.t, err)
	expect(r.t, string(limitsyaml.Format(p)), published...)
	expect(r.t, r.out.String(), logged...)
}

// docs/limits.md: "A file is read when it has not changed for a second", so that one that is written in pieces, each of them valid, is read
// when the last one has come.
func TestFileIsReadWhenSettled(t *testing.T) {
	t.Parallel()
	reloads(t, func(_ *testing.T, r *reloading) {
		later(5 * time.Second)
		text := strings.Replace(twoTenants, "200", "300", 1)
		for _, part := range []string{"limits: {}\n", text[:strings.Index(text, "    scopes")], text} {
			inPlace(r.t, r.path, part)
			later(900 * time.Millisecond)
			r.says([]string{"limit: 200", "limit: 5", "!limit: 300"}, nil)
		}
		later(400 * time.Millisecond)
		r.says([]string{"limit: 300", "limit: 5"}, []string{"!level=WARN"})
	})
}

// docs/limits.md: "A file that ends in the middle of what it said before is not taken", however long it stays so, unless somebody asks for
// it.
func TestCutOffFileIsNotTaken(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		half := twoTenants[:strings.Index(twoTenants, "    scopes")]
		for _, part := range []string{half, "", twoTenants[:len(twoTenants)-40]} {
			inPlace(t, r.path, part)
			later(time.Minute)
			r.says([]string{"limit: 200", "limit: 5"}, []string{"level=WARN", "limits file looks truncated", "!level=ERROR"})
		}
		if n := strings.Count(r.out.String(), "\n"); n != 4 {
			t.Errorf("%d lines for three files, and the one of the start:\n%s", n, r.out)
		}
		inPlace(t, r.path, half)
		later(time.Minute)
		r.signals <- syscall.SIGHUP
		later(time.Second)
		r.says([]string{"limit: 200", "!limit: 5"}, []string{`the new limits file removes rules or settings`, `gone=1 names="payments/acme tenant"`})
	})
}

// Only a file that was written in place can be half written: one that was renamed to the name, or that a link leads to now, is taken
// whatever it lacks.
func TestSwappedFileIsTaken(t *testing.T) {
	t.Parallel()
	half := twoTenants[:strings.Index(twoTenants, "    scopes")]
	for name, swap := range map[string]func(t *testing.T, path, other string) error{
		"renamed": func(_ *testing.T, path, other string) error { return os.Rename(other, path) },
		"linked": func(_ *testing.T, path, other string) error {
			return errors.Join(os.Symlink(other, path+".link"), os.Rename(path+".link", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reloads(t, func(t *testing.T, r *reloading) {
				inPlace(t, r.path, half) // refused first
				later(2 * time.Second)
				other := filepath.Join(t.TempDir(), "whole")
				inPlace(t, other, half)
				must(t, swap(t, r.path, other))
				later(2 * time.Second)
				r.says([]string{"limit: 200", "!limit: 5"}, []string{"looks truncated", "rename a copy of it", `gone=1 names="payments/acme tenant"`})
				if r.fault() != nil {
					t.Error(r.fault())
				}
			})
		})
	}
}

// docs/limits.md: "What a new file has no more is told", by scope and name.
func TestGoneRulesAreTold(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		inPlace(t, r.path, strings.Replace(twoTenants, "acme", "other", 1))
		later(2 * time.Second)
		r.says([]string{"other", "!acme"}, []string{"level=WARN", `gone=1 names="payments/acme tenant"`})
		inPlace(t, r.path, strings.Replace(twoTenants, "acme", "other", 1)+"      more: {rules: [{name: r, algorithm: concurrency, limit: 1}]}\n")
		later(2 * time.Second)
		r.says([]string{"more"}, nil)
		if n := strings.Count(r.out.String(), "gone="); n != 1 {
			t.Errorf("told %d times:\n%s", n, r.out)
		}
		// A worker that starts with a file tells it of the one that was published before.
		inPlace(t, r.path, "limits: {payments: {rules: [{name: account, algorithm: sliding-window, limit: 9, per: 1s}]}}\n")
		next := New(r.rdb, readOf(t, r.path), Config{Logger: r.log})
		_, err := next.Settle(t.Context())
		must(t, err)
		expect(t, r.out.String(), `gone=2 names="payments/more r, payments/other tenant"`)
	})
}

// docs/limits.md: "So it is when a worker starts": it waits until the file has settled.
func TestStartWaitsForTheFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "limits.yaml")
		inPlace(t, path, twoTenants[:strings.Index(twoTenants, "    scopes")])
		began := time.Now()
		go func() {
			<-time.After(700 * time.Millisecond)
			inPlace(t, path, twoTenants)
		}()
		read := readOf(t, path)
		if took := time.Since(began); string(read.text) != twoTenants || took < 1700*time.Millisecond || took > 2500*time.Millisecond {
			t.Errorf("after %s it read\n%s", took, read.text)
		}
		later(time.Second)
		began = time.Now()
		if readOf(t, path); time.Since(began) != 0 {
			t.Errorf("it waited %s for a file that was old", time.Since(began))
		}
		// One whose time is still to come, by this machine's clock, is waited for as well.
		must(t, os.Chtimes(path, time.Now(), time.Now().Add(time.Hour)))
		if readOf(t, path); time.Since(began) != filewatch.Settles {
			t.Errorf("it waited %s", time.Since(began))
		}
	})
}

// One that never stays as it is for a second ends the start, with what to do.
func TestStartDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "schedules.yaml")
		inPlace(t, path, "schedules: {}\n")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				<-time.After(400 * time.Millisecond)
				touch(t, path)
			}
		}()
		_, _, err := ReadSettled(t.Context(), path)
		cancel()
		<-done
		if err == nil || !strings.Contains(err.Error(), "is being written all the time") || !strings.Contains(err.Error(), "rename") {
			t.Errorf("%v", err)
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		touch(t, path)
		if _, err := Read(stopped, path); err != context.Canceled { //nolint:errorlint // exactly this one
			t.Errorf("told to stop: %v", err)
		}
	})
}

// docs/limits.md: "A file that others than its owner may write is warned about, once".
func TestWritableFileIsTold(t *testing.T) {
	t.Parallel()
	if !fileModes {
		t.Skip("modes tell nothing here")
	}
	reloads(t, func(t *testing.T, r *reloading) {
		for i, mode := range []os.FileMode{0o644, 0o664, 0o646} {
			inPlace(t, r.path, twoTenants+strings.Repeat("#", i+1)+"\n")
			must(t, os.Chmod(r.path, mode))
			later(2 * time.Second)
			if n, want := strings.Count(r.out.String(), "file is writable by users other than its owner"), min(i, 1); n != want {
				t.Errorf("%v: told %d times, want %d:\n%s", mode, n, want, r.out)
			}
		}
		expect(t, r.out.String(), "level=WARN", "mode=-rw-rw-r--")
		var out programs.Output
		path := filepath.Join(t.TempDir(), "schedules.yaml")
		inPlace(t, path, "schedules: {}\n")
		must(t, os.Chmod(path, 0o602))
		_, stands, err := ReadSettled(t.Context(), path)
		must(t, err)
		WarnOfMode(t.Context(), slog.New(slog.NewTextHandler(&out, nil)), path, stands)
		expect(t, out.String(), "file is writable by users other than its owner", "mode=-rw-----w-")
	})
}

// A pipe can be read once, and is: -limits <(decrypt limits.yaml).
func TestPipeIsReadOnce(t *testing.T) {
	t.Parallel()
	in, out, err := os.Pipe()
	must(t, err)
	defer in.Close()
	_, err = out.WriteString(twoTenants)
	must(t, err)
	_ = out.Close()
	path := filepath.Join("/dev/fd", strconv.Itoa(int(in.Fd())))
	if _, err := os.Stat(path); err != nil {
		t.Skip("pipes have no names here")
	}
	if read := readOf(t, path); string(read.text) != twoTenants || regular(read.stood) {
		t.Errorf("%q", read.text)
	}
}

// "OnFault is called when the file was changed into one that cannot be used, and with nil when it was mended", also where what was there
// before comes back as it was.
func TestFaultsAreToldUntilMended(t *testing.T) {
	t.Parallel()
	reloads(t, func(t *testing.T, r *reloading) {
		is := func(parts ...string) {
			t.Helper()
			later(2 * time.Second)
			if r.fault() == nil {
				t.Fatalf("no fault, and %q is wanted", parts)
			}
			expect(t, r.fault().Error(), parts...)
		}
		mended := func() {
			t.Helper()
			later(2 * time.Second)
			if r.fault() != nil {
				t.Fatal(r.fault())
			}
		}
		inPlace(t, r.path, "limits: {p: {}, q: {x: 1}, r: {x: 1}}\n")
		is("invalid limits file; keeping the current limits: "+r.path+":1:", "x is not a field", ", and 1 more; the log has all", "!\n")
		inPlace(t, r.path, twoTenants)
		mended()
		inPlace(t, r.path, twoTenants[:len(twoTenants)-40])
		is("looks truncated and was not loaded")
		inPlace(t, r.path, strings.Replace(twoTenants, "limit: 5", "limit: 6", 1))
		mended()
		must(t, os.Rename(r.path, r.path+".away"))
		mended() // it may be being replaced
		r.signals <- syscall.SIGHUP
		is("cannot read the limits file " + r.path + "; keeping the current limits")
		must(t, os.Rename(r.path+".away", r.path))
		mended()
	})
}
