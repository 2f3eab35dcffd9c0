package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/headway-go/headway/throttle"
)

// A provider is quiet while nobody there is due for a while, and nobody is on the way. What makes a task due sooner is
// announced, by whoever does, or is done by this process. So looks at quiet providers only find what an announcement
// that was lost would have told, or a clock that has stepped, and need not be many: a process with thousands of quiet
// providers makes some dozens of them a second in all.
const (
	// pollMost is how often a quiet provider is looked at by a process that has few, and pollShare how much less often
	// for each that it has.
	pollMost  = 1200 * time.Millisecond
	pollShare = 20 * time.Millisecond

	// wholeEach is which of the looks at a quiet provider is no glance.
	wholeEach = 30
)

// pollEach is in how long a provider is looked at again, if nothing is due or heard before. d.mu is held.
func (d *Dispatcher) pollEach(one *watch, got throttle.Dispatched) time.Duration {
	if !got.Waiting || len(got.Granted)+len(one.out) > 0 {
		return lookAgain
	}
	each := max(pollMost, time.Duration(len(d.watches))*pollShare)
	return each*3/4 + rand.N(each/2) // those of many begin together
}

// dispatches says whether this process grants a provider's tasks their starts, as far as it knows.
func (d *Dispatcher) dispatches(provider string) bool {
	d.mu.Lock()
	one := d.watches[provider]
	d.mu.Unlock()
	return one != nil && d.watchdog.well(one.beat)
}

// nudge has a quiet provider looked at: there may be news, which a look that is on its way may have come too soon for.
func (o *watch) nudge() {
	if left := time.Until(o.next); left > 0 && left <= spread {
		return
	}
	if o.wanted.IsZero() {
		o.wanted = time.Now()
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// lacksRoom says whether tasks were due that there was no room for here.
func (d *Dispatcher) lacksRoom(one *watch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return one.starved
}
