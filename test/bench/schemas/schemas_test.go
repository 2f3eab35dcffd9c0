// Package schemas holds the JSON Schemas of docs against the parsers of the files. It is in
// this module since only it needs a validator.
package schemas

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/test/randompolicy"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const root = "../../.."

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(root, "docs", name+".schema.json"))
	must(t, err)
	return schema
}

// parse returns what the parser of a kind of file says.
func parse(kind, text string) error {
	if kind == "limits" {
		_, err := limitsyaml.Parse("f", []byte(text))
		return err
	}
	_, err := schedule.Parse("f", []byte(text))
	return err
}

// faults are all that a parser has found, one a line.
func faults(t *testing.T, err error) []policy.Fault {
	t.Helper()
	wrong := new(policy.Error)
	if !errors.As(err, &wrong) {
		t.Fatalf("refused by %v", err)
	}
	return wrong.Faults
}

// beyond are the faults that a schema cannot express. docs/limits-yaml.md names their kinds.
var beyond = []string{
	// YAML, which a schema sees only when it is read
	`this is not YAML: exceeded max depth`, `may not stand in the file`, `a second document begins here`,
	`has an anchor`, `is an alias`, `has a tag`, `is there already, on line`,
	// how a value is written
	`is the number [+-]?[0-9][0-9a-z_.]*; write (a whole number in plain digits|it as JSON does)`, `is the date`,
	// bytes, dates, zones and ports
	`time zone .* (is unknown|differs from)`, `"PST" is unknown`, `has a port that|has no port behind|host "\*\.192`,
	`matches every minute`, `hour "24" is not within`,
	// what a time comes to
	`; the (least|most) is [0-9]+(us|ms|s|m|h|d)$`, `limits count whole microseconds`, `write whole seconds`, `the runs are as close as`,
	// several values together, and how deep a name is
	`it must be less than`, `which names no scope`, `burst x per / limit is longer`, `is taken by rules`, `is at level 9`, `is there already, in other letters`,
}

// Every file that a parser takes is valid by the schema, and each that it refuses is not, but for faults that a
// schema cannot express. The files are those of the parsers' own tests.
func TestSchemasOfTables(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := exec.Command("go", "test", "-count=1", "-run", "Fault|Parse|Bound|CatchUp|Match|Pause|Priorit|Share|Weight|Answers|Reading|Breaker|Hosts|App|Check|Lint",
		"./throttle/limitsyaml", "./throttle/policy", "./queue/schedule")
	run.Dir, run.Env = root, append(os.Environ(), corpus.Variable+"="+dir)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	met := make([]bool, len(beyond))
	for kind, least := range map[string][2]int{"limits": {35, 100}, "schedules": {3, 25}} {
		schema := compile(t, kind)
		var taken, refused, untold int
		files, err := filepath.Glob(filepath.Join(dir, kind, "*.yaml"))
		must(t, err)
		for _, path := range files {
			text, err := os.ReadFile(path)
			must(t, err)
			err, invalid := parse(kind, string(text)), check(schema, string(text))
			switch {
			case err == nil && invalid == nil:
				taken++
			case err == nil:
				t.Errorf("%s: the parser takes\n%s\nand the schema says\n%v", kind, text, invalid)
			case invalid != nil:
				refused++
			default:
				untold++
				for _, f := range faults(t, err) {
					at := slices.IndexFunc(beyond, func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(f.String()) })
					if at < 0 {
						t.Errorf("%s: the schema takes\n%s\nand the parser says\n%v", kind, text, err)
						break
					}
					met[at] = true
				}
			}
		}
		t.Logf("%s: %d files are valid by both, %d by neither, and of %d the schema cannot tell", kind, taken, refused, untold)
		if taken < least[0] || refused < least[1] {
			t.Errorf("%s: %d taken and %d refused: the tables are not there", kind, taken, refused)
		}
	}
	for i, pattern := range beyond {
		if !met[i] {
			t.Errorf("no file has the fault %q, or the schema expresses it", pattern)
		}
	}
}

// What the files of the repository and random policies say is valid.
func TestSchemasOfFiles(t *testing.T) {
	t.Parallel()
	limits, schedules := compile(t, "limits"), compile(t, "schedules")
	found := 0
	for pattern, schema := range map[string]*jsonschema.Schema{"examples/*/limits.yaml": limits, "examples/*/schedules.yaml": schedules} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		must(t, err)
		for _, path := range files {
			found++
			text, err := os.ReadFile(path)
			must(t, err)
			valid(t, schema, path, string(text))
		}
	}
	if found < 5 {
		t.Errorf("%d files", found)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	must(t, err)
	for _, path := range pages {
		page, err := os.ReadFile(path)
		must(t, err)
		for i, block := range strings.Split(string(page), "```yaml\n")[1:] {
			text, _, _ := strings.Cut(block, "```")
			name := fmt.Sprintf("%s, block %d", path, i+1)
			switch {
			case parse("limits", text) == nil:
				valid(t, limits, name, text)
			case parse("schedules", text) == nil:
				valid(t, schedules, name, text)
			}
		}
	}
	for seed := range uint64(300) {
		p, err := policy.New(policy.UnmatchedDeny, randompolicy.Limits(rand.New(rand.NewPCG(seed, 1)), []string{"a", "b", "*"}, 4))
		must(t, err)
		valid(t, limits, "seed "+strconv.FormatUint(seed, 10), string(limitsyaml.Format(p)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func valid(t *testing.T, schema *jsonschema.Schema, name, text string) {
	t.Helper()
	if err := check(schema, text); err != nil {
		t.Errorf("%s: the parser takes\n%s\nand the schema says\n%v", name, text, err)
	}
}

// check returns what a schema has against a text.
func check(schema *jsonschema.Schema, text string) error {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return err
	}
	if len(document.Content) == 0 {
		return errors.New("empty")
	}
	instance, err := asJSON(document.Content[0])
	if err != nil {
		return err
	}
	return schema.Validate(instance)
}

// asJSON is a value as the YAML servers of editors see it: by YAML 1.2, which has no dates.
func asJSON(n *yaml.Node) (any, error) {
	switch {
	case n.Kind == yaml.MappingNode:
		all := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			value, err := asJSON(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			all[n.Content[i].Value] = value
		}
		return all, nil
	case n.Kind == yaml.SequenceNode:
		all := []any{}
		for _, item := range n.Content {
			value, err := asJSON(item)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	case n.Tag == "!!str" || n.Tag == "!!timestamp":
		return n.Value, nil
	}
	var value any
	err := n.Decode(&value)
	return value, err
}
