package upstream

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var example = regexp.MustCompile("`([A-Z][A-Za-z-]+: [^`]+)`")

// Every field that docs/vendor.md shows with a value changes what is read: of an
// answer with it alone, or of one that tells a part of the same quota.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/vendor.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := example.FindAllSubmatch(page, -1)
	if len(examples) < 30 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, m := range examples {
		line := string(m[1])
		name, _, _ := strings.Cut(line, ":")
		subject, _ := parseName(strings.ToLower(name))
		unit := ""
		if subject.byUnit {
			unit = "-" + subject.unit
		}
		understood := false
		for _, beside := range []string{"", subject.source + "-remaining" + unit + ": 0\n", subject.source + "-limit" + unit + ": 123\n"} {
			if beside != "" && subject.source == "" {
				continue
			}
			understood = understood || !reflect.DeepEqual(Read(429, answer(t, beside+line), now), Read(429, answer(t, beside), now))
		}
		if !understood {
			t.Errorf("%s tells nothing", line)
		}
	}
}
