package queue

import (
	"testing"
	"testing/synctest"

	"github.com/hibiken/asynq"
)

func sized(n int) *item { return &item{task: asynq.NewTask("x", make([]byte, n))} }

// TestConveyorIsBounded holds what lies between reading and sending within
// maxItems and, but for the last item, maxBytes.
func TestConveyorIsBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ size, fit int }{
		"small": {1, maxItems},
		"large": {maxBytes/4 + 1, 4},
		"huge":  {maxBytes * 2, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			belt, put := newConveyor(), 0
			go func() {
				defer belt.end()
				for range 3 * tt.fit {
					belt.put(sized(tt.size))
					put++
				}
			}()
			for taken := 0; taken < 3*tt.fit; {
				synctest.Wait()
				if put-taken > tt.fit {
					t.Fatalf("%s: %d lie there, want %d at most", name, put-taken, tt.fit)
				}
				taken += len(belt.take(nil))
			}
			if rest := belt.take(nil); rest != nil {
				t.Errorf("%s: %d more", name, len(rest))
			}
		})
	}
}

func TestConveyorEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		belt := newConveyor()
		first := sized(1)
		if !belt.put(first) {
			t.Fatal("refused")
		}
		belt.end()
		belt.end()
		if belt.put(sized(1)) {
			t.Error("put after the end")
		}
		if got := belt.take(nil); len(got) != 1 || got[0] != first {
			t.Errorf("what was put before is gone: %v", got)
		}
		if got := belt.take(nil); got != nil {
			t.Errorf("got %v", got)
		}

		belt = newConveyor()
		taken := make(chan []*item)
		go func() { taken <- belt.take(nil) }()
		synctest.Wait()
		belt.end()
		if got := <-taken; got != nil {
			t.Errorf("got %v", got)
		}

		belt = newConveyor()
		for belt.bytes < maxBytes {
			belt.put(sized(maxBytes))
		}
		refused := make(chan bool)
		go func() { refused <- belt.put(sized(1)) }()
		synctest.Wait()
		belt.end()
		if <-refused {
			t.Error("put where it waited for room at the end")
		}
	})
}
