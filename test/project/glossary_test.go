package project

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exportedNames are the exported names of a package as its users write them: policy.Rule, policy.Rule.Unit.
func exportedNames(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		add := func(parts ...string) { names[strings.Join(append([]string{file.Name.Name}, parts...), ".")] = true }
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name.Name)
					continue
				}
				of := d.Recv.List[0].Type
				if pointer, is := of.(*ast.StarExpr); is {
					of = pointer.X
				}
				add(of.(*ast.Ident).Name, d.Name.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					addSpec(s, add)
				}
			}
		}
	}
	return names
}

func addSpec(s ast.Spec, add func(parts ...string)) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			add(name.Name)
		}
	case *ast.TypeSpec:
		add(s.Name.Name)
		if fields, is := s.Type.(*ast.StructType); is {
			for _, f := range fields.Fields.List {
				for _, name := range f.Names {
					add(s.Name.Name, name.Name)
				}
			}
		}
	}
}

// scripts are the names of the files in lua/ that are sent to Redis.
func scripts(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*.lua", "asynq/*.lua"} {
		paths, err := fs.Glob(os.DirFS(filepath.Join(root, "lua")), pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no scripts: %v", err)
		}
		for _, one := range paths {
			names = append(names, path.Base(one))
		}
	}
	return names
}

// The glossary's names are those of the code, and it has each script and each kind of key that stands behind a "!".
func TestGlossary(t *testing.T) {
	t.Parallel()
	glossary, keys, metrics := read(t, "docs/glossary.md"), read(t, "docs/keys.md"), read(t, "docs/metrics.md")
	known := map[string]bool{}
	for _, dir := range []string{"throttle", "throttle/policy", "throttle/limitsyaml", "throttle/policystore", "throttle/upstream", "throttle/usage", "worker", "worker/metrics", "worker/page", "queue"} {
		for name := range exportedNames(t, dir) {
			known[name] = true
		}
	}
	for _, name := range scripts(t) {
		known[name] = true
	}
	kinds := regexp.MustCompile("!([a-z]+)")
	for _, m := range kinds.FindAllString(keys, -1) {
		known[m] = true
	}
	for _, m := range regexp.MustCompile("`(headway_[a-z_]+)`").FindAllStringSubmatch(metrics, -1) {
		known[m[1]] = true
	}
	var said []string
	rows := 0
	for line := range strings.SplitSeq(glossary, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "in code") {
			continue
		}
		rows++
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[3], -1) {
			said = append(said, m[1])
			if !known[m[1]] {
				t.Errorf("glossary: %s: there is no %s in the code", strings.TrimSpace(cells[1]), m[1])
			}
		}
	}
	if rows < 40 {
		t.Fatalf("%d rows: the page is not read", rows)
	}
	missing := append(scripts(t), kinds.FindAllString(keys, -1)...)
	slices.Sort(missing)
	for _, name := range slices.Compact(missing) {
		if !slices.Contains(said, name) {
			t.Errorf("glossary: %s is missing", name)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
