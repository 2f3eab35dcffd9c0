package project

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	tourFile = regexp.MustCompile("`((?:throttle|worker|lua|queue)/[a-z_/]+\\.(?:go|lua))`")
	tourName = regexp.MustCompile("`([A-Za-z]+)`")
)

// The reader's tour of docs/development.md names functions of the files that it names.
func TestTour(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "development.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, tour, found := strings.Cut(string(page), "## A reader's tour\n")
	if !found {
		t.Fatal("there is no tour")
	}
	tour, _, _ = strings.Cut(tour, "\n## ")
	steps := 0
	for _, step := range regexp.MustCompile(`(?m)^\d+\. `).Split(tour, -1)[1:] {
		at := tourFile.FindAllStringSubmatchIndex(step, -1)
		if len(at) == 0 {
			t.Errorf("a step names no file: %s", step)
		}
		for i, m := range at {
			end := len(step)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			file := step[m[2]:m[3]]
			names := tourName.FindAllStringSubmatch(step[m[1]:end], -1)
			steps += len(names)
			known := declared(t, file)
			for _, name := range names {
				if !known[name[1]] && !elsewhere[name[1]] {
					t.Errorf("%s declares no %s", file, name[1])
				}
			}
		}
	}
	if steps < 20 {
		t.Errorf("the tour names %d functions", steps)
	}
}

// elsewhere are types that a step speaks of, and what it goes back to.
var elsewhere = map[string]bool{"Request": true, "Decision": true, "Limited": true, "Start": true}

// declared returns the functions and types that a Go file declares.
func declared(t *testing.T, file string) map[string]bool {
	t.Helper()
	path := filepath.Join("..", "..", filepath.FromSlash(file))
	names := map[string]bool{}
	if strings.HasSuffix(file, ".lua") {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		return names
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return names
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			names[n.Name.Name] = true
		case *ast.TypeSpec:
			names[n.Name.Name] = true
		}
		return true
	})
	return names
}
