package project

import (
	"encoding/json"
	"strings"
	"testing"
)

// "What the benchmarks need stands in no go.mod but theirs": each module that the top requires has
// a package that ours are built of, their tests aside.
func TestGoModIsForUsers(t *testing.T) {
	t.Parallel()
	built := map[string]bool{}
	for path := range strings.FieldsSeq(goSays(t, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")) {
		built[path] = true
	}
	var mod struct{ Require []struct{ Path string } }
	must(t, json.Unmarshal([]byte(goSays(t, "mod", "edit", "-json")), &mod))
	if len(mod.Require) == 0 {
		t.Fatal("go.mod requires nothing: it is not read")
	}
	for _, module := range mod.Require {
		if !built[module.Path] {
			t.Errorf("go.mod requires %s, which only tests need: a peer belongs into test/bench", module.Path)
		}
	}
}
