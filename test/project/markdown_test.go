package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/llm/pricesyaml"
	"github.com/headway-go/headway/throttle/serve"
	userspage "github.com/headway-go/headway/worker/page"
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

func pagesByPath(t *testing.T) map[string]page {
	t.Helper()
	all := map[string]page{}
	for _, p := range pages(t) {
		all[p.path] = p
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

// Each block is in a language that a test of this package reads, or "text": what programs print. A YAML block is a policy that the
// limiter takes, a file of schedules, of prices or of users, or what TestDeploy, TestKubernetes or TestLimitsConvert reads. An NDJSON block is
// tasks that enqueue batch takes, and a JSON block is objects, one a line or one over many.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		if strings.Count(p.text, "```")%2 != 0 {
			t.Errorf("%s: a block is not closed", p.path)
		}
		for _, b := range p.blocks {
			if err := b.read(t); err != nil {
				t.Errorf("%s:%d: %v", b.path, b.line, err)
			}
		}
	}
}

func (b block) read(t *testing.T) (err error) {
	t.Helper()
	switch b.info {
	case "go", "sh", "text": // TestGoBlocks, TestShownCode, TestShellBlocks
	case "yaml":
		switch {
		case isManifest(b) || strings.HasPrefix(b.text, "# tree.yaml\n") || strings.HasPrefix(b.text, "groups:"):
		case strings.HasPrefix(b.text, "schedules:"):
			_, err = schedule.Parse("", []byte(b.text))
		case strings.HasPrefix(b.text, "prices:"):
			_, err = pricesyaml.Parse("", []byte(b.text))
		case strings.HasPrefix(strings.TrimSpace(b.text), "people:"):
			_, err = userspage.LoadUsers(writeFile(t, "users.yaml", b.text))
		case strings.HasPrefix(b.text, "clients:"):
			_, err = serve.LoadClients(writeFile(t, "clients.yaml", b.text))
		default:
			_, err = limitsyaml.Parse("", []byte(b.text))
		}
	case "ndjson":
		for e := range queue.NewReader(strings.NewReader(b.text)).All() {
			err = errors.Join(err, e.Err)
		}
	case "json":
		dec := json.NewDecoder(strings.NewReader(b.text))
		for err == nil && dec.More() {
			err = dec.Decode(&map[string]any{})
		}
	default:
		err = fmt.Errorf("no test reads a block of %q", b.info)
	}
	return err
}

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
	byPath := pagesByPath(t)
	for _, p := range byPath {
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

// known are the programs that pages may tell a reader to run without a test looking at how.
var known = map[string]bool{"curl": true, "git": true, "go": true, "redis-cli": true, "kill": true, "export": true, "cd": true, "source": true,
	"headway-envoy": true, // its own test looks
}

// Every command that a page tells a reader to type is one: make has the target, worker and enqueue take the flags.
func TestShellBlocks(t *testing.T) {
	t.Parallel()
	targets := makeTargets(t)
	for _, b := range blocks(t, "sh") {
		for i, line := range logicalLines(b.text) {
			words := command(line)
			if len(words) == 0 {
				continue
			}
			where := fmt.Sprintf("%s:%d, command %d", b.path, b.line, i+1)
			switch name := strings.TrimPrefix(words[0], "bin/"); {
			case name == "make":
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !slices.Contains(targets, w) {
						t.Errorf("%s: make has no target %q", where, w)
					}
				}
			case name == "worker" || name == "enqueue":
				if err := takes(programs.Path(t, name), words[1:]); err != nil {
					t.Errorf("%s: %v", where, err)
				}
			case name == "docker":
				if err := dockerTakes(t, words); err != nil {
					t.Errorf("%s: %v", where, err)
				}
			case !known[name]:
				t.Errorf("%s: no test knows %q", where, name)
			}
		}
	}
}

// takes asks the program for help after the flags: it reads them first, and
// answers 0 only if it knows them and their values are of the right kind.
func takes(program string, args []string) error {
	at := len(args)
	if filepath.Base(program) == "enqueue" && at > 1 && (args[at-1] == "-" || !strings.HasPrefix(args[at-1], "-")) {
		at-- // the last is FILE or URL, which ends the flags
	}
	cmd := exec.Command(program, slices.Insert(slices.Clone(args), at, "-h")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[1:], " "), err, stderr.String())
	}
	if !strings.Contains(string(out), "Usage:") {
		return fmt.Errorf("%s: printed no usage", strings.Join(cmd.Args[1:], " "))
	}
	return nil
}

// logicalLines joins lines that end with a backslash.
func logicalLines(text string) []string {
	return strings.Split(strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\\\n", " "), "\n")
}

var (
	word       = regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`)
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
	quotes     = strings.NewReplacer(`'`, "", `"`, "")
)

// command splits a line into words as far as the pages need: quotes, a comment
// at the end, variables before the program. It stops at a pipe or redirection.
func command(line string) []string {
	var words []string
	for _, w := range word.FindAllString(line, -1) {
		if strings.HasPrefix(w, "#") || w == "|" || w == "&" || w == "&&" || strings.HasPrefix(w, ">") || strings.HasPrefix(w, "<") {
			break
		}
		if len(words) == 0 && assignment.MatchString(w) {
			continue
		}
		words = append(words, quotes.Replace(w))
	}
	return words
}

var target = regexp.MustCompile(`(?m)^([a-z/]+):.* ## `)

func makeTargets(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, m := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		names = append(names, m[1])
	}
	return names
}
