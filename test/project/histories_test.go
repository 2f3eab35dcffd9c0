package project

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// What the tests leave to make histories, which has no race detector, is run there.
func TestHistoriesRunWhatTestsLeave(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("make", "--no-print-directory", "-n", "histories")
	cmd.Dir, cmd.Env = root, withoutMake()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`for tests in '([^']+)' (\S+);`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("make histories names no tests:\n%s", out)
	}
	var run []*regexp.Regexp
	for _, pattern := range m[1:] {
		run = append(run, regexp.MustCompile(string(pattern)))
	}
	left := testsLeft(t)
	if len(left) == 0 {
		t.Fatal("no test is left to make histories")
	}
	for _, name := range left {
		if !slices.ContainsFunc(run, func(r *regexp.Regexp) bool { return r.MatchString(name) }) {
			t.Errorf("make histories does not run %s", name)
		}
	}
}

// testsLeft are the tests that package throttle skips with the race detector.
func testsLeft(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "throttle", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	skips := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tforHistories\(t\)$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range skips.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}
