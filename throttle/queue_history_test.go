package throttle

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// "Turns are distinct", in order of first asking within a scope and priority; they are work-conserving; nothing is
// over any rule; everybody has a turn; and the tree is what its queues say. HISTORY_STEPS is how many
// steps to take, by several histories side by side, on a server each.
func TestQueueHistories(t *testing.T) {
	t.Parallel()
	const servers = 3
	steps := 6000
	switch {
	case os.Getenv("HISTORY_STEPS") != "":
		var err error
		if steps, err = strconv.Atoi(os.Getenv("HISTORY_STEPS")); err != nil {
			t.Fatal(err)
		}
	case testing.Short():
		steps = 2000
	}
	seed, all := queueSeed(t), newQueueCounts()
	var mu sync.Mutex
	for i := range uint64(servers) {
		t.Run(fmt.Sprintf("redis %d", i), func(t *testing.T) {
			t.Parallel()
			counts := queueHistories(t, redistest.NewServer(t).Client(t), seed+i<<32, (steps+servers-1)/servers)
			mu.Lock()
			defer mu.Unlock()
			all.add(counts)
		})
	}
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		_, rdb := redistest.Miniredis(t)
		queueHistories(t, rdb, seed, min(steps/20, 2000))
	})
	t.Cleanup(func() {
		if !t.Failed() {
			all.enough(t, steps)
		}
	})
}

// queueHistories runs random histories, so many steps in all.
func queueHistories(t *testing.T, rdb redis.UniversalClient, seed uint64, steps int) *queueCounts {
	t.Helper()
	t.Logf("seed %d; repeat with HISTORY_SEED=%d", seed, seed)
	all, own := newQueueCounts(), redistest.Prefix(t)
	for all.steps < steps {
		h := newQueueHistory(seed, eachHistory)
		h.counts = all
		prefix := own + fmt.Sprint(seed)
		if found := h.run(rdb, prefix); found != "" {
			least := h.shrink(rdb, prefix)
			t.Fatalf("%s\n%s\nbefore it was shortened: %s", h, least, found)
		}
		seed++
	}
	return all
}

func (c *queueCounts) add(other *queueCounts) {
	c.steps += other.steps
	for what, n := range other.of {
		c.of[what] += n
	}
}

// enough: so many steps were taken, and everything happened that can.
func (c *queueCounts) enough(t *testing.T, steps int) {
	t.Helper()
	t.Logf("%d steps in all: %v", c.steps, c.of)
	if c.steps < steps {
		t.Errorf("only %d steps were taken, of %d", c.steps, steps)
	}
	for _, one := range queueHappenings {
		if c.of[one.name] == 0 {
			t.Errorf("%s has not happened in %d steps", one.name, c.steps)
		}
	}
}
