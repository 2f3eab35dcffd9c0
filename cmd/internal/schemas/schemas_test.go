package schemas

import (
	"os"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// What a schema says of a field stands in the page of its file, in the row of the field.
func TestDescriptionsAreThoseOfThePages(t *testing.T) {
	t.Parallel()
	for page, fields := range map[string][]Field{"limits-yaml.md": LimitsFields(), "schedules.md": ScheduleFields()} {
		text, err := os.ReadFile("../../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			if f.Description == "" || page == "schedules.md" && f.Owner != "schedule" { // its page has no table of tasks
				continue
			}
			if !hasRow(string(text), f) {
				t.Errorf("docs/%s has no row | `%s` | %s |", page, f.Name, f.Description)
			}
		}
	}
}

func hasRow(page string, f Field) bool {
	for row := range strings.Lines(page) {
		about, found := strings.CutPrefix(row, "| `"+f.Name+"` | ")
		if found && strings.HasPrefix(strings.ReplaceAll(about, "`", ""), f.Description) {
			return true
		}
	}
	return false
}

// Each field of a schema is described.
func TestEachFieldIsDescribed(t *testing.T) {
	t.Parallel()
	for _, name := range Names {
		if text := string(For(name)); strings.Contains(text, `"description": ""`) {
			t.Errorf("%s has a field that is not described", name)
		}
	}
	for _, f := range LimitsFields() {
		for _, word := range policy.Words(f.Name) {
			if !strings.Contains(f.Description, word) {
				t.Errorf("what is said of %s does not name %s: %s", f.Name, word, f.Description)
			}
		}
	}
	if n := len(LimitsFields()); n != 2+11+2+8+19 {
		t.Errorf("%d fields of limits.yaml", n)
	}
}
