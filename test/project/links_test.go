package project

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInRef = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names under which a page's headings can be linked to.
func (p page) anchors() map[string]bool {
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(p.prose(), -1) {
		name := notInRef.ReplaceAllString(strings.ToLower(h[1]), "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	byPath := map[string]page{}
	for _, p := range all {
		byPath[p.path] = p
	}
	for _, p := range all {
		for _, m := range link.FindAllStringSubmatch(p.prose(), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := p.path
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), file))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: the link %s leads nowhere: %v", p.path, m[1], err)
				continue
			}
			if to, ok := byPath[target]; ok && anchor != "" && !to.anchors()[anchor] {
				t.Errorf("%s: %s has no heading for the link %s", p.path, target, m[1])
			}
		}
	}
}

// Every page stands in the index.
func TestIndex(t *testing.T) {
	t.Parallel()
	const index = "docs/README.md"
	linked := map[string]bool{}
	for _, m := range link.FindAllStringSubmatch(read(t, index), -1) {
		file, _, _ := strings.Cut(m[1], "#")
		linked[filepath.ToSlash(filepath.Join(filepath.Dir(index), file))] = true
	}
	for _, p := range pages(t) {
		if strings.HasPrefix(p.path, "docs/") && !strings.HasPrefix(p.path, "docs/decisions/0") && p.path != index && !linked[p.path] {
			t.Errorf("%s does not link to %s", index, p.path)
		}
	}
}
