package worker

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

// capacity is what this process can take: nothing once its servers take no more tasks. w.mu is
// held.
func (w *waker) capacity() capacity {
	if w.t.retired() {
		return capacity{}
	}
	out := w.taken
	for _, one := range w.watches {
		out += one.coming()
	}
	slots, lent := w.t.slots-int(w.t.running.Load())-out, w.t.servers.Lent()
	borrows := lent > 0 && slots <= 0
	if borrows {
		slots += lent
	}
	ahead := slots
	if w.t.holds() && !w.t.gated(false) { // else they wait at the pacer, and take no slots meanwhile
		ahead = min(slots, cap(w.t.holders)-len(w.t.holders)-out)
	}
	// Those who are out beyond the free slots wait for those that leave theirs.
	now := w.leaving() + min(slots, 0)
	if lent > 0 { // those that leave their slots may not be who makes room
		now = 0
	}
	return capacity{ahead: max(0, min(ahead, mostAtOnce)), now: max(0, now), lent: borrows}
}

// coming is how many tasks that were granted here have not come, as far as they are on their way. waker.mu is held.
func (o *watch) coming() int {
	for ticket, its := range o.out {
		if time.Since(its.at) > outStays {
			delete(o.out, ticket)
		}
	}
	return len(o.out)
}

// leaving is how many tasks have left their slots lately, up to some for each slot.
// w.mu is held.
func (w *waker) leaving() int {
	ended, age := w.t.ended.Load(), time.Since(w.sampled)
	if age > lately {
		w.recent = 0
		if age < 2*lately {
			w.recent = ended - w.sample
		}
		w.sample, w.sampled = ended, time.Now()
	}
	return min(int(max(w.recent, ended-w.sample)), burstOf*w.t.slots)
}

// take sets the room that a look may use aside until it has been taken.
func (w *waker) take() capacity {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.capacity()
	if w.reach.from() == 0 { // a call holds Redis up, and beside it the next one costs no time
		r.ahead = min(r.ahead, nearAtOnce)
		r.now = min(r.now, nearAtOnce-r.ahead)
	}
	w.taken += r.ahead
	return r
}

// worthALook says whether there is room for several tasks: one look releases them
// in hardly more commands than one. In a burst it is for as many as go out while the
// others are taken. w.mu is held.
func (w *waker) worthALook() bool {
	r, several := w.capacity(), max(1, min(cap(w.t.holders), w.t.slots)/3)
	if w.burst {
		return r.ahead+r.now >= max(several, w.leaving()/2)
	}
	return r.ahead >= several
}

// slotFreed notes that a task has left its slot or its place to wait in: where tasks
// had to wait for one, the providers are looked at again, in a moment if few are
// free; and at once where a tenant had its share of the slots, and has not any more.
func (w *waker) slotFreed(relieves bool) {
	if relieves {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.kickAll()
		return
	}
	if !w.starved.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.worthALook():
		w.kickAll()
	case w.soon == nil:
		var timer *time.Timer
		timer = time.AfterFunc(w.t.lead()/2, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.soon == timer { // else they were looked at before it was over
				w.kickAll()
			}
		})
		w.soon = timer
	}
}

// kickStarved has those looked at for whose tasks there was no room while other looks had
// it. w.mu is held.
func (w *waker) kickStarved() {
	if !w.worthALook() {
		return
	}
	for _, one := range w.watches {
		if one.starved {
			one.kick()
		}
	}
}

// kickAll has every provider looked at. w.mu is held.
func (w *waker) kickAll() {
	w.starved.Store(false)
	if w.soon != nil {
		w.soon.Stop()
		w.soon = nil
	}
	for _, one := range w.watches {
		one.kick()
	}
}
