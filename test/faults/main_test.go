//go:build unix

// Package faults holds the built programs against what happens to Redis: a master that is killed and replaced, slots that move, a
// server that freezes, fills up, turns read-only or forgets its scripts. Two workers run limited tasks, and beside them bare
// asynq runs as many without a limit on the same servers, as the yardstick of what such a fault costs. Networks that delay, cut,
// lose and hold back what two workers send to Redis are faults, too.
//
// HEADWAY_FAULTS=full runs all of them at full length, which is make faults. Otherwise the
// tests are shorter, and some are left out.
package faults

import (
	"os"
	"testing"
	"time"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// full says that every fault is tried, at its full length.
var full = os.Getenv("HEADWAY_FAULTS") == "full"

// sized is one of two, by how long the tests may take.
func sized[T any](short, long T) T {
	if full {
		return long
	}
	return short
}

var bound = programs.Bound

func TestMain(m *testing.M) {
	redistest.AtOnce(4)
	os.Exit(programs.Main(func() int { return redistest.Main(m) }))
}

// lasts waits for as long as a fault lasts, which nothing else can end.
func lasts(d time.Duration) { <-time.After(d) }

var must = redistest.Must
