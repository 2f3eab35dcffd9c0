package redishealth

import (
	"path"
	"strings"
)

// Stack returns a stack trace of runtime/debug as one line that every log handler shows as it is: the
// functions with their files and lines, innermost first, from where the panic began. The same panic
// has the same line each time.
func Stack(trace string) string {
	var frames []string
	lines := strings.Split(strings.TrimSpace(trace), "\n")
	for i := 0; i+1 < len(lines); i++ {
		at, found := strings.CutPrefix(lines[i+1], "\t")
		if !found {
			continue // the goroutine's number, which varies
		}
		i++
		function, _, _ := strings.Cut(strings.TrimPrefix(lines[i-1], "created by "), " in goroutine ")
		if end := strings.LastIndex(function, "("); strings.HasSuffix(function, ")") && end > 0 {
			function = function[:end] // its arguments are addresses
		}
		if function == "panic" {
			frames = nil // what came after handled the panic
			continue
		}
		at, _, _ = strings.Cut(at, " +0x")
		frames = append(frames, path.Base(function)+" "+at)
	}
	return strings.Join(frames, " < ")
}
