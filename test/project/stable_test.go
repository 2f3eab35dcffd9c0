package project

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const unstable = "// Its exported names may change in any version.\n"

// "`lua` and `queue/httpsyntax`, whose comments say so": those packages and no others.
func TestUnstablePackagesSaySo(t *testing.T) {
	t.Parallel()
	_, said, found := strings.Cut(read(t, "CHANGELOG.md"), "Packages below `test/` are excepted, and ")
	said, _, ends := strings.Cut(said, "whose comments say so")
	if !found || !ends {
		t.Fatal("CHANGELOG.md does not say which packages are excepted")
	}
	var named, marked []string
	for _, m := range regexp.MustCompile("`([a-z/]+)`").FindAllStringSubmatch(said, -1) {
		named = append(named, m[1])
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), unstable+"package ") {
			var dir string
			dir, err = filepath.Rel(root, filepath.Dir(path))
			marked = append(marked, filepath.ToSlash(dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(named)
	slices.Sort(marked)
	if !slices.Equal(named, marked) {
		t.Errorf("CHANGELOG.md excepts %q, and the comments of %q say that they may change", named, marked)
	}
}
