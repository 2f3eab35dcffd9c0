package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// The page shows a tree and what convert prints of it.
func TestLimitsConvert(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/from-redis-rate.md")
	must(t, err)
	_, tree, found := strings.Cut(string(page), "```yaml\n# tree.yaml\n")
	tree, rest, _ := strings.Cut(tree, "```\n")
	_, want, _ := strings.Cut(rest, "```yaml\n")
	want, _, _ = strings.Cut(want, "```\n")
	if !found || want == "" {
		t.Fatal("the page has no tree.yaml, or no limits.yaml after it")
	}
	file := filepath.Join(t.TempDir(), "tree.yaml")
	must(t, os.WriteFile(file, []byte(tree), 0o600))
	convert := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"limits", "convert"}, args...), noEnv, &out, &errs)
		return code, out.String(), errs.String()
	}
	code, got, errs := convert(file)
	if code != cli.ExitOK || got != want || errs != "" {
		t.Errorf("exit %d, %s, printed\n%s\nthe page has\n%s", code, errs, got, want)
	}
	if _, err := limitsyaml.Parse("printed", []byte(got)); err != nil {
		t.Error(err)
	}
	if code, got, _ := convert("-json", file); code != cli.ExitOK || !strings.HasPrefix(got, `{"limits":"unmatched: allow\nlimits:\n  user:`) {
		t.Errorf("exit %d: %s", code, got)
	}
	if code, got, errs := convert(limitsFile(t, someLimits)); code != cli.ExitFailed || got != "" || !strings.Contains(errs, "limits is not a field of the tree; write schema\n") {
		t.Errorf("a limits.yaml: exit %d, %s%s", code, got, errs)
	}
	if code, _, errs := convert("/nowhere"); code != cli.ExitFailed || !strings.Contains(errs, "there is no limits file /nowhere") {
		t.Errorf("no file: exit %d, %s", code, errs)
	}
	if code, _, errs := convert("-redis", "redis://h", file); code != cli.ExitUsage || !strings.Contains(errs, "-redis does not go with worker limits convert") {
		t.Errorf("with -redis: exit %d, %s", code, errs)
	}
}
