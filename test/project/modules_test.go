package project

import (
	"encoding/json"
	"errors"
	"os/exec"
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
