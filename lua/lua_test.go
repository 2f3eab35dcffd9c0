package lua

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func every() []*Script { return append(All(), OnAsynq()...) }

// Every file is a script of All or OnAsynq, or part of one.
func TestAllIsAll(t *testing.T) {
	t.Parallel()
	used := map[string]bool{"asynq/fence": true} // it goes before scripts of asynq's
	var use func(name string)
	use = func(name string) {
		used[name] = true
		text, err := fs.ReadFile(files, name+".lua")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if part, ok := strings.CutPrefix(strings.TrimSpace(line), includeMark); ok {
				use("include/" + part)
			}
		}
	}
	for _, s := range every() {
		use(s.path)
	}
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !used[strings.TrimSuffix(path, ".lua")] {
			t.Errorf("%s is no script of All and no part of one", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// "Each once", and without comments.
func TestExpand(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	its := fstest.MapFS{
		"a.lua":            file("-- A header.\n-- #include base\n-- #include one\n-- #include two\nreturn x\n"),
		"plain.lua":        file("-- A header.\nreturn 1\n"),
		"bad.lua":          file("-- #include three\n"),
		"include/base.lua": file("local x = 1\n"),
		"include/one.lua":  file("-- #include two\nx = x + 1 -- one\n"),
		"include/two.lua":  file("\nx = 2 * x\n"),
	}
	for name, want := range map[string]string{
		"a":     "local x = 1\nlocal function run()\nx = 2 * x\nx = x + 1 -- one\nreturn x\nend\nreturn run()\n",
		"plain": "return 1\n",
	} {
		if got, err := expand(its, name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := expand(its, "bad"); err == nil || err.Error() != `no script or include "include/three"` {
		t.Errorf("bad: %v", err)
	}
}

// No more than 2,920 lines in all, 1,090 in a script as Redis gets it, and 110 local names: docs/development.md#sizes.
func TestSizes(t *testing.T) {
	t.Parallel()
	all := 0
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := fs.ReadFile(files, path)
			all += strings.Count(string(text), "\n")
		}
		return err
	})
	if err != nil || all > 2920 {
		t.Errorf("%d lines in all, %v", all, err)
	}
	local := regexp.MustCompile(`^local (?:function )?([\w, ]+)`)
	for _, s := range every() {
		if n := strings.Count(s.Source(), "\n"); n > 1090 {
			t.Errorf("%s is expanded to %d lines", s.Name, n)
		}
		locals := 0
		for line := range strings.Lines(s.Source()) {
			if m := local.FindStringSubmatch(line); m != nil {
				locals += 1 + strings.Count(m[1], ",")
			}
		}
		if locals > 110 {
			t.Errorf("%s has %d locals", s.Name, locals)
		}
	}
}

// Every script loads, on Redis and on miniredis, under the name that it is called by.
func TestLoad(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": redistest.Client(t), "miniredis": mini} {
		for _, s := range every() {
			sha, err := rdb.ScriptLoad(t.Context(), s.Source()).Result()
			if err != nil || sha != s.SHA() {
				t.Errorf("%s on %s: loaded as %q, %v; want %q", s.Name, name, sha, err, s.SHA())
			}
		}
	}
}

// What is absent from some server, hides an error, or is slow has no place in a script. Numbers become text through whole, score and
// packed alone: every other way loses digits from 10^14 on.
func TestForbidden(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`(?:^|[^A-Za-z0-9_])(FUNCTION|bit\.|cjson|cmsgpack|redis\.log|goto|tostring|os\.|io\.|require|loadstring|` +
		`dofile|setmetatable|replicate_commands|set_repl|setresp|%\.14g|math\.random)`)
	for _, s := range every() {
		for i, line := range strings.Split(s.Source(), "\n") {
			line, _, _ = strings.Cut(line, "--")
			if m := forbidden.FindStringSubmatch(line); m != nil {
				t.Errorf("%s, expanded, line %d: %s; to see it run: go run ./lua/print.go %[1]s", s.Name, i+1, m[1])
			}
		}
	}
}

// Each script documents what it takes, returns and writes, and each Source names a heading that is there.
func TestHeaders(t *testing.T) {
	t.Parallel()
	source := regexp.MustCompile(`(?m)^-- (?:.*\. )?Source:? +(docs/\S+\.md)#([^\s.]+)`)
	for _, s := range every() {
		text, err := fs.ReadFile(files, s.path+".lua")
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"-- KEYS", "-- ARGV", "-- Returns", "-- Writes"} {
			if !strings.Contains(string(text), "\n"+word) {
				t.Errorf("%s: its header has no %s", s.Name, word)
			}
		}
		m := source.FindStringSubmatch(string(text))
		if m == nil {
			t.Errorf("%s has no Source", s.Name)
			continue
		}
		doc, err := os.ReadFile(filepath.Join("..", m[1]))
		if err != nil || !slices.Contains(anchors(string(doc)), m[2]) {
			t.Errorf("%s: %s has no heading #%s: %v", s.Name, m[1], m[2], err)
		}
	}
}

// anchors returns the names that a page's headings can be linked by.
func anchors(doc string) []string {
	var out []string
	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		heading = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(heading, "")
		out = append(out, strings.ReplaceAll(heading, " ", "-"))
	}
	return out
}
