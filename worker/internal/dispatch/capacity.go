package dispatch

import "time"

// burstOf is how many tasks for each slot may be on their way if they finish as fast as they come.
const burstOf = 4

// capacity is how many tasks one poll may grant.
type capacity struct {
	// ahead is how many tasks to grant whatever their start: none that would find no hold or no slot.
	ahead int
	// now is how many more tasks to grant whose start has come: as many as have left their slots
	// lately, so that the next task is at hand when one leaves.
	now int
	// lent is true if only slots are free that are lent to the tenants with less than half.
	lent bool
}

// capacity returns what this process can take: nothing once its servers take no more tasks. d.mu is
// held.
func (d *Dispatcher) capacity() capacity {
	if d.cfg.Retired() {
		return capacity{}
	}
	out := d.taken
	for _, one := range d.watches {
		out += one.coming()
	}
	slots, lent := d.load.slots-int(d.load.running.Load())-out, d.cfg.Servers.Lent()
	borrows := lent > 0 && slots <= 0
	if borrows {
		slots += lent
	}
	ahead := slots
	if d.Holds() && !d.gated(false) { // else they wait at the pacer, and occupy no slot meanwhile
		ahead = min(slots, cap(d.load.holders)-len(d.load.holders)-out)
	}
	// Tasks on their way beyond the free slots wait for those that are about to be freed.
	now := d.leaving() + min(slots, 0)
	if lent > 0 { // the tasks that leave may not be of the tenant that must make room
		now = 0
	}
	return capacity{ahead: max(0, min(ahead, mostAtOnce)), now: max(0, now), lent: borrows}
}

// coming returns how many tasks that were granted here are still on their way. Dispatcher.mu is held.
func (o *watch) coming() int {
	for ticket, its := range o.out {
		if time.Since(its.at) > outStays {
			delete(o.out, ticket)
		}
	}
	return len(o.out)
}

// leaving returns how many tasks have left their slots lately, up to burstOf for each slot. d.mu is
// held.
func (d *Dispatcher) leaving() int {
	ended, age := d.load.ended.Load(), time.Since(d.sampled)
	if age > lately {
		d.recent = 0
		if age < 2*lately {
			d.recent = ended - d.sample
		}
		d.sample, d.sampled = ended, time.Now()
	}
	return min(int(max(d.recent, ended-d.sample)), burstOf*d.load.slots)
}

// take reserves the capacity that a poll may use until its result is known.
func (d *Dispatcher) take() capacity {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.capacity()
	if d.reach.from() == 0 { // a call occupies Redis, and to a Redis nearby the next one costs no time
		r.ahead = min(r.ahead, nearAtOnce)
		r.now = min(r.now, nearAtOnce-r.ahead)
	}
	d.taken += r.ahead
	return r
}

// worthALook reports whether there is room for several tasks: one poll releases them in hardly more
// commands than one. In a burst it requires room for half of the tasks that have left lately. d.mu is
// held.
func (d *Dispatcher) worthALook() bool {
	r, several := d.capacity(), max(1, min(cap(d.load.holders), d.load.slots)/3)
	if d.burst {
		return r.ahead+r.now >= max(several, d.leaving()/2)
	}
	return r.ahead >= several
}

// slotFreed records that a task has left its slot or its hold. If tasks had to wait for one, the
// providers are polled again: shortly if few are free, and at once if a tenant no longer has its share
// of the slots.
func (d *Dispatcher) slotFreed(relieves bool) {
	if relieves {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.kickAll()
		return
	}
	if !d.starved.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.worthALook():
		d.kickAll()
	case d.soon == nil:
		var timer *time.Timer
		timer = time.AfterFunc(d.Lead()/2, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.soon == timer { // else they were polled before it was over
				d.kickAll()
			}
		})
		d.soon = timer
	}
}

// kickStarved polls the providers for whose tasks there was no room while other polls had reserved it.
// d.mu is held.
func (d *Dispatcher) kickStarved() {
	if !d.worthALook() {
		return
	}
	for _, one := range d.watches {
		if one.starved {
			one.kick()
		}
	}
}

// kickAll polls every provider. d.mu is held.
func (d *Dispatcher) kickAll() {
	d.starved.Store(false)
	if d.soon != nil {
		d.soon.Stop()
		d.soon = nil
	}
	for _, one := range d.watches {
		one.kick()
	}
}
