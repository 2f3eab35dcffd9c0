package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// slots is what occupies the slots and holds of this process.
type slots struct {
	sized   sync.Once
	all     int           // how many tasks run at a time
	running atomic.Int64  // of them now, including those that wait
	ended   atomic.Int64  // how many runs have ever ended
	holders chan struct{} // a place for each task that may wait in a handler
	surplus atomic.Int64  // tasks that wait without a hold, since their turn has come

	ahead window // how many tasks may be on their way; guarded by Dispatcher.mu
	// Of the following, guarded by Dispatcher.mu: how many runs had ended at a moment, and in the lately before it.
	sample, recent int64
	sampled        time.Time
	asked          int         // how many tasks the calls under way may grant
	starving       []*loop     // loops without room for their tasks, the first first
	soon           *time.Timer // has them call when it fires
	soonAt         time.Time   // when that is
}

const (
	// lately is over how long the runs that end are counted, and soonFree the time ahead of which a task is granted a slot that is
	// not free yet: about as late as a start may be.
	lately, soonFree = 50 * time.Millisecond, 5 * time.Millisecond
	// gathers is how long to wait for slots that become free together: one call then grants tasks to all of them.
	gathers = time.Millisecond
	// mostAsked is how many tasks one call may grant: more would keep Redis for too long.
	mostAsked = 48
	// nearAsked is the same if Redis is near. The next call is a moment away, and a shorter one delays others less.
	nearAsked = 18
)

// window is how many tasks may be on their way to this process: fewer while they come too late for their starts, and then more again, as
// TCP does for what a network has room for. A late task costs another decision.
type window struct {
	most float64   // 0 before the first task has come: as many as there are slots
	next time.Time // when it may change again
	late bool      // a task was late since it changed
}

const (
	// windowEach is how often the window changes, and leastWindow how small it gets.
	windowEach  = 100 * time.Millisecond
	leastWindow = 4
)

// came records by how much a task has come after its start. d.mu is held.
func (d *Dispatcher) came(late time.Duration) {
	w, all := &d.slots.ahead, float64(d.slots.all)
	w.late = w.late || late > soonFree
	if now := time.Now(); now.After(w.next) {
		if w.next = now.Add(windowEach); w.most == 0 {
			w.most = all
		}
		if w.late {
			w.most *= 0.75
		} else {
			w.most += 1 + w.most/16
		}
		w.most, w.late = min(max(w.most, leastWindow), all), false
	}
}

// Size creates the holds, once it is known how many tasks run at a time. Only the first call counts.
func (d *Dispatcher) Size(concurrency int) {
	d.slots.sized.Do(func() {
		n := d.cfg.MaxHolds
		if n == 0 {
			n = concurrency * 3 / 4
		}
		d.slots.holders, d.slots.all = make(chan struct{}, n), max(concurrency, n)
	})
}

// TakeSlot counts a task that has come to a slot. leave frees the slot: another task may be dispatched.
func (d *Dispatcher) TakeSlot(ctx context.Context) (slot *asynqx.Slot, leave func()) {
	d.slots.running.Add(1)
	slot = asynqx.ClientOf(ctx).TakeSlot(ctx)
	once := sync.OnceFunc(func() {
		ran := slot.Ran() // a task that was put back says nothing about how soon runs end
		relieves := slot.Leave()
		d.slots.running.Add(-1)
		if ran {
			d.slots.ended.Add(1)
		}
		d.slotFreed(relieves)
	})
	// asynq ends a task whose time is over, and takes another one, whatever the handler does.
	over := context.AfterFunc(ctx, once)
	return slot, func() { over(); once() }
}

// Hold takes a hold for a task that has a slot. waits and granted report whether the task may wait for its start in the handler,
// and whether it may if it was granted its start. leave frees the hold.
func (d *Dispatcher) Hold() (waits, granted bool, leave func()) {
	select {
	case d.slots.holders <- struct{}{}:
		return true, true, func() {
			<-d.slots.holders
			d.slotFreed(false)
		}
	default:
		// Another process has brought more than this one can hold. A task whose turn has come waits nevertheless, or it would only
		// be brought again; but the last slot is for tasks that need not wait.
		granted = int(d.slots.surplus.Add(1))+cap(d.slots.holders) < d.slots.all
		return false, granted, func() { d.slots.surplus.Add(-1) }
	}
}

// Holds reports whether tasks may wait in handlers at all. If not, a task is brought only when its start has come.
func (d *Dispatcher) Holds() bool { return d.cfg.Hold > 0 && cap(d.slots.holders) > 0 }

// mostAsked returns how many tasks a call may grant.
func (d *Dispatcher) mostAsked() int {
	if d.reach.from() == 0 {
		return nearAsked
	}
	return mostAsked
}

// leaving returns how many runs will end within soonFree, if as many end as did lately. d.mu is held.
func (d *Dispatcher) leaving() int {
	s := &d.slots
	ended, age := s.ended.Load(), time.Since(s.sampled)
	if age > lately {
		s.recent = 0
		if age < 2*lately {
			s.recent = ended - s.sample
		}
		s.sample, s.sampled = ended, time.Now()
	}
	return min(int(max(s.recent, ended-s.sample)*int64(soonFree)/int64(lately)), s.all)
}

// hasPlenty reports whether tasks that run or are on their way occupy at most half of the slots. d.mu is held.
func (d *Dispatcher) hasPlenty() bool {
	return 2*(int(d.slots.running.Load())+len(d.out)) <= d.slots.all
}

// slotFreed records that a task has left its slot or its hold, and that its tenant no longer has too many if it relieves.
func (d *Dispatcher) slotFreed(relieves bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if relieves {
		for _, l := range d.loops {
			if len(l.skips) > 0 {
				l.kick()
			}
		}
	}
	d.offer()
}

// starve has a loop called when there is room again. d.mu is held.
func (l *loop) starve() {
	if s := &l.d.slots; !slices.Contains(s.starving, l) {
		s.starving = append(s.starving, l)
	}
}

// fed forgets that a loop has no room. d.mu is held.
func (l *loop) fed() {
	s := &l.d.slots
	s.starving = slices.DeleteFunc(s.starving, func(other *loop) bool { return other == l })
}

// offer has starving loops call if there is room. One call grants several tasks in hardly more commands than one, so it waits for more
// room: a while for a second slot, and then only for slots that become free together. It waits for nothing if many become free all the
// time. d.mu is held.
func (d *Dispatcher) offer() {
	s := &d.slots
	if len(s.starving) == 0 {
		return
	}
	n, _ := d.room()
	leaving, pause := min(d.leaving(), nearAsked/2), d.Lead()/2
	if n >= min(d.mostAsked(), max(1, min(cap(s.holders), s.all)/3, leaving)) {
		if leaving == nearAsked/2 {
			d.feed(n)
			return
		}
		pause = min(pause, gathers)
	}
	if at := time.Now().Add(pause); n > 0 && (s.soon == nil || at.Before(s.soonAt)) {
		if s.soon != nil {
			s.soon.Stop()
		}
		s.soonAt = at
		s.soon = time.AfterFunc(pause, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			n, _ := d.room()
			d.feed(n)
		})
	}
}

// feed has n loops call that have starved for longest. d.mu is held.
func (d *Dispatcher) feed(n int) {
	s := &d.slots
	if s.soon != nil {
		s.soon.Stop()
		s.soon = nil
	}
	for _, l := range s.starving[:min(n, len(s.starving))] {
		l.kick()
	}
}
