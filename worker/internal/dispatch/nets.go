package dispatch

import (
	"math"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
)

// nets computes when asynq brings back waiting tasks by itself if they are not granted: see
// throttle.FallbackDelay. Tasks are expected when their limits admit them. If the workers cannot keep
// up, all tasks first come back by themselves, are picked up and put back for nothing, and keep the
// workers from other tasks. So each such task, while this process grants starts, lengthens the delay
// of those after it, and a period without any shortens it again. The zero nets is ready to use. It is
// safe for concurrent use.
type nets struct {
	mu   sync.Mutex
	slip float64   // waits may take 1+slip times as long as expected
	last time.Time // when slip was that
}

const (
	mostSlip   = 16 // times as long as expected
	slipGrows  = 1.03
	slipHalves = 30 * time.Second
)

// came records that a waiting task has come back by itself.
func (n *nets) came() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.slip, n.last = min(mostSlip, (1+n.by(now))*slipGrows)-1, now
}

// by returns the present slip. n.mu is held.
func (n *nets) by(now time.Time) float64 {
	return n.slip * math.Exp2(-float64(now.Sub(n.last))/float64(slipHalves))
}

// of returns after how long a task comes back by itself that is expected to start after expected.
func (n *nets) of(expected time.Duration) time.Duration {
	n.mu.Lock()
	slip := n.by(time.Now())
	n.mu.Unlock()
	net := throttle.FallbackDelay(expected)
	if expected > throttle.Never/mostSlip {
		return net // its start cannot be predicted
	}
	return net + time.Duration(slip*float64(net))
}
