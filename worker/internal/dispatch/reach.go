package dispatch

import (
	"sync"
	"time"
)

// delayMeter estimates how long something takes that varies: its mean and mean deviation, as TCP's retransmission timer has
// them (RFC 6298). It is safe for concurrent use.
type delayMeter struct {
	first time.Duration // as long as nothing is known

	mu        sync.Mutex
	seen      int
	mean, dev time.Duration
}

// note notes how long it took once.
func (d *delayMeter) note(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	took = min(max(0, took), mostReach)
	d.seen++
	if d.seen == 1 || d.seen == 2 && took < d.mean { // the first may have had to load scripts, or to connect
		d.mean, d.dev = took, took/2
		return
	}
	d.dev += ((took - d.mean).Abs() - d.dev) / 4
	d.mean += (took - d.mean) / 8
}

// bound is how long it takes at most, but for a few in a hundred.
func (d *delayMeter) bound() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == 0 {
		return d.first
	}
	return d.mean + 4*d.dev
}

// known says whether it was measured more than once.
func (d *delayMeter) known() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen > 1
}

// usual is how long it takes, as a rule; 0 as long as nothing is known.
func (d *delayMeter) usual() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mean + d.dev
}

// reach is how far ahead of their starts tasks have to be granted for them to be in time, as it was measured in this
// process: nothing of it is made for a Redis that is near. It is safe for concurrent use.
type reach struct {
	dispatch delayMeter // a call of dispatch
	ask      delayMeter // from its beginning until its moment, by Redis's clock
	hand     delayMeter // from there until its tasks are here
	pickup   delayMeter // from there into the handler
}

const (
	// mostReach bounds how far ahead tasks are granted, whatever was measured: as much is lost at most of what a
	// process was granted that is killed.
	mostReach = time.Second
	// leastReach is what counts as beside Redis: tasks are there well within the pad.
	leastReach = 4 * time.Millisecond
	// leastPickup and mostPickup bound how long before its start a task is handed out.
	leastPickup, mostPickup = 8 * time.Millisecond, 100 * time.Millisecond
)

func newReach() *reach {
	return &reach{
		hand:   delayMeter{first: gatedLead / 2},
		pickup: delayMeter{first: gatedLead / 2},
	}
}

// learn measures a round trip where nothing is known. The quicker of two counts: the first may have to connect.
func (r *reach) learn(ping func() error) {
	for range 2 {
		if r.hand.known() {
			return
		}
		began := time.Now()
		if ping() != nil {
			return
		}
		took := time.Since(began)
		r.dispatch.note(took)
		r.ask.note(took)
		r.hand.note(took)
	}
}

// early is how long before its start a task is handed out to its server.
func (r *reach) early() time.Duration { return min(max(leastPickup, r.pickup.bound()), mostPickup) }

// ahead is how long before its start a task has to be granted, by Redis's clock.
func (r *reach) ahead() time.Duration { return max(gatedLead, r.hand.bound()+r.early()) }

// lead is how long before a start the call has to be made that grants it.
func (r *reach) lead() time.Duration { return min(r.ask.bound()+r.ahead(), mostReach) }

// beyond is by how much that is more than all processes count on.
func (r *reach) beyond() time.Duration { return r.lead() - gatedLead }

// from is how far ahead a start has to be at least: nothing beside Redis, where a task is there well within the pad.
func (r *reach) from() time.Duration {
	if r.hand.usual() <= leastReach {
		return 0
	}
	return min(r.hand.bound(), mostReach)
}

// window is how much a call grants at once, besides what all processes count on: what starts until the next one's tasks
// can be here.
func (r *reach) window() time.Duration {
	return min(r.ahead()-gatedLead+max(spread, r.dispatch.bound()+gatedLead), mostReach)
}
