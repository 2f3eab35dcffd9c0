package project

import (
	"encoding/json"
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
	name string
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

var (
	builderImage = regexp.MustCompile(`^golang:(\d+\.\d+\.\d+)-[a-z]+$`)
	pinnedImage  = regexp.MustCompile(`^[a-z0-9./_-]+(:\d+)?[a-z0-9./_-]*:[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?$`)
	numericUser  = regexp.MustCompile(`^[1-9]\d*(:[1-9]\d*)?$`)
)

// dockerFaults returns what is wrong with a Dockerfile, and its stages. goVersion is that of go.mod; exists
// tells whether the context has a file.
func dockerFaults(text, goVersion string, exists func(string) bool) (faults []string, stages map[string]*stage) {
	stages = map[string]*stage{}
	var now *stage
	for _, in := range instructions(text) {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("Dockerfile:%d: ", in.line)+fmt.Sprintf(format, args...))
		}
		if in.name == "FROM" {
			image := in.args[0]
			now = &stage{from: stages[image]}
			if len(in.args) == 3 && strings.EqualFold(in.args[1], "as") {
				now.name = in.args[2]
				stages[now.name] = now
			} else {
				fault("the stage has no name: write FROM %s AS name", image)
			}
			switch built := builderImage.FindStringSubmatch(image); {
			case now.from != nil, image == "scratch":
			case built != nil:
				if version.Compare("go"+built[1], "go"+goVersion) < 0 {
					fault("%s is older than go.mod's %s", image, goVersion)
				}
			case strings.HasPrefix(image, "golang"):
				fault("%s does not name a whole version of Go and a system, as golang:%s-trixie", image, goVersion)
			case !pinnedImage.MatchString(image):
				fault("%s has no tag with a version", image)
			}
			continue
		}
		if now == nil {
			fault("%s stands before the first FROM", in.name)
			continue
		}
		now.has = append(now.has, in)
		switch in.name {
		case "ADD":
			fault("ADD loads URLs and unpacks archives: use COPY")
		case "USER":
			if !numericUser.MatchString(in.text) {
				fault("USER %s: write a number that is not 0, which a cluster can see is not root", in.text)
			}
		case "COPY":
			sources := in.args[:max(len(in.args)-1, 0)]
			if len(sources) > 0 {
				if from, ok := strings.CutPrefix(sources[0], "--from="); ok {
					if stages[from] == nil {
						fault("there is no stage %s before it", from)
					}
					continue
				}
			}
			for _, source := range sources {
				if !exists(source) {
					fault("there is no %s to copy", source)
				}
			}
		}
	}
	return append(faults, targetFaults(stages)...), stages
}

// targetFaults returns what is wrong with the images of the two programs.
func targetFaults(stages map[string]*stage) (faults []string) {
	for _, program := range []string{"enqueue", "worker"} {
		fault := func(format string, args ...any) {
			faults = append(faults, "target "+program+": "+fmt.Sprintf(format, args...))
		}
		s := stages[program]
		if s == nil {
			fault("there is no such stage")
			continue
		}
		if _, ok := s.last("USER"); !ok {
			fault("it runs as root")
		}
		if !s.holds("/etc/ssl/certs/ca-certificates.crt") {
			fault("it knows no certificate authority")
		}
		entry, _ := s.last("ENTRYPOINT")
		var words []string
		switch err := json.Unmarshal([]byte(entry.text), &words); {
		case err != nil || len(words) != 1:
			fault(`ENTRYPOINT %s: write ["/usr/local/bin/headway-%s"], since there is no shell`, entry.text, program)
		case filepath.Base(words[0]) != "headway-"+program || !s.holds(words[0]):
			fault("%s is not copied into it", words[0])
		}
	}
	return faults
}

var goLine = regexp.MustCompile(`(?m)^go (\S+)$`)

func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	faults, _ := dockerFaults(text, goLine.FindStringSubmatch(read(t, "go.mod"))[1], func(name string) bool {
		found, err := filepath.Glob(filepath.Join(root, name))
		return err == nil && len(found) > 0
	})
	for _, fault := range faults {
		t.Error(fault)
	}
	if !strings.Contains(text, "RUN CGO_ENABLED=0 go build -trimpath -o /out/ ./cmd/worker ./cmd/enqueue\n") {
		t.Error("the programs are not built as those of a release are")
	}
}

