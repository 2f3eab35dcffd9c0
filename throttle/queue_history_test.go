package throttle

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// Turns are distinct, in order of first asking within a scope and priority; they are work-conserving; nothing is
// over any rule; everybody has a turn; and the tree is what its queues say. HISTORY_STEPS is how many
// steps to take.
func TestQueueHistories(t *testing.T) {
	t.Parallel()
	steps := 2000
	if os.Getenv("HISTORY_STEPS") != "" {
		var err error
		if steps, err = strconv.Atoi(os.Getenv("HISTORY_STEPS")); err != nil {
			t.Fatal(err)
		}
	}
	rdb := redistest.NewServer(t).Client(t)
	_, mini := redistest.Miniredis(t)
	seed, all := turnsSeed(t), newTurnsCounts()
	own := redistest.Prefix(t)
	for all.steps < steps {
		h := newTurnsHistory(seed, eachHistory)
		h.counts = all
		client := rdb
		if seed%10 == 0 {
			client = mini
		}
		if found := h.runQueue(client, own+fmt.Sprint(seed)); found != "" {
			t.Fatalf("%s\n%s", h, found)
		}
		seed++
	}
	t.Logf("%v", all.of)
}
