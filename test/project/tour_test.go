package project

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
		step, _, _ = strings.Cut(step, "\n\n") // what follows the last one
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

// The first walk names the files of throttle that a granted Allow of a plain scope passes, all of them and no other:
// those whose coverage grows by one more call. They have no more functions on that way than it says.
func TestTourOfAllow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "development.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, walk, _ := strings.Cut(string(page), "\nOne `Allow` ")
	walk, _, _ = strings.Cut(walk, "\nA limited task,")
	named := map[string]bool{}
	for _, m := range tourFile.FindAllStringSubmatch(walk, -1) {
		if strings.HasPrefix(m[1], "throttle/") {
			named[m[1]] = true
		}
	}
	said := regexp.MustCompile(`fewer than (\d+) functions`).FindStringSubmatch(walk)
	if said == nil {
		t.Fatal("the walk does not say how many functions there are")
	}
	fewer, _ := strconv.Atoi(said[1])

	passed, functions := passedByAllow(t)
	if want := slices.Sorted(maps.Keys(named)); !slices.Equal(passed, want) {
		t.Errorf("an Allow passes %q; the walk names %q", passed, want)
	}
	if len(functions) >= fewer || len(functions) < fewer*3/4 {
		t.Errorf("an Allow passes %d functions, where the walk says fewer than %d: %q", len(functions), fewer, functions)
	}
}

// passedByAllow returns the files and functions of throttle that one more Allow passes: TestTourOfAllow
// there makes three calls, or four.
func passedByAllow(t *testing.T) (files, functions []string) {
	t.Helper()
	dir, throttle := t.TempDir(), filepath.Join("..", "..", "throttle")
	binary := filepath.Join(dir, "throttle.test")
	run := func(dir, name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	run(throttle, "go", "test", "-c", "-covermode=count", "-o", binary, ".")
	counts := map[string]int{}
	for i, calls := range []string{"3", "4"} {
		profile := filepath.Join(dir, calls+".out")
		run(throttle, binary, "-test.run", "^TestTourOfAllow$/^"+calls+"_calls$", "-test.coverprofile", profile)
		text, err := os.ReadFile(profile)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			block, count, _ := strings.Cut(strings.TrimSpace(line), " ")
			statements, count, found := strings.Cut(count, " ")
			if !found {
				continue // the mode
			}
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatal(err)
			}
			counts[block+" "+statements] += n * (2*i - 1)
		}
	}
	more := filepath.Join(dir, "more.out")
	text := "mode: count\n"
	for block, n := range counts {
		text += block + " " + strconv.Itoa(max(n, 0)) + "\n"
	}
	if err := os.WriteFile(more, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(run(throttle, "go", "tool", "cover", "-func", more)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] == "total:" || fields[2] == "0.0%" {
			continue
		}
		_, file, _ := strings.Cut(fields[0], "/headway/throttle/")
		file, _, _ = strings.Cut(file, ":")
		files, functions = append(files, "throttle/"+file), append(functions, file+" "+fields[1])
	}
	slices.Sort(files)
	return slices.Compact(files), functions
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
