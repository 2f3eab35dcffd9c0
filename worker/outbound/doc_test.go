package outbound

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Every test that the package comment names exists.
func TestDocNamesItsTests(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	must(t, err)
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	var tests []byte
	for _, name := range files {
		data, err := os.ReadFile(name)
		must(t, err)
		tests = append(tests, data...)
	}
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(doc), -1)
	if len(names) < 30 {
		t.Errorf("only %d tests are named", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^func ` + name + `\(`).Match(tests) {
			t.Errorf("doc.go names %s, which does not exist", name)
		}
	}
}
