// Package asynqx contains what depends on asynq's internals: the keys and scripts with which asynq keeps tasks, and the Redis
// client that paces its servers. A [Client] stands between a server and Redis. Its [Pacer] decides when the server polls for
// tasks, and hands it those that a [Mover] has taken. [Slots] count what it runs. asynq knows none of them.
//
// The package knows nothing about limits. Only package worker uses it.
package asynqx

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// taskKey returns asynq's key of a task.
func taskKey(queue, id string) string { return "asynq:{" + queue + "}:t:" + id }

// QueuePrefix returns the prefix of asynq's keys of a queue.
func QueuePrefix(queue string) string { return "asynq:{" + queue + "}:" }

// QueueName returns the queue whose keys have a prefix.
func QueueName(prefix string) string {
	return strings.TrimSuffix(strings.TrimPrefix(prefix, "asynq:{"), "}:")
}

// WaitingText is the beginning of the last error of a task that waits and has not failed before.
const WaitingText = "headway: waiting"

// IsWaiting reports whether the text of a last error is Headway's.
func IsWaiting(text string) bool { return strings.HasPrefix(text, WaitingText) }

// SecondAtOrAfter returns the whole second, since 1970, at which a task is not early.
func SecondAtOrAfter(at time.Time) int64 { return at.Add(time.Second - 1).Unix() }

// Sleep waits, and returns false if ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// testedReleases are the releases of asynq whose tasks TestReleases has moved by Headway's scripts.
var testedReleases = []string{"v0.25.0", "v0.25.1", "v0.26.0"}

const asynqModule = "github.com/hibiken/asynq"

// CheckRelease returns an error if this program was built with a release of asynq that was not tested: Headway's scripts could lose its
// tasks. It returns nil for a program that does not know what it was built with, as a test. It does no I/O.
var CheckRelease = sync.OnceValue(func() error {
	info, _ := debug.ReadBuildInfo()
	return untested(info)
})

func untested(info *debug.BuildInfo) error {
	release := linkedRelease(info)
	if release == "" || slices.Contains(testedReleases, release) {
		return nil
	}
	return fmt.Errorf("worker: this program is built with asynq %s, and Headway was tested with %s; run: go get %s@%s, or take a release of Headway that was tested with %[1]s",
		release, strings.Join(testedReleases, ", "), asynqModule, testedReleases[len(testedReleases)-1])
}

// linkedRelease returns the asynq that the program was built with: v0.26.0, or path@version of a module that replaces it, or "".
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