// Each fault is found, in a file that has no other.
func TestDockerfileFaults(t *testing.T) {
	t.Parallel()
	good := read(t, "Dockerfile")
	from := regexp.MustCompile(`golang:[\w.-]+`).FindString(good)
	for name, tt := range map[string]struct{ old, now, want string }{
		"nothing":         {"", "", ""},
		"no tag":          {from, "golang", "does not name a whole version"},
		"latest":          {from, "golang:latest", "does not name a whole version"},
		"half a version":  {from, "golang:1.26-trixie", "does not name a whole version"},
		"old":             {from, "golang:1.25.9-trixie", "golang:1.25.9-trixie is older than go.mod's 1.26.0"},
		"another's tag":   {"FROM scratch", "FROM static", "static has no tag"},
		"a port":          {"FROM scratch", "FROM registry.example:5000/static", "static has no tag"},
		"word for a tag":  {"FROM scratch", "FROM static:nonroot", "static:nonroot has no tag with a version"},
		"no name":         {"FROM scratch AS base", "FROM scratch", "the stage has no name"},
		"root":            {"USER 65532:65532", "USER 0", "USER 0: write a number"},
		"root's group":    {"USER 65532:65532", "USER 65532:0", "USER 65532:0: write a number"},
		"a name":          {"USER 65532:65532", "USER nonroot", "USER nonroot: write a number"},
		"no user":         {"USER 65532:65532", "", "target worker: it runs as root"},
		"nothing to copy": {"COPY LICENSE", "COPY LICENCE", "there is no LICENCE to copy"},
		"no such stage":   {"--from=build /out/worker", "--from=builder /out/worker", "there is no stage builder"},
		"add":             {"COPY . .", "ADD https://example.com/a.tar.gz .", "use COPY"},
		"no target":       {"AS enqueue", "AS enqueuer", "target enqueue: there is no such stage"},
		"shell form":      {`["/usr/local/bin/headway-worker"]`, "/usr/local/bin/headway-worker", "target worker: ENTRYPOINT"},
		"another's":       {`["/usr/local/bin/headway-worker"]`, `["/usr/local/bin/headway-enqueue"]`, "is not copied into it"},
		"no certificates": {"COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt", "", "knows no certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(good, tt.old) {
				t.Fatalf("the Dockerfile has no %q", tt.old)
			}
			faults, _ := dockerFaults(strings.Replace(good, tt.old, tt.now, 1), "1.26.0", func(name string) bool { return name != "LICENCE" })
			said := strings.Join(faults, "\n")
			if tt.want == "" && said != "" || !strings.Contains(said, tt.want) {
				t.Errorf("faults:\n%s\nwant %q", said, tt.want)
			}
		})
	}
}

// "What .gitignore names, and nothing else"
func TestDockerignore(t *testing.T) {
	t.Parallel()
	patterns := func(name string) (list []string) {
		for line := range strings.Lines(read(t, name)) {
			line = strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(line), "/"), "**/")
			if line != "" && !strings.HasPrefix(line, "#") {
				list = append(list, line)
			}
		}
		slices.Sort(list)
		return list
	}
	if git, docker := patterns(".gitignore"), patterns(".dockerignore"); !slices.Equal(git, docker) {
		t.Errorf(".gitignore names %q, and .dockerignore %q", git, docker)
	}
}

// dockerTakes tells what is wrong with a docker command of a page: a target that is not there, or flags that
// the program of an image does not know.
func dockerTakes(t *testing.T, words []string) error {
	t.Helper()
	_, stages := dockerFaults(read(t, "Dockerfile"), "1.26.0", func(string) bool { return true })
	if at := slices.Index(words, "--target"); at >= 0 && stages[words[at+1]] == nil {
		return fmt.Errorf("the Dockerfile has no target %s", words[at+1])
	}
	for at, w := range words {
		if name, ok := strings.CutPrefix(w, "headway-"); ok && words[1] == "run" {
			return takes(program(t, name), words[at+1:])
		}
	}
	return nil
}
