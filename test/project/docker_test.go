package project

import (
	"fmt"
	"go/version"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// instruction is one of a Dockerfile, with its lines joined.
type instruction struct {
	line int
	name string
	args []string // words; text has them as they stand
	text string
}

// stage is what a FROM begins.
type stage struct {
	from *stage // nil where it begins with an image
	has  []instruction
}

// last returns the instruction of a name that holds in the stage: its own last one, or one of those it begins with.
func (s *stage) last(name string) (found instruction, ok bool) {
	for ; s != nil; s = s.from {
		for _, in := range slices.Backward(s.has) {
			if in.name == name {
				return in, true
			}
		}
	}
	return instruction{}, false
}

// holds reports whether a COPY puts a file at the path.
func (s *stage) holds(path string) bool {
	for ; s != nil; s = s.from {
		for _, in := range s.has {
			if in.name == "COPY" && in.args[len(in.args)-1] == path {
				return true
			}
		}
	}
	return false
}

// instructions reads a Dockerfile.
func instructions(text string) (all []instruction) {
	var joined string
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var more bool
		if line, more = strings.CutSuffix(line, "\\"); more {
			joined += line + " "
			continue
		}
		name, rest, _ := strings.Cut(joined+line, " ")
		all = append(all, instruction{line: i + 1, name: strings.ToUpper(name), args: strings.Fields(rest), text: strings.TrimSpace(rest)})
		joined = ""
	}
	return all
}

var builderImage = regexp.MustCompile(`^golang:(\d+\.\d+\.\d+)-[a-z]+$`)

// stages reads the Dockerfile.
func stages(t *testing.T) map[string]*stage {
	t.Helper()
	all := map[string]*stage{}
	var now *stage
	for _, in := range instructions(read(t, "Dockerfile")) {
		if in.name != "FROM" {
			now.has = append(now.has, in)
			continue
		}
		if len(in.args) != 3 {
			t.Fatalf("Dockerfile:%d: a stage without a name", in.line)
		}
		now = &stage{from: all[in.args[0]]}
		all[in.args[2]] = now
	}
	return all
}

// The builder's Go is not older than go.mod's, what is copied is there, and both images run their program as a user who is not root.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	needs := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))[1]
	for _, in := range instructions(read(t, "Dockerfile")) {
		switch {
		case in.name == "FROM" && strings.HasPrefix(in.args[0], "golang"):
			if built := builderImage.FindStringSubmatch(in.args[0]); built == nil || version.Compare("go"+built[1], "go"+needs) < 0 {
				t.Errorf("Dockerfile:%d: %s is no whole version of Go from go.mod's %s on", in.line, in.args[0], needs)
			}
		case in.name == "COPY" && !strings.HasPrefix(in.args[0], "--from="):
			for _, source := range in.args[:len(in.args)-1] {
				if found, err := filepath.Glob(filepath.Join(root, source)); err != nil || len(found) == 0 {
					t.Errorf("Dockerfile:%d: there is no %s to copy", in.line, source)
				}
			}
		}
	}
	for _, program := range []string{"enqueue", "worker"} {
		s := stages(t)[program]
		if s == nil {
			t.Fatalf("the Dockerfile has no target %s", program)
		}
		user, _ := s.last("USER")
		entry, _ := s.last("ENTRYPOINT")
		path := "/usr/local/bin/headway-" + program
		if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user.text) || entry.text != `["`+path+`"]` || !s.holds(path) ||
			!s.holds("/etc/ssl/certs/ca-certificates.crt") {
			t.Errorf("target %s: user %q, entry point %s, program copied %t", program, user.text, entry.text, s.holds(path))
		}
	}
}

// dockerTakes tells what is wrong with a docker command of a page: a target that is not there, or flags that
// the program of an image does not know.
func dockerTakes(t *testing.T, words []string) error {
	t.Helper()
	if at := slices.Index(words, "--target"); at >= 0 && stages(t)[words[at+1]] == nil {
		return fmt.Errorf("the Dockerfile has no target %s", words[at+1])
	}
	for at, w := range words {
		if name, ok := strings.CutPrefix(w, "headway-"); ok && words[1] == "run" {
			return takes(program(t, name), words[at+1:])
		}
	}
	return nil
}
