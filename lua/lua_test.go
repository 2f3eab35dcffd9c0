package lua

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "write testdata/scripts.sha1 anew")

// every is every script, by name.
func every() []*Script {
	all := append(All(), TakeTasks, TakePending, ReleaseTasks, DeferTasks, KeepLeases, PutBack)
	slices.SortFunc(all, func(a, b *Script) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// testdata/scripts.sha1 has the hash of each expanded script: a change of a shared part shows which scripts it changes.
func TestGolden(t *testing.T) {
	t.Parallel()
	const path = "testdata/scripts.sha1"
	var now strings.Builder
	for _, s := range every() {
		fmt.Fprintf(&now, "%s  %s\n", s.SHA(), s.Name)
	}
	if *update {
		if err := os.WriteFile(path, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(now.String()) {
		if !strings.Contains(string(golden), line) {
			t.Errorf("script %s is not what %s says; if you meant to change it, run: make lua/golden", strings.Fields(line)[1], path)
		}
	}
	if len(golden) != now.Len() {
		t.Errorf("%s has other scripts than there are; run: make lua/golden", path)
	}
}

// Every file is part of a script, and every script is listed.
func TestAllIsAll(t *testing.T) {
	t.Parallel()
	used := map[string]bool{"include/asynq/fence.lua": true} // it goes before scripts of asynq's
	for _, s := range every() {
		use(t, used, s.path+".lua")
	}
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !used[path] {
			t.Errorf("%s is no script of All and no part of one", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// use marks a file and all that it includes.
func use(t *testing.T, used map[string]bool, path string) {
	t.Helper()
	text, err := fs.ReadFile(files, path)
	if err != nil {
		t.Fatal(err)
	}
	used[path] = true
	for line := range strings.Lines(string(text)) {
		if part, ok := strings.CutPrefix(strings.TrimSpace(line), includeMark); ok {
			part, _, _ := strings.Cut(part, " ")
			use(t, used, "include/"+part+".lua")
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"good.lua":         {Data: []byte("-- good\n\n-- #include a\n-- #include b when T\nreturn x\n")},
		"missing.lua":      {Data: []byte("-- missing\n-- #include a\n-- #include z\n")},
		"twice.lua":        {Data: []byte("-- twice\n-- #include a\n-- #include a when T\n")},
		"nested.lua":       {Data: []byte("-- #include c\n")},
		"include/a.lua":    {Data: []byte("local a = 1\n")},
		"include/b.lua":    {Data: []byte("local b = 2\n")},
		"include/c.lua":    {Data: []byte("local c = 3\n-- #include a\n")},
		"circular.lua":     {Data: []byte("-- #include d\n")},
		"include/d.lua":    {Data: []byte("-- #include d\n")},
		"include/left.lua": {Data: []byte("")},
	}
	tests := map[string]struct{ name, kinds, want, fault string }{
		"all":        {"good", "TSFC", "-- good\n\nlocal a = 1\nlocal b = 2\nreturn x\n", ""},
		"left out":   {"good", "SF", "-- good\n\nlocal a = 1\nreturn x\n", ""},
		"no script":  {"none", "", "", `no script "none"`},
		"no include": {"missing", "", "", "missing.lua:3: no include/z.lua"},
		"twice":      {"twice", "", "", `twice.lua:3: "a" is included twice`},
		"nested":     {"nested", "", "local c = 3\nlocal a = 1\n", ""},
		"circular":   {"circular", "", "", `include/d.lua:1: "d" is included twice`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := expand(files, test.name, test.kinds)
			fault := ""
			if err != nil {
				fault = err.Error()
			}
			if fault == "" && got != test.want || fault != test.fault {
				t.Errorf("got %q, %q; want %q, %q", got, fault, test.want, test.fault)
			}
		})
	}
}

// "Each is expanded when it is first used": one that cannot be is missed no sooner.
func TestExpandedWhenUsed(t *testing.T) {
	t.Parallel()
	s := load("no such script")
	small := s.For("S")
	for _, use := range []func(){func() { s.Source() }, func() { s.SHA() }, func() { small.Arg() }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a script that is not there has a text")
				}
			}()
			use()
		}()
	}
}

// For returns each script without the algorithms that a call has no rule of.
func TestFor(t *testing.T) {
	t.Parallel()
	for _, s := range every() {
		for _, kinds := range subsets() {
			v := s.For(kinds)
			want, err := expand(files, s.path, kinds)
			if err != nil {
				t.Fatal(err)
			}
			if v.Source() != want || v.Name != s.Name || len(v.SHA()) != 40 || v.SHA() == s.SHA() && v.Source() != s.Source() {
				t.Errorf("%s.For(%q) is not what it expands to", s.Name, kinds)
			}
		}
		if s.For("no such kinds") != s {
			t.Errorf("%s.For of no set is not the whole script", s.Name)
		}
	}
}

// subsets returns every non-empty set of Kinds, in their order.
func subsets() []string {
	var out []string
	for set := 1; set < 1<<len(Kinds); set++ {
		kinds := ""
		for i, k := range Kinds {
			if set&(1<<i) != 0 {
				kinds += string(k)
			}
		}
		out = append(out, kinds)
	}
	return out
}

// What is absent from some server, hides an error, or is slow has no place in a
// script. Numbers become text through whole and pack alone: every other way
// loses digits from 10^14 on.
func TestForbidden(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`(?:^|[^A-Za-z0-9_])(` + strings.Join([]string{
		`FUNCTION`, `struct\.`, `bit\.`, `cjson`, `cmsgpack`, `redis\.log`, `goto`, `pcall`, `tostring`, `os\.`, `io\.`,
		`require`, `loadstring`, `dofile`, `setmetatable`, `replicate_commands`, `set_repl`, `setresp`, `%\.14g`, `math\.random`,
		`table\.concat\((?:[^on]|o[^u]|n[^a])`, `_G`, // but of out and names, which are filled with texts alone
	}, "|") + `)`)
	for _, s := range every() {
		code := strings.Replace(code(s.Source()), "rawget(_G, 'struct') or", "", 1) // what there is where it is absent
		code = strings.Replace(code, "struct.pack, struct.unpack", "", 1)
		if s == Repair { // it is to see which key is of another type, and raises every other error
			code = strings.Replace(code, "redis.pcall(", "redis.call(", 1)
		}
		for _, at := range forbidden.FindAllStringSubmatchIndex(code, -1) {
			t.Errorf("%s, expanded, line %d: %s; to see it run: go run ./lua/print.go %[1]s", s.Name, 1+strings.Count(code[:at[0]], "\n"), code[at[2]:at[3]])
		}
		for _, fault := range concatenations(code) {
			t.Errorf("%s, expanded, line %s; to see it run: go run ./lua/print.go %[1]s", s.Name, fault)
		}
	}
}

// code is a script without its comments.
func code(source string) string {
	return regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(source, "")
}

// text is what may stand on either side of "..": a text, a call of a function
// that makes text, or a variable that is known to hold text.
var text = regexp.MustCompile(`^(?:'.*'|(?:whole|packed|pack|char|varint|stored\.ahead|sub|format|group_of|string\.match|string\.rep)\(.*|string\.rep\(|table\.concat\(.*|(?:[losr]\.|state\.)?(?:scope|ticket|name|rank|level|node|group|unit|key)|text|PAST|from|id|sig|its|at|child|set\.key|nd\.id|gid|g\.id|name|RUNNING|STRAIGHT|whose|s|record|r\.log|log|state|moment|member|latest|answer|behind|begins|path|escaped)$`)

// concatenations returns what is joined to a text and may be a number.
func concatenations(code string) []string {
	var faults []string
	for at := 0; ; at += 2 {
		i := strings.Index(code[at:], "..")
		if i < 0 {
			return faults
		}
		at += i
		if strings.HasPrefix(code[at:], "...") {
			at++
			continue
		}
		for _, operand := range []string{before(code[:at]), after(code[at+2:])} {
			if !text.MatchString(operand) {
				faults = append(faults, fmt.Sprintf("%d: %q is joined to a text, and may be a number",
					1+strings.Count(code[:at], "\n"), operand))
			}
		}
	}
}

var lastOperand, firstOperand = regexp.MustCompile(`(?:'[^']*'|[\w.]+)$`), regexp.MustCompile(`^(?:'[^']*'|[\w.]+\(?)`)

// before returns the operand that a text ends with, a call with its arguments.
func before(code string) string {
	code = strings.TrimSpace(code)
	end, depth := len(code), 0
	for end > 0 && (depth > 0 || code[end-1] == ')') {
		end--
		switch code[end] {
		case ')':
			depth++
		case '(':
			depth--
		}
	}
	return lastOperand.FindString(code[max(0, end-200):end]) + strings.Join(strings.Fields(code[end:]), " ")
}

// after returns the operand that a text begins with, a call without its arguments.
func after(code string) string { return firstOperand.FindString(strings.TrimSpace(code)) }

// A planted number that is joined to a text is found.
func TestForbiddenFinds(t *testing.T) {
	t.Parallel()
	for line, bad := range map[string]bool{
		"local k = 'a' .. whole(n) .. pack(x)":           false,
		"f(1, sub(r.log, 1, n - 1) .. varint(a - b), 2)": false,
		"return (n + 1) .. 'x'":                          true,
		"function f(...) end":                            false,
		"r.log = r.log .. varint(n)":                     false,
		"return '(' .. now":                              true,
		"local k = n .. 'ms'":                            true,
		"  .. n .. pack(x)":                              true,
	} {
		if got := len(concatenations(line)) > 0; got != bad {
			t.Errorf("%q: found %t, want %t", line, got, bad)
		}
	}
}

// Calls that have no calendar among their rules have nothing of it in their scripts.
func TestCalendarStandsAlone(t *testing.T) {
	t.Parallel()
	for _, s := range every() {
		for _, kinds := range subsets() {
			has := strings.Contains(code(s.For(kinds).Source()), "'K'")
			if has && !strings.Contains(kinds, "K") || !has && strings.Contains(kinds, "K") && s.For("K").Source() != s.Source() {
				t.Errorf("%s for %s: holds calendars: %t", s.Name, kinds, has)
			}
		}
	}
}
