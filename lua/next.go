package lua

import (
	"embed"
	"strings"
	"sync"
)

//go:embed next/*.lua next/include/*.lua
var nextFiles embed.FS

var nextScripts sync.Map

// Next returns a script of the core that is being built.
func Next(name string) *Script {
	if known, is := nextScripts.Load(name); is {
		return known.(*Script) //nolint:forcetypeassert // see below
	}
	s := &Script{Name: name, path: name, expanded: sync.OnceValue(func() ready { return readyOf(expandNext(name)) })}
	first, _ := nextScripts.LoadOrStore(name, s)
	return first.(*Script) //nolint:forcetypeassert // as above
}

func expandNext(name string) string {
	seen := map[string]bool{}
	var put func(file string) string
	put = func(file string) string {
		text, err := nextFiles.ReadFile("next/" + file + ".lua")
		if err != nil {
			panic("lua: " + err.Error())
		}
		var out strings.Builder
		for line := range strings.SplitAfterSeq(string(text), "\n") {
			part, ok := strings.CutPrefix(strings.TrimSpace(line), includeMark)
			switch {
			case !ok && !strings.HasPrefix(strings.TrimSpace(line), "--"):
				out.WriteString(line)
			case ok && !seen[part]:
				seen[part] = true
				out.WriteString(put("include/" + part))
			}
		}
		return out.String()
	}
	// A local of the outermost function that functions inside use costs each of them a search among all such locals, so the
	// base is outside, and all else in one function.
	out := put(name)
	base := put2("include/base", nextFiles)
	return strings.Replace(out, base, base+"local function run()\n", 1) + "end\nreturn run()\n"
}

func put2(file string, f embed.FS) string {
	text, _ := f.ReadFile("next/" + file + ".lua")
	var out strings.Builder
	for line := range strings.SplitAfterSeq(string(text), "\n") {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			out.WriteString(line)
		}
	}
	return out.String()
}
