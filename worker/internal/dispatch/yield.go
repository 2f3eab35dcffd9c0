package dispatch

import (
	"slices"
	"time"

	"github.com/headway-go/headway/throttle"
)

// A process yields to others if it serves none of the queues whose tasks wait. The others hand tasks to
// their own servers at the right moment. This process can only put tasks into pending, where a server
// finds them at its next poll. For that it would grant starts further ahead than the others do, and so
// would always be first: a twentieth of a limit was lost.
const (
	// yieldsFor is how long after a start was due this process grants it to a task of other processes.
	yieldsFor = 30 * time.Millisecond
	// aloneFor is how long it does not yield, after no other process granted them in time.
	aloneFor = 10 * time.Second
)

// yield is whether one provider's loop yields. Only the loop uses it.
type yield struct {
	others bool      // all tasks granted last are of queues that only other processes serve
	waited bool      // the next poll is late, so that other processes come first
	alone  time.Time // the time until which no other process is expected to grant them
}

// granted records the queues of granted tasks.
func (y *yield) granted(queues []string, owns func(string) bool) {
	if len(queues) > 0 {
		y.others = !slices.ContainsFunc(queues, owns)
	}
}

// looked records whether another process came first, if this process has waited for that.
func (y *yield) looked(got []throttle.Granted, kicked bool) {
	if y.waited && !kicked && len(got) > 0 && got[0].Wait <= 0 {
		y.alone = time.Now().Add(aloneFor)
	}
}

// due returns the time until the next poll. soonest is that time without yielding, and next the time
// until the next start.
func (y *yield) due(soonest, next time.Duration) time.Duration {
	y.waited = y.others && !time.Now().Before(y.alone)
	if y.waited {
		return next + yieldsFor
	}
	return soonest
}
