package dispatch

import (
	"math"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
)

// nets says when asynq is to bring waiting tasks by itself, should nobody grant them: see throttle.FallbackDelay. Tasks are
// expected when their limits admit them. Where the workers cannot keep up with that all come by themselves first, are
// picked up and put back for nothing, and keep the workers from the others. So each that does, while this process grants
// starts, makes the net of those after it looser, and a while without any makes it tighter again. The zero nets is ready
// to use. It is safe for concurrent use.
type nets struct {
	mu   sync.Mutex
	slip float64   // how many times as long as expected tasks may wait, less one
	last time.Time // when it was so
}

const (
	mostSlip   = 16 // times as long as expected
	slipGrows  = 1.03
	slipHalves = 30 * time.Second
)

// came notes that a task has come by itself which stood in line.
func (n *nets) came() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.slip, n.last = min(mostSlip, (1+n.by(now))*slipGrows)-1, now
}

// by is the slip by now. n.mu is held.
func (n *nets) by(now time.Time) float64 {
	return n.slip * math.Exp2(-float64(now.Sub(n.last))/float64(slipHalves))
}

// of is in how long a task comes by itself that is expected to start in so long.
func (n *nets) of(expected time.Duration) time.Duration {
	n.mu.Lock()
	slip := n.by(time.Now())
	n.mu.Unlock()
	net := throttle.FallbackDelay(expected)
	if expected > throttle.Never/mostSlip {
		return net // no clock tells
	}
	return net + time.Duration(slip*float64(net))
}
