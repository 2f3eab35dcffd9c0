// Package traps holds Headway against what went wrong elsewhere.
//
// Each trap has an id: T for those of the five documents that the system comes
// from (an INCR page in Chinese, a survey of limiters in Redis, a token bucket
// with a management page, a rate-limiter pattern with its attack, a nested
// limits file), L for those of limiters that ship, B for those of job queues, I
// for what must always hold. The tables name every id, what went wrong in a
// line, and the test that shows why it can't here, or why it can't occur at
// all. Tests go through the public API, on a real Redis and on miniredis. S are
// the pitfalls of schedules; their tests stand where the thing that they show does.
package traps

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// waiting is how many tests run at once, unless -parallel says otherwise: most
// of them wait more than they work.
const waiting = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", waiting)
	}
	os.Exit(redistest.Main(m))
}

// trap is one thing that went wrong elsewhere.
type trap struct {
	id    string
	wrong string
	tests []func(*testing.T) // which show that it does not here
	never string             // why it cannot occur here, where there is no test
}

func by(tests ...func(*testing.T)) []func(*testing.T) { return tests }

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

// "Every trap has a test, or a reason why it can't occur."
func TestNoTrapIsForgotten(t *testing.T) {
	t.Parallel()
	for _, k := range known {
		for i := range max(k.count, len(k.traps)) {
			want := fmt.Sprintf("%s%02d", k.letter, i+1)
			if i >= len(k.traps) || k.traps[i].id != want {
				t.Fatalf("trap %s is missing, or stands elsewhere than in its order", want)
			}
			trap := k.traps[i]
			if trap.wrong == "" || (len(trap.tests) == 0) == (trap.never == "") {
				t.Errorf("%s needs what went wrong, and either a test or the reason why there is none", trap.id)
			}
			var names []string
			for _, test := range trap.tests {
				name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
				name = name[strings.LastIndexByte(name, '.')+1:]
				if !strings.HasPrefix(name, "Test") {
					t.Errorf("%s: %s is not run by go test", trap.id, name)
				}
				names = append(names, name)
			}
			t.Logf("%s %s: %s%s", trap.id, trap.wrong, strings.Join(names, ", "), trap.never)
		}
	}
}
