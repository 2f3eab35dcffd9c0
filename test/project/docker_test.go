package project

import (
	"fmt"
	"go/version"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/programs"
)

// stages are those of the Dockerfile by their names: the lines of each stand behind those of the one that it begins with.
func stages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, part := range strings.Split(read(t, "Dockerfile"), "\nFROM ")[1:] {
		first, lines, _ := strings.Cut(part, "\n")
		from, name, named := strings.Cut(first, " AS ")
		if !named {
			t.Fatalf("Dockerfile: a stage without a name: FROM %s", first)
		}
		all[name] = all[from] + lines + "\n"
	}
	return all
}

// The builder's Go is not older than go.mod's, what is copied is there, and both images run their program as a user who is not root.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	file := read(t, "Dockerfile")
	needs := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))[1]
	built := regexp.MustCompile(`(?m)^FROM golang:(\d+\.\d+\.\d+)-[a-z]+ AS `).FindStringSubmatch(file)
	if built == nil || version.Compare("go"+built[1], "go"+needs) < 0 {
		t.Errorf("the builder is %q, no whole version of Go from go.mod's %s on", built, needs)
	}
	for _, copied := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(file, -1) {
		for source := range strings.FieldsSeq(copied[1]) {
			if found, err := filepath.Glob(filepath.Join(root, source)); err != nil || len(found) == 0 {
				t.Errorf("there is no %s to copy", source)
			}
		}
	}
	users := regexp.MustCompile(`(?m)^USER (.*)$`)
	for _, program := range []string{"enqueue", "worker"} {
		stage, path := stages(t)[program], "/usr/local/bin/headway-"+program
		user := users.FindAllStringSubmatch(stage, -1)
		if len(user) == 0 || !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user[len(user)-1][1]) {
			t.Errorf("target %s runs as %q", program, user)
		}
		for _, line := range []string{" " + path + "\n", " /etc/ssl/certs/ca-certificates.crt\n", "\nENTRYPOINT [\"" + path + "\"]\n"} {
			if !strings.Contains(stage, line) {
				t.Errorf("target %s lacks %q", program, line)
			}
		}
	}
}

// dockerTakes tells what is wrong with a docker command of a page: a target that is not there, or flags that
// the program of an image does not know.
func dockerTakes(t *testing.T, words []string) error {
	t.Helper()
	if at := slices.Index(words, "--target"); at >= 0 && stages(t)[words[at+1]] == "" {
		return fmt.Errorf("the Dockerfile has no target %s", words[at+1])
	}
	for at, w := range words {
		if name, ok := strings.CutPrefix(w, "headway-"); ok && words[1] == "run" {
			return takes(programs.Path(t, name), words[at+1:])
		}
	}
	return nil
}
