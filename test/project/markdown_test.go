package project

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository's, from this directory.
const root = "../.."

// page is one Markdown file of the project.
type page struct {
	path   string // from the root, with slashes
	text   string
	blocks []block
}

// block is one fenced block of a page.
type block struct {
	path string
	line int    // of the opening fence
	info string // the language
	text string
}

// pages reads README.md, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and all of docs/.
func pages(t *testing.T) []page {
	t.Helper()
	paths := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root, path)
			paths = append(paths, filepath.ToSlash(path))
		}
		return err
	})
	must(t, err)
	all := make([]page, len(paths))
	for i, path := range paths {
		all[i] = parsePage(path, read(t, path))
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	must(t, err)
	return string(text)
}

func parsePage(path, text string) page {
	p := page{path: path, text: text}
	var open *block
	for i, line := range strings.Split(text, "\n") {
		fence, found := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case found && open == nil:
			open = &block{path: path, line: i + 1, info: fence}
		case found:
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return p
}

// blocks returns the blocks of a language, of all pages.
func blocks(t *testing.T, info string) []block {
	t.Helper()
	var found []block
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.info == info {
				found = append(found, b)
			}
		}
	}
	return found
}

// prose returns a page's text with its blocks blanked, lines kept.
func (p page) prose() string {
	lines, inside := strings.Split(p.text, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if inside || fence {
			lines[i] = ""
		}
		inside = inside != fence
	}
	return strings.Join(lines, "\n")
}

// checkedLanguages are those that a test of this package reads. "text" is what
// programs print, and is not checked.
var checkedLanguages = map[string]bool{"go": true, "yaml": true, "json": true, "ndjson": true, "sh": true, "text": true}

func TestEveryBlockHasALanguage(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if !checkedLanguages[b.info] {
				t.Errorf("%s:%d: a block of %q: no test reads it", b.path, b.line, b.info)
			}
		}
		if strings.Count(p.text, "```")%2 != 0 {
			t.Errorf("%s: a block is not closed", p.path)
		}
	}
}

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)[A-Z]\w*)\(`)
)

// "Every promise above has a test": each test that a page names is there.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			known[m[1]] = true
		}
		return err
	})
	must(t, err)
	const doc = "worker/outbound/doc.go"
	for _, p := range append(pages(t), page{path: doc, text: read(t, doc)}) {
		for _, name := range testName.FindAllString(p.text, -1) {
			if !known[name] {
				t.Errorf("%s names %s, and there is no such test", p.path, name)
			}
		}
	}
}
