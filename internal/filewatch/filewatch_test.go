package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	never = time.Hour // a slow look that does not come
	quick = 20 * time.Millisecond
)

// watched is a file that is watched, of which the first value was received.
type watched struct {
	t       *testing.T
	dir     string
	path    string
	changed <-chan struct{}
}

func watch(t *testing.T, dir, path string, lookEvery time.Duration) watched {
	t.Helper()
	w := watched{t, dir, path, changes(t.Context(), path, lookEvery, quick)}
	w.changes("the beginning")
	return w
}

func (w watched) changes(what string) {
	w.t.Helper()
	select {
	case <-w.changed:
	case <-time.After(time.Minute):
		w.t.Fatalf("%s is not reported", what)
	}
}

func (w watched) write(name, text string) {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600))
}

// A change is reported without a slow look: written in place, renamed to, removed, and back.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := watch(t, dir, filepath.Join(dir, "a.yaml"), never)
	w.write("a.yaml", "new")
	w.changes("a new file")
	w.write("a.yaml", "more")
	w.changes("a write in place")
	w.write("a.yaml.tmp", "x")
	must(t, os.Rename(filepath.Join(dir, "a.yaml.tmp"), w.path))
	w.changes("a rename to it")
	must(t, os.Rename(w.path, w.path+"~"))
	w.changes("its removal")
	w.write("a.yaml", "back")
	w.changes("its return")
}

// Kubernetes replaces ..data, which the file is a symlink through, and removes what it led to.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name, "a.yaml"), []byte("same length"), 0o600))
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1")
	must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(dir, "a.yaml")))
	w := watch(t, dir, filepath.Join(dir, "a.yaml"), never)
	version("..2")
	must(t, os.RemoveAll(filepath.Join(dir, "..1")))
	w.changes("another version")
	version("..3")
	must(t, os.RemoveAll(filepath.Join(dir, "..2")))
	w.changes("one more version")
}

// A symlink into another directory is followed there.
func TestSymlink(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	target := filepath.Join(other, "b.yaml")
	must(t, os.WriteFile(target, []byte("x"), 0o600))
	must(t, os.Symlink(target, path))
	w := watch(t, dir, path, never)
	must(t, os.WriteFile(target, []byte("longer"), 0o600))
	w.changes("a write of its target")
}

// Where nothing can be watched, as the directory does not exist yet, the slow look finds the change.
func TestSlowLook(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	w := watch(t, dir, filepath.Join(dir, "a.yaml"), quick)
	must(t, os.Mkdir(dir, 0o700))
	w.write("a.yaml", "x")
	w.changes("a file in a new directory")
	must(t, os.RemoveAll(dir))
	w.changes("its removal")
	must(t, os.Mkdir(dir, 0o700))
	w.write("a.yaml", "y")
	w.changes("its return in another directory")
}

// A file that is being written is reported once it has stayed as it is, and once.
func TestSettles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &file{path: filepath.Join(dir, "a.yaml")}
	for i := range 3 {
		must(t, os.WriteFile(f.path, make([]byte, i), 0o600))
		if f.look(time.Hour) {
			t.Errorf("it is reported after write %d", i)
		}
	}
	if f.since = f.since.Add(-time.Hour); !f.look(time.Hour) || f.look(time.Hour) {
		t.Error("it is not reported once")
	}
}

func TestEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	changed := Changes(ctx, filepath.Join(t.TempDir(), "a.yaml"))
	<-changed
	cancel()
	if _, open := <-changed; open {
		t.Error("a change is reported")
	}
}
