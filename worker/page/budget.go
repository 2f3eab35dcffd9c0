package page

import (
	"maps"
	"time"
)

const (
	// budgetMost is how many commands may be sent at once after a quiet time.
	budgetMost = 10 * snapshotCommands
	// streamsKeep is how many of them streams leave to requests, which people wait for.
	streamsKeep = budgetMost / 2
)

// budget is how many commands readings may send: snapshotCommands a second for all together, which actors
// share by turns. The next turn is that of the actor whose readings have cost least (start-time fair
// queueing); an actor that wanted less than its share has no more of it later.
type budget struct {
	most, left float64
	at         time.Time      // when left was true
	ends       map[string]int // of the last turn of each actor, in commands of one actor
	now        int            // the start of the last turn of all
}

func newBudget() budget {
	return budget{most: budgetMost, left: budgetMost, at: time.Now(), ends: map[string]int{}}
}

// start returns where the next turn of an actor starts. The actor with the least is next.
func (b *budget) start(actor string) int { return max(b.ends[actor], b.now) }

// lacks returns how long it takes until n commands may be sent and some are left.
func (b *budget) lacks(n, keep int, now time.Time) time.Duration {
	b.left = min(b.most, b.left+now.Sub(b.at).Seconds()*snapshotCommands)
	b.at = now
	return time.Duration((min(b.most, float64(n+keep)) - b.left) / snapshotCommands * float64(time.Second))
}

// spend takes n commands for an actor.
func (b *budget) spend(actor string, n int) {
	b.left -= float64(n)
	b.now = b.start(actor)
	b.ends[actor] = b.now + n
	maps.DeleteFunc(b.ends, func(_ string, end int) bool { return end <= b.now })
}
