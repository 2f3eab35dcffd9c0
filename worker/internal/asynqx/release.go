package asynqx

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// testedReleases are the releases of asynq whose tasks TestReleases has moved by Headway's scripts.
var testedReleases = []string{"v0.25.0", "v0.25.1", "v0.26.0"}

const asynqModule = "github.com/hibiken/asynq"

// CheckRelease returns an error if this program was built with a release of asynq that was not tested.
// Another release may keep tasks under other keys, and Headway's scripts could lose them. It returns nil
// for a program that does not know what it was built with, as a test. It does no I/O.
var CheckRelease = sync.OnceValue(func() error {
	info, _ := debug.ReadBuildInfo()
	return untested(info)
})

func untested(info *debug.BuildInfo) error {
	release := linkedRelease(info)
	if release == "" || slices.Contains(testedReleases, release) {
		return nil
	}
	newest := testedReleases[len(testedReleases)-1]
	return fmt.Errorf("worker: this program is built with asynq %s, and Headway was tested with %s; run: go get %s@%s, or take a release of Headway that was tested with %[1]s",
		release, strings.Join(testedReleases, ", "), asynqModule, newest)
}

// linkedRelease returns the asynq that the program was built with: v0.26.0, or path@version of a
// module that replaces it, or "" if the program does not know.
func linkedRelease(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	for _, m := range info.Deps {
		switch r := m.Replace; {
		case m.Path != asynqModule:
		case r == nil:
			return m.Version
		case r.Path == asynqModule:
			return r.Version
		default:
			return r.Path + "@" + r.Version
		}
	}
	return ""
}
