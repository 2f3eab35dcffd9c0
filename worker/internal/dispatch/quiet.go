package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/headway-go/headway/throttle"
)

// A provider is quiet while none of its waiters is due for a while, and none is on the way. Whatever
// makes a task due sooner is announced by the process that does it, or is done by this process. So
// polls of quiet providers only find what a lost announcement would have reported, or a stepped clock,
// and can be rare: a process with thousands of quiet providers polls some dozens of them a second in
// all.
const (
	// pollMost is the least interval between polls of a quiet provider. With many watches the interval
	// is pollShare for each of them.
	pollMost  = 1200 * time.Millisecond
	pollShare = 20 * time.Millisecond

	// wholeEach is the interval, in polls of a quiet provider, of those that are no glance.
	wholeEach = 30
)

// pollEach returns after how long a provider is polled again, if nothing is due or announced before.
// d.mu is held.
func (d *Dispatcher) pollEach(one *watch, got throttle.Dispatched) time.Duration {
	if !got.Waiting || len(got.Granted)+len(one.out) > 0 {
		return lookAgain
	}
	each := max(pollMost, time.Duration(len(d.watches))*pollShare)
	return each*3/4 + rand.N(each/2) // many watches begin together
}

// dispatches reports whether this process grants a provider's tasks their starts, as far as it knows.
func (d *Dispatcher) dispatches(provider string) bool {
	d.mu.Lock()
	one := d.watches[provider]
	d.mu.Unlock()
	return one != nil && d.watchdog.well(one.beat)
}

// nudge polls a quiet provider: there may be news that a poll under way came too early for.
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

// lacksRoom reports whether tasks were due that this process had no room for.
func (d *Dispatcher) lacksRoom(one *watch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return one.starved
}
