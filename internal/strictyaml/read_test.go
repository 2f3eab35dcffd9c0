package strictyaml

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
)

// "one document of plain YAML in UTF-8, without anchors, aliases, merge keys or tags, each name once"
func TestRead(t *testing.T) {
	t.Parallel()
	format := Format{TooLong: "divide it", Empty: "write {}"}
	for name, c := range map[string]struct{ text, want string }{
		"fine":              {"a: 1\nb: 2\n", ""},
		"nothing":           {"# later\n", "1:1: the file is empty; write {}"},
		"too long":          {"#" + strings.Repeat("x", MaxBytes), "1:1: the file is longer than 4194304 bytes; divide it"},
		"two documents":     {"a: 1\n---\n", "2:1: a second document begins here"},
		"not UTF-8":         {"a: 1\n# \xff\n", "2:3: byte 0xff is not UTF-8"},
		"an anchor":         {"a: &x 1\n", "1:4: a: a has an anchor"},
		"an alias":          {"a: &x 1\nb: *x\n", "2:4: b: b is an alias"},
		"a merge key":       {"<<: {a: 1}\n", "1:1: << is a merge key"},
		"a tag":             {"a: !!str 1\n", "1:4: a: a has a tag"},
		"a name twice":      {"a: 1\na: 2\n", "2:1: a: a is there already, on line 1"},
		"in order":          {"b: *x\na: 1\n", "1:4: "},
		"too deep":          {strings.Repeat("[", 70) + strings.Repeat("]", 70), "nothing needs so much nesting"},
		"a tab":             {"a:\n\tb: 1\n", "indent with spaces, not tabs"},
		"a number is fine":  {"404: 1\n", ""},
		"a list as a name":  {"[a]: 1\n", "1:1: a list stands where a name has to"},
		"an odd name shown": {"a b: &x 1\n", `1:6: "a b": "a b" has an anchor`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := faultsOf(format, c.text)
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want in it %q", got, c.want)
			}
		})
	}
}

// faultsOf reads a mapping of scalars.
func faultsOf(format Format, text string) string {
	var faults Faults
	if root := format.Read([]byte(text), &faults); root != nil {
		if faults.Is(Field{Label: "the file", Key: root, Value: root}, yaml.MappingNode, "", "fields") {
			for _, f := range faults.Fields(root, "") {
				faults.Is(f, yaml.ScalarNode, diag.PathTo("", f.Name), "a value")
			}
		}
	}
	var b strings.Builder
	for _, f := range faults.All() {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}
