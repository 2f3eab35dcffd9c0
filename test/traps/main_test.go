// Package traps holds Headway against what went wrong elsewhere.
//
// Each trap has an id: T for those of the five documents that the system comes
// from (an INCR page in Chinese, a survey of limiters in Redis, a token bucket
// with a management page, a rate-limiter pattern with its attack, a nested
// limits file), L for those of limiters that ship, B for those of job queues, I
// for what must always hold. The tables name every id, what went wrong in a
// line, and the test that shows why it can't here, or why it can't occur at
// all. Tests go through the public API, on a real Redis and on miniredis.
package traps

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// waiting is how many tests run at once, unless -parallel says otherwise: most
// of them wait more than they work.
const waiting = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	redis.SetLogger(nobody{}) // outages are part of the tests
	os.Exit(redistest.Main(m))
}

type nobody struct{}

func (nobody) Printf(context.Context, string, ...any) {}

// trap is one thing that went wrong elsewhere.
type trap struct {
	id    string
	wrong string
	// One of: a test, the id whose test is this one's too, the reason why it
	// can't occur here.
	test  func(*testing.T)
	like  string
	never string
}

// known is how many traps there are of each letter.
var known = []struct {
	letter string
	traps  []trap
	count  int
}{
	{"T", documents, 67},
	{"L", libraries, 35},
	{"B", jobQueues, 14},
	{"I", invariants, 21},
}

func TestTraps(t *testing.T) {
	t.Parallel()
	for _, k := range known {
		for _, trap := range k.traps {
			if trap.test == nil {
				continue
			}
			t.Run(trap.id, func(t *testing.T) {
				t.Parallel()
				t.Log(trap.wrong)
				trap.test(t)
			})
		}
	}
}

// "Every trap has a test, or a reason why it can't occur."
func TestNoTrapIsForgotten(t *testing.T) {
	t.Parallel()
	var tested []string
	for _, k := range known {
		for _, trap := range k.traps {
			if trap.test != nil {
				tested = append(tested, trap.id)
			}
		}
	}
	never := 0
	for _, k := range known {
		for i := range max(k.count, len(k.traps)) {
			want := fmt.Sprintf("%s%02d", k.letter, i+1)
			if i >= len(k.traps) || k.traps[i].id != want {
				t.Fatalf("trap %s is missing, or stands elsewhere than in its order", want)
			}
			trap := k.traps[i]
			ways := 0
			for _, told := range []bool{trap.test != nil, trap.like != "", trap.never != ""} {
				if told {
					ways++
				}
			}
			if ways != 1 || trap.wrong == "" {
				t.Errorf("%s needs what went wrong, and either a test or a reason for none", trap.id)
			}
			if trap.like != "" && !slices.Contains(tested, trap.like) {
				t.Errorf("%s points to %s, which has no test", trap.id, trap.like)
			}
			if trap.never != "" {
				never++
			}
		}
	}
	t.Logf("%d tests; %d can't occur here", len(tested), never)
}
