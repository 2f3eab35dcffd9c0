package lua

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var sourceLine = regexp.MustCompile(`(?m)^-- Source:? +(docs/\S+\.md)#(\S+)$`)

// Each Source names a heading that is there.
func TestSources(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("include/*/*.lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range every() {
		paths = append(paths, s.path+".lua")
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := sourceLine.FindStringSubmatch(string(text))
		if m == nil {
			if !strings.HasPrefix(path, "include/") {
				t.Errorf("%s has no Source", path)
			}
			continue
		}
		doc, err := os.ReadFile(filepath.Join("..", m[1]))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if !slices.Contains(anchors(string(doc)), m[2]) {
			t.Errorf("%s: %s has no heading #%s", path, m[1], m[2])
		}
	}
}

// anchors returns the names that a page's headings can be linked by.
func anchors(doc string) []string {
	var out []string
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		heading = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(heading, "")
		out = append(out, strings.ReplaceAll(heading, " ", "-"))
	}
	return out
}
