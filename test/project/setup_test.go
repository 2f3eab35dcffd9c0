package project

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a system that has the given programs and no others. Each writes down how it was called.
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
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(m.dir, tool)))
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
	must(m.t, err)
	cmd := exec.Command(filepath.Join(m.dir, "sh"), script, "-race", "-promtool")
	cmd.Env = append([]string{"PATH=" + m.dir}, env...)
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(m.dir, "log")) // absent when nothing was called
	return string(out), string(log), err
}

// "installs redis-server if it is missing (saying what it does; apt, apk, dnf, brew)", and nothing that is there, with "a clear error when
// none is there"
func TestSetup(t *testing.T) {
	t.Parallel()
	const apt = "apt-get install -q -y --no-install-recommends "
	all := map[string]string{"redis-server": redis7}
	for name, tt := range map[string]struct {
		programs          map[string]string
		env               []string
		manager, installs string   // what a package manager brings along
		call              string   // of the manager
		faults            []string // what it says if it fails
	}{
		"apt-get":   {manager: "apt-get", installs: "redis-server", call: apt + "redis-server"},
		"apk":       {manager: "apk", installs: "redis-server", call: "apk add --no-cache redis"},
		"dnf":       {manager: "dnf", installs: "redis-server", call: "dnf install -q -y redis"},
		"brew":      {manager: "brew", installs: "redis-server", call: "brew install redis"},
		"sudo":      {programs: map[string]string{"id": "echo 1000", "sudo": `"$@"`}, manager: "apk", installs: "redis-server", call: "sudo apk add --no-cache redis"},
		"compiler":  {programs: map[string]string{"redis-server": redis7, "cc": ""}, manager: "apt-get", installs: "cc", call: apt + "gcc libc6-dev"},
		"promtool":  {programs: map[string]string{"redis-server": redis7, "promtool": ""}, manager: "brew", installs: "promtool", call: "brew install prometheus"},
		"all there": {programs: all, manager: "apt-get", installs: "none"},

		"no manager":             {faults: []string{"none of apt-get, apk, dnf and brew", "try: install redis-server 6.2 or newer"}},
		"no root":                {programs: map[string]string{"apt-get": ":", "id": "echo 1000"}, faults: []string{"only root may run: apt-get update", "try: run it as root"}},
		"install fails":          {programs: map[string]string{"apt-get": "echo no network >&2; exit 100"}, faults: []string{"no network"}},
		"install brings nothing": {programs: map[string]string{"apt-get": ":"}, faults: []string{"still not on the PATH", "try: install redis-server"}},
		"old":                    {programs: map[string]string{"redis-server": "echo 'Redis server v=6.0.16 sha=0'"}, faults: []string{"older than 6.2"}},
		"REDIS_SERVER":           {env: []string{"REDIS_SERVER=/nowhere/redis"}, faults: []string{"REDIS_SERVER names /nowhere/redis, which cannot be run"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, does := newMachine(t, tt.programs), ":"
			if tt.installs == "redis-server" {
				does = redis7
			}
			if tt.manager != "" {
				m.installs(tt.manager, tt.installs, does)
			}
			said, calls, err := m.setup(tt.env...)
			if (err != nil) != (tt.faults != nil) || tt.call != "" && !strings.Contains(calls, tt.call+"\n") ||
				tt.call != "" && !strings.Contains(said, "install") || tt.call == "" && tt.manager != "" && strings.Contains(calls, tt.manager) {
				t.Errorf("%v; it called\n%s, want %q; it said\n%s", err, calls, tt.call, said)
			}
			for _, want := range tt.faults {
				if !strings.Contains(said, want) {
					t.Errorf("it said\n%s, want %q", said, want)
				}
			}
		})
	}
}
