package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// load is what occupies the slots and holds of this process.
type load struct {
	sized   sync.Once
	slots   int           // how many tasks run at a time
	running atomic.Int64  // of them now, including those that wait
	asking  atomic.Int64  // of these, those without a decision yet
	ended   atomic.Int64  // how many have ever ended
	holders chan struct{} // a place for each task that may wait in a handler
	surplus atomic.Int64  // tasks that wait without a hold, since their turn has come
	check   time.Duration // how often a server without a pacer polls for tasks
}

// Size creates the holds, once it is known how many tasks run at a time. Only the first call counts.
func (d *Dispatcher) Size(concurrency int) {
	d.load.sized.Do(func() {
		n := d.cfg.MaxHolds
		if n == 0 {
			n = concurrency * 3 / 4
		}
		d.load.holders, d.load.slots = make(chan struct{}, n), max(concurrency, n)
	})
}

// TakeSlot counts a task that has come to a slot. leave frees the slot: another task may be
// dispatched.
func (d *Dispatcher) TakeSlot(ctx context.Context) (slot *asynqx.Slot, leave func()) {
	d.load.running.Add(1)
	slot = asynqx.ClientOf(ctx).TakeSlot(ctx)
	once := sync.OnceFunc(func() {
		ran := slot.Ran() // a task that was put back says nothing about how soon runs end
		relieves := slot.Leave()
		d.load.running.Add(-1)
		if ran {
			d.load.ended.Add(1)
		}
		d.slotFreed(relieves)
	})
	// asynq ends a task whose time is over, and takes another one, whatever the handler does.
	over := context.AfterFunc(ctx, once)
	return slot, func() { over(); once() }
}

// Deciding counts a task that is about to be decided on, until decided is called.
func (d *Dispatcher) Deciding() (decided func()) {
	d.load.asking.Add(1)
	return sync.OnceFunc(func() { d.load.asking.Add(-1) })
}

// Hold takes a hold for a task that has a slot. queued and dispatched report whether the task may wait
// for its start in the handler if it was not dispatched, and if it was. leave frees the hold.
func (d *Dispatcher) Hold() (queued, dispatched bool, leave func()) {
	select {
	case d.load.holders <- struct{}{}:
		return true, true, d.endHold
	default:
		// Another process has released more than this one can hold. A task whose turn has come waits
		// nevertheless, or it would only be released again; but the last slot is for tasks that need
		// not wait.
		dispatched = int(d.load.surplus.Add(1))+cap(d.load.holders) < d.load.slots
		return false, dispatched, func() { d.load.surplus.Add(-1) }
	}
}

// endHold ends a task's wait in the handler: another task may be dispatched.
func (d *Dispatcher) endHold() {
	<-d.load.holders
	d.slotFreed(false)
}

// Holds reports whether tasks may wait in handlers at all. If not, a task is dispatched only when its
// start has come.
func (d *Dispatcher) Holds() bool { return d.cfg.Hold > 0 && cap(d.load.holders) > 0 }

// Marked records how long the mark of a last attempt took, which its start waits for.
func (d *Dispatcher) Marked(took time.Duration) { d.reach.mark.note(took) }
