package project

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// "What the benchmarks need stands in no go.mod but theirs": each module that the top requires has
// a package that ours are built of, their tests aside.
func TestGoModIsForUsers(t *testing.T) {
	t.Parallel()
	run := func(args ...string) []byte {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			exit := new(exec.ExitError)
			errors.As(err, &exit)
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, exit.Stderr)
		}
		return out
	}
	built := map[string]bool{}
	for path := range strings.FieldsSeq(string(run("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./..."))) {
		built[path] = true
	}
	var mod struct{ Require []struct{ Path string } }
	if err := json.Unmarshal(run("mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require) == 0 {
		t.Fatal("go.mod requires nothing: it is not read")
	}
	for _, module := range mod.Require {
		if !built[module.Path] {
			t.Errorf("go.mod requires %s, which only tests need: a peer belongs into test/bench", module.Path)
		}
	}
}

// "./..., ./test/..., ./queue and ./test/bench go where they belong", and each module is run though one before it has failed.
func TestPackagesGoToTheirModules(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const says = "#!/bin/sh\npwd\nprintf '[%s]' \"$@\"\necho\nexit 3\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(says), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	for packages, want := range map[string]struct{ top, bench, browser, oteltask string }{
		"":                               {".", "", "", ""},
		"./...":                          {"./...", "./...", "./...", "./..."},
		"./test/...":                     {"./test/...", "./...", "./...", ""},
		"./worker/...":                   {"./worker/...", "", "", "./..."},
		"./worker/oteltask":              {"", "", "", "."},
		"./test/bench/...":               {"", "./...", "", ""},
		"./test/bench":                   {"", ".", "", ""},
		"./test/bench/peers":             {"", "./peers", "", ""},
		"./queue":                        {"./queue", "", "", ""},
		"./queue ./test/bench":           {"./queue", ".", "", ""},
		modulePath + "/...":              {"./...", "./...", "./...", "./..."},
		modulePath + "/test/bench/peers": {"", "./peers", "", ""},
		"./test/browser":                 {"", "", ".", ""},
	} {
		cmd := exec.Command("test/modules.sh", append([]string{"test", "-run", "^$", "-bench", "a b", "--"}, strings.Fields(packages)...)...)
		cmd.Dir = top
		cmd.Env = append(os.Environ(), "PATH="+dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
		out, err := cmd.Output()
		var calls string
		for i, to := range []string{want.top, want.bench, want.browser, want.oteltask} {
			if to != "" {
				calls += filepath.Join(top, []string{"", "test/bench", "test/browser", "worker/oteltask"}[i]) + "\n[test][-run][^$][-bench][a b][" + to + "]\n"
			}
		}
		if string(out) != calls {
			t.Errorf("%q: it called\n%swant\n%s", packages, out, calls)
		}
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("%q: go failed with 3, and it with %v", packages, err)
		}
	}
}

const modulePath = "github.com/headway-go/headway"
