package project

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// committed is when every commit of these tests was made.
const committed = 1_600_000_000

// repository is a git repository of a test's own.
type repository string

// newRepository commits the given files of this tree.
func newRepository(t *testing.T, paths ...string) repository {
	t.Helper()
	r := repository(t.TempDir())
	for _, path := range paths {
		must(t, exec.Command("cp", "-R", filepath.Join(root, path), r.path(path)).Run())
	}
	r.git(t, "init", "-q")
	r.git(t, "add", "-A")
	r.git(t, "commit", "-q", "-m", "all")
	return r
}

func (r repository) path(name string) string { return filepath.Join(string(r), name) }

func (r repository) write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(r.path(name)), 0o700))
	must(t, os.WriteFile(r.path(name), []byte(text), 0o600))
}

// git runs git without the settings of whoever runs the test.
func (r repository) git(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = string(r)
	at := fmt.Sprintf("%d +0000", committed)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_AUTHOR_DATE="+at,
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE="+at)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// addPrograms commits programs that do nothing but say their version as ours read it: all that ours are made of takes minutes
// to compile statically where that was never done.
func (r repository) addPrograms(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{
		"go.mod":              "module github.com/headway-go/headway\n\ngo 1.26\n",
		"cmd/worker/main.go":  saysVersion("worker"),
		"cmd/enqueue/main.go": saysVersion("enqueue"),
	} {
		r.write(t, name, text)
	}
	r.git(t, "add", "-A")
	r.git(t, "commit", "-q", "-m", "programs")
}

func saysVersion(program string) string {
	return `package main

import (
	"os"
	"runtime/debug"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	_, _ = os.Stdout.WriteString("` + program + ` " + info.Main.Version + "\n")
}
`
}

// release runs the repository's script under a umask, and returns what it said.
func (r repository) release(umask string, args ...string) (string, error) {
	cmd := exec.Command("sh", append([]string{"-c", "umask " + umask + ` && exec .ci/release "$@"`, "sh"}, args...)...)
	cmd.Dir = string(r)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// One commit and one version give the same bytes, wherever and whenever they are made: the two programs,
// which know the version, the licence and the README.
func TestRelease(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		return // it compiles the standard library anew, without paths; make test/more does
	}
	const version = "v0.1.0"
	here := newRepository(t, ".ci", ".gitignore", "LICENSE", "README.md")
	here.addPrograms(t)
	there := repository(filepath.Join(t.TempDir(), "clone"))
	here.git(t, "clone", "-q", "--depth=1", "--no-local", string(here), string(there)) // as CI clones
	there.git(t, "tag", version)
	there.write(t, "bin/release/headway_v0.0.9_linux_amd64.tar.gz", "of a release before")

	platform := runtime.GOOS + "/" + runtime.GOARCH
	name := fmt.Sprintf("headway_%s_%s_%s.tar.gz", version, runtime.GOOS, runtime.GOARCH)
	var archives [][]byte
	for umask, r := range map[string]repository{"022": here, "077": there} {
		if said, err := r.release(umask, "-platform", platform, version); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		entries, err := os.ReadDir(r.path("bin/release"))
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, []string{"SHA256SUMS", name}) {
			t.Errorf("bin/release holds %q", names)
		}
		archive, err := os.ReadFile(r.path("bin/release/" + name))
		must(t, err)
		sums, err := os.ReadFile(r.path("bin/release/SHA256SUMS"))
		if want := fmt.Sprintf("%x  %s\n", sha256.Sum256(archive), name); err != nil || string(sums) != want {
			t.Errorf("SHA256SUMS is %q, %v; want %q", sums, err, want)
		}
		archives = append(archives, archive)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Errorf("two releases of one commit differ: %d and %d bytes", len(archives[0]), len(archives[1]))
	}

	dir := t.TempDir()
	if names := unpack(t, archives[0], dir); !slices.Equal(names, []string{"LICENSE", "README.md", "headway-enqueue", "headway-worker"}) {
		t.Errorf("the archive holds %q", names)
	}
	for program, want := range map[string]string{"worker": "worker v0.1.0\n", "enqueue": "enqueue v0.1.0\n"} {
		out, err := exec.Command(filepath.Join(dir, "headway-"+program), "-version").CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("headway-%s -version prints %q: %v", program, out, err)
		}
	}
}

// unpack writes the files of an archive into dir and returns their names in their order. It holds their
// headers against what a release promises.
func unpack(t *testing.T, archive []byte, dir string) (names []string) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	must(t, err)
	if zip.Name != "" || !zip.ModTime.IsZero() {
		t.Errorf("gzip names %q of %v: it is to name nothing", zip.Name, zip.ModTime)
	}
	for files := tar.NewReader(zip); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		mode := int64(0o644)
		if strings.HasPrefix(h.Name, "headway-") {
			mode = 0o755
		}
		if h.Mode != mode || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(time.Unix(committed, 0)) {
			t.Errorf("%s has mode %o, belongs to %d:%d (%q:%q) and is of %v", h.Name, h.Mode, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime)
		}
		text, err := io.ReadAll(files)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), text, h.FileInfo().Mode()))
		names = append(names, h.Name)
	}
}
