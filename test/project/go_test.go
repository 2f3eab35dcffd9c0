package project

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A block that begins with a package clause is a file. One that begins with a declaration is shown from examples/. Any other
// is a fragment: statements, which stand in a function that has what the pages speak of.
const fragment = `package snippet

import (
%s)

// %s
func _(ctx context.Context, rdb redis.UniversalClient, rules *policy.Policy, limiter *throttle.Limiter,
	limits *worker.Middleware, mux *asynq.ServeMux, handler asynq.Handler, client *queue.Client,
	tenantOf func(*asynq.Task) string) error {
	{
%s	}
	return nil
}
`

// importable are the packages that a fragment may speak of, by name.
var importable = map[string]string{
	"asynq":       "github.com/hibiken/asynq",
	"context":     "context",
	"demand":      "github.com/headway-go/headway/throttle/demand",
	"errors":      "errors",
	"events":      "github.com/headway-go/headway/worker/events",
	"fmt":         "fmt",
	"http":        "net/http",
	"inbound":     "github.com/headway-go/headway/throttle/inbound",
	"bufio":       "bufio",
	"io":          "io",
	"llm":         "github.com/headway-go/headway/throttle/llm",
	"limitsyaml":  "github.com/headway-go/headway/throttle/limitsyaml",
	"log":         "log",
	"metrics":     "github.com/headway-go/headway/worker/metrics",
	"os":          "os",
	"outbound":    "github.com/headway-go/headway/worker/outbound",
	"policy":      "github.com/headway-go/headway/throttle/policy",
	"policystore": "github.com/headway-go/headway/throttle/policystore",
	"queue":       "github.com/headway-go/headway/queue",
	"redis":       "github.com/redis/go-redis/v9",
	"roundtrip":   "github.com/headway-go/headway/throttle/roundtrip",
	"slog":        "log/slog",
	"sql":         "database/sql",
	"strconv":     "strconv",
	"strings":     "strings",
	"throttle":    "github.com/headway-go/headway/throttle",
	"time":        "time",
	"wallclock":   "github.com/headway-go/headway/throttle/wallclock",
	"worker":      "github.com/headway-go/headway/worker",
}

var qualifier = regexp.MustCompile(`\b([a-z]+)\.[A-Z]`)

// imports lists what a fragment and the function around it use.
func imports(text string) string {
	used := map[string]bool{"asynq": true, "context": true, "policy": true, "queue": true, "redis": true, "throttle": true, "worker": true}
	for _, m := range qualifier.FindAllStringSubmatch(text, -1) {
		used[m[1]] = true
	}
	var lines []string
	for name := range used {
		if path, ok := importable[name]; ok {
			lines = append(lines, fmt.Sprintf("\t%q\n", path))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Every Go block compiles.
func TestGoBlocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var fragments []string
	for i, b := range blocks(t, "go") {
		if isDeclaration(b) {
			continue
		}
		where := fmt.Sprintf("%s:%d", b.path, b.line)
		file := filepath.Join(dir, fmt.Sprintf("b%d.go", i))
		source := b.text
		whole := strings.Contains("\n"+source, "\npackage ")
		if !whole {
			source = fmt.Sprintf(fragment, imports(source), where, source)
			fragments = append(fragments, file)
		}
		must(t, os.WriteFile(file, []byte(source), 0o600))
		if formatted, err := format.Source([]byte(b.text)); err != nil {
			t.Errorf("%s: %v", where, err)
		} else if string(formatted) != b.text {
			t.Errorf("%s: gofmt would write\n%s", where, formatted)
		}
		if whole {
			module := root
			if strings.Contains(source, "/redis_rate/") {
				module = filepath.Join(root, "test", "bench") // where the peers are
			} else if strings.Contains(source, "go.opentelemetry.io/") {
				module = filepath.Join(root, "worker", "oteltask")
			} else if strings.Contains(source, "/riverqueue/") {
				module = filepath.Join(root, "throttle", "riverlimit")
			}
			if module == root || !testing.Short() { // make test downloads no other module's; make test/more does
				compile(t, module, where, file)
			}
		}
	}
	if len(fragments) == 0 {
		t.Fatal("no fragments: the pages are not read")
	}
	compile(t, root, "the fragments", fragments...)
}

func isDeclaration(b block) bool {
	return strings.HasPrefix(b.text, "type ") || strings.HasPrefix(b.text, "func ") && !strings.HasPrefix(b.text, "func(")
}

// A declaration that a page shows stands in a program of examples/, which runs with the tests.
func TestShownCode(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "examples", "*", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var code strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		code.Write(text)
	}
	shown := 0
	for _, b := range blocks(t, "go") {
		if !isDeclaration(b) {
			continue
		}
		if shown++; !strings.Contains(code.String(), "\n"+b.text) {
			t.Errorf("%s:%d: no program of examples/ has this as it stands:\n%s", b.path, b.line, b.text)
		}
	}
	if shown == 0 {
		t.Fatal("no declarations: the pages are not read")
	}
}

// compile compiles files as one package, in the module whose go.mod has what they import.
func compile(t *testing.T, dir, what string, files ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export"}, files...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// docs/get-started.md: "Package throttle imports no YAML, no cron, no time zones and no asynq", nor do the packages that need no
// more than it. docs/events.md: "A program that does not import worker/events does not contain it", nor the other products beside
// the core.
func TestThrottleImportsLittle(t *testing.T) {
	t.Parallel()
	const (
		heavy    = `yaml|cron|tzdata|asynq|prometheus|miniredis`
		products = `/headway/(worker/(page|outbound|events|control)|queue/schedule)$`
	)
	for pkg, never := range map[string]string{
		"throttle": heavy, "throttle/policy": heavy, "throttle/inbound": heavy, "throttle/roundtrip": heavy, "throttle/upstream": heavy,
		"throttle/usage": heavy, "worker": products,
	} {
		deps := strings.Fields(goSays(t, "list", "-deps", "./"+pkg))
		if !slices.Contains(deps, "github.com/headway-go/headway/"+pkg) {
			t.Errorf("%s is not among %q", pkg, deps)
		}
		for _, path := range deps {
			if regexp.MustCompile(never).MatchString(path) {
				t.Errorf("%s brings %s", pkg, path)
			}
		}
	}
	for pkg, most := range map[string]int{"throttle": 13, "worker": 36} {
		if n := strings.Count(goSays(t, "list", "-deps", "./"+pkg), "github.com/headway-go/headway/"); n > most {
			t.Errorf("%s brings %d packages of ours, %d at most", pkg, n, most)
		}
	}
}

// "What the benchmarks need stands in no go.mod but theirs": each module that the top requires has
// a package that ours are built of, their tests aside.
func TestGoModIsForUsers(t *testing.T) {
	t.Parallel()
	built := map[string]bool{"github.com/inconshreveable/mousetrap": true} // cobra, on Windows
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
