package project

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a system that has the given programs and no others. Each writes
// down how it was called.
type machine struct {
	t   *testing.T
	dir string
}

const redis7 = "echo 'Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc'"

func newMachine(t *testing.T, programs map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	for _, tool := range []string{"sh", "sed", "cut", "env", "chmod", "cat"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(m.dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for name, does := range map[string]string{"id": "echo 0", "uname": "echo Linux", "go": "echo cc", "cc": ":", "promtool": ":"} {
		m.has(name, does)
	}
	for name, does := range programs {
		if does == "" {
			_ = os.Remove(filepath.Join(m.dir, name)) // only those above may be there
			continue
		}
		m.has(name, does)
	}
	return m
}

func (m *machine) has(name, does string) {
	m.t.Helper()
	script := fmt.Sprintf("#!%s/sh\necho %s \"$@\" >> %s/log\n%s\n", m.dir, name, m.dir, does)
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(script), 0o700); err != nil { //nolint:gosec // it is to be run
		m.t.Fatal(err)
	}
}

// installs makes a package manager that brings a program along.
func (m *machine) installs(manager, program, does string) {
	m.has(manager, fmt.Sprintf("case \"$*\" in *install*|*add*) printf '#!%s/sh\\n%s\\n' > %s/%s; chmod +x %s/%s;; esac",
		m.dir, strings.ReplaceAll(does, "'", `"`), m.dir, program, m.dir, program))
}

// setup runs the script and returns what it said and the calls it made.
func (m *machine) setup(env ...string) (said, calls string, err error) {
	m.t.Helper()
	script, err := filepath.Abs(filepath.Join(root, "test", "setup.sh"))
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(m.dir, "sh"), script, "-race", "-promtool")
	cmd.Env = append([]string{"PATH=" + m.dir}, env...)
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(m.dir, "log")) // absent when nothing was called
	return string(out), string(log), err
}

// "installs redis-server if it is missing (saying what it does; apt, apk, dnf, brew)", and nothing that is there
func TestSetupInstalls(t *testing.T) {
	t.Parallel()
	all := map[string]string{"redis-server": redis7}
	for name, tt := range map[string]struct {
		programs          map[string]string
		manager, installs string
		call              string // "" for none of a manager
	}{
		"apt-get":   {nil, "apt-get", "redis-server", "apt-get install -q -y --no-install-recommends redis-server"},
		"apk":       {nil, "apk", "redis-server", "apk add --no-cache redis"},
		"dnf":       {nil, "dnf", "redis-server", "dnf install -q -y redis"},
		"brew":      {nil, "brew", "redis-server", "brew install redis"},
		"sudo":      {map[string]string{"id": "echo 1000", "sudo": `"$@"`}, "apk", "redis-server", "sudo apk add --no-cache redis"},
		"compiler":  {map[string]string{"redis-server": redis7, "cc": ""}, "apt-get", "cc", "apt-get install -q -y --no-install-recommends gcc libc6-dev"},
		"promtool":  {map[string]string{"redis-server": redis7, "promtool": ""}, "brew", "promtool", "brew install prometheus"},
		"all there": {all, "apt-get", "none", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, tt.programs)
			does := ":"
			if tt.installs == "redis-server" {
				does = redis7
			}
			m.installs(tt.manager, tt.installs, does)
			said, calls, err := m.setup()
			if err != nil || tt.call != "" && (!strings.Contains(calls, tt.call+"\n") || !strings.Contains(said, "install")) ||
				tt.call == "" && strings.Contains(calls, tt.manager) {
				t.Errorf("%v; it called\n%s, want %s; it said\n%s", err, calls, tt.call, said)
			}
		})
	}
}

// "a clear error when none is there"
func TestSetupFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		programs map[string]string
		env      []string
		want     []string
	}{
		"no manager": {nil, nil,
			[]string{"none of apt-get, apk, dnf and brew", "try: install redis-server 6.2 or newer"}},
		"no root": {map[string]string{"apt-get": ":", "id": "echo 1000"}, nil,
			[]string{"only root may run: apt-get update", "try: run it as root"}},
		"install fails": {map[string]string{"apt-get": "echo no network >&2; exit 100"}, nil,
			[]string{"no network"}},
		"install brings nothing": {map[string]string{"apt-get": ":"}, nil,
			[]string{"still not on the PATH", "try: install redis-server"}},
		"old": {map[string]string{"redis-server": "echo 'Redis server v=6.0.16 sha=0'"}, nil,
			[]string{"older than 6.2"}},
		"REDIS_SERVER": {map[string]string{"apt-get": ":"}, []string{"REDIS_SERVER=/nowhere/redis"},
			[]string{"REDIS_SERVER names /nowhere/redis, which cannot be run"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, _, err := newMachine(t, tt.programs).setup(tt.env...)
			if err == nil {
				t.Fatalf("no error; it said\n%s", said)
			}
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("it said\n%s, want %q", said, want)
				}
			}
		})
	}
}
