package dispatch

import "time"

// burstOf is how many tasks for each slot may be on their way when they are done as
// fast as they come.
const burstOf = 4

// capacity is how many tasks one look may grant.
type capacity struct {
	// ahead is how many whatever their start: none that would find no place to wait
	// in, or no slot to run in.
	ahead int
	// now is how many more of those whose start has come: as many as have left their
	// slots lately, so that the next is at hand when one leaves.
	now int
	// lent says that there are those slots alone which are lent to the tenants that have less than half.
	lent bool
}

// capacity is what this process can take: nothing once its servers take no more tasks. d.mu is
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
	if d.Holds() && !d.gated(false) { // else they wait at the pacer, and take no slots meanwhile
		ahead = min(slots, cap(d.load.holders)-len(d.load.holders)-out)
	}
	// Those who are out beyond the free slots wait for those that leave theirs.
	now := d.leaving() + min(slots, 0)
	if lent > 0 { // those that leave their slots may not be who makes room
		now = 0
	}
	return capacity{ahead: max(0, min(ahead, mostAtOnce)), now: max(0, now), lent: borrows}
}

// coming is how many tasks that were granted here have not come, as far as they are on their way. Dispatcher.mu is held.
func (o *watch) coming() int {
	for ticket, its := range o.out {
		if time.Since(its.at) > outStays {
			delete(o.out, ticket)
		}
	}
	return len(o.out)
}

// leaving is how many tasks have left their slots lately, up to some for each slot.
// d.mu is held.
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

// take sets the room that a look may use aside until it has been taken.
func (d *Dispatcher) take() capacity {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.capacity()
	if d.reach.from() == 0 { // a call holds Redis up, and beside it the next one costs no time
		r.ahead = min(r.ahead, nearAtOnce)
		r.now = min(r.now, nearAtOnce-r.ahead)
	}
	d.taken += r.ahead
	return r
}

// worthALook says whether there is room for several tasks: one look releases them
// in hardly more commands than one. In a burst it is for as many as go out while the
// others are taken. d.mu is held.
func (d *Dispatcher) worthALook() bool {
	r, several := d.capacity(), max(1, min(cap(d.load.holders), d.load.slots)/3)
	if d.burst {
		return r.ahead+r.now >= max(several, d.leaving()/2)
	}
	return r.ahead >= several
}

// slotFreed notes that a task has left its slot or its place to wait in: where tasks
// had to wait for one, the providers are looked at again, in a moment if few are
// free; and at once where a tenant had its share of the slots, and has not any more.
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
			if d.soon == timer { // else they were looked at before it was over
				d.kickAll()
			}
		})
		d.soon = timer
	}
}

// kickStarved has those looked at for whose tasks there was no room while other looks had
// it. d.mu is held.
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

// kickAll has every provider looked at. d.mu is held.
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
