package project

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/programs"
)

// known are the programs that pages may tell a reader to run without a test
// looking at how.
var known = map[string]bool{"curl": true, "git": true, "go": true, "redis-cli": true, "kill": true, "export": true, "cd": true, "source": true}

// Every command that a page tells a reader to type is one: make has the target,
// worker and enqueue take the flags.
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
