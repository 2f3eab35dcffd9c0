//go:build unix

// Package faults holds the built programs against what happens to Redis: a master that is
// killed and replaced, slots that move, a server that freezes, fills up, turns read-only or
// forgets its scripts. Two workers run limited tasks, and beside them bare asynq runs as many
// without a limit on the same servers, as the yardstick of what such a fault costs.
//
// HEADWAY_FAULTS=full runs all of them at full length, which is make faults. Otherwise the
// tests are shorter, and some are left out.
package faults

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

// waiting is how many tests run at once, unless -parallel says otherwise: most of them wait
// more than they work.
const waiting = "4"

var bound = programs.Bound

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	redis.SetLogger(quiet{}) // outages are what is tested
	os.Exit(programs.Main(func() int { return redistest.Main(m) }))
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// lasts waits for as long as a fault lasts, which nothing else can end.
func lasts(d time.Duration) { <-time.After(d) }
