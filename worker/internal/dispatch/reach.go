package dispatch

import (
	"sync"
	"time"
)

// delayMeter estimates a varying duration by its mean and mean deviation, as TCP does (RFC 6298). It is safe for concurrent use.
type delayMeter struct {
	first time.Duration // until a first measurement

	mu        sync.Mutex
	seen      int
	mean, dev time.Duration
}

// note records one measurement.
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

// bound returns an upper bound of the duration, which a few in a hundred exceed.
func (d *delayMeter) bound() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == 0 {
		return d.first
	}
	return d.mean + 4*d.dev
}

// known reports whether there is more than one measurement.
func (d *delayMeter) known() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen > 1
}

// usual returns the usual duration, 0 before the first measurement.
func (d *delayMeter) usual() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mean + d.dev
}

// reach measures how far ahead of their starts tasks have to be granted to be in time here. It is safe for concurrent use.
type reach struct {
	dispatch delayMeter // a call of dispatch
	ask      delayMeter // from the beginning of the call until its time on Redis's clock
	hand     delayMeter // from that time until its tasks are here
	pickup   delayMeter // from there into the handler
	mark     delayMeter // the mark of a last attempt, before its start
}

const (
	// mostReach bounds how far ahead tasks are granted, and so how much of a limit, in time, is lost when a process is killed.
	mostReach = time.Second
	// leastReach is the delay up to which Redis counts as near: tasks then arrive well within the pad.
	leastReach = 4 * time.Millisecond
	// leastPickup and mostPickup bound how long before its start a task is handed out.
	leastPickup, mostPickup = 8 * time.Millisecond, 100 * time.Millisecond
)

// learn measures a round trip if there is no measurement yet. The shorter of two counts, since the first may include connecting.
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

// early returns how long before its start a task is handed to its server.
func (r *reach) early() time.Duration {
	return min(max(leastPickup, r.pickup.bound()), mostPickup) + min(r.mark.bound(), mostPickup)
}

// ahead returns how long before its start a task has to be granted, by Redis's clock.
func (r *reach) ahead() time.Duration { return max(gatedLead, r.hand.bound()+r.early()) }

// lead returns how long before a start the call that grants it has to be made.
func (r *reach) lead() time.Duration { return min(r.ask.bound()+r.ahead(), mostReach) }

// beyond returns by how much lead exceeds gatedLead, which all processes assume.
func (r *reach) beyond() time.Duration { return r.lead() - gatedLead }

// from returns how far ahead a start has to be at least: 0 if Redis is near.
func (r *reach) from() time.Duration {
	if r.hand.usual() <= leastReach {
		return 0
	}
	return min(r.hand.bound(), mostReach)
}

// window returns until how far beyond gatedLead one call grants starts: until the tasks of the next call can arrive.
func (r *reach) window() time.Duration {
	return min(r.ahead()-gatedLead+max(spread, r.dispatch.bound()+gatedLead), mostReach)
}

// Lead returns how long before its start a task is granted at the latest: never so early that it would not be held.
func (d *Dispatcher) Lead() time.Duration {
	if !d.Holds() {
		return 0
	}
	return min(gatedLead, d.cfg.Hold*2/3)
}

// far returns what the distance of Redis adds, 0 if tasks do not wait for their starts here.
func (d *Dispatcher) far(adds func() time.Duration) time.Duration {
	if !d.Holds() {
		return 0
	}
	return adds()
}

// Marked records how long the mark of a last attempt took, which its start waits for.
func (d *Dispatcher) Marked(took time.Duration) { d.reach.mark.note(took) }
