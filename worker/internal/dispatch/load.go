package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// load is what the slots of this process, and its places to wait in, are taken by.
type load struct {
	sized   sync.Once
	slots   int           // how many tasks run at a time
	running atomic.Int64  // of them now, those that wait included
	asking  atomic.Int64  // of these, those that are not decided on yet
	ended   atomic.Int64  // how many ever
	holders chan struct{} // a place for each task that may wait in a handler
	surplus atomic.Int64  // tasks that wait without a place, since their turn has come
	check   time.Duration // how often a server without a pacer looks for tasks
}

// Size makes the places for tasks that wait in handlers, once it is known how many run at a time. Only the first call counts.
func (d *Dispatcher) Size(concurrency int) {
	d.load.sized.Do(func() {
		n := d.cfg.MaxHolds
		if n == 0 {
			n = concurrency * 3 / 4
		}
		d.load.holders, d.load.slots = make(chan struct{}, n), max(concurrency, n)
	})
}

// TakeSlot counts a task that has come to a slot. leave frees it: another may be dispatched.
func (d *Dispatcher) TakeSlot(ctx context.Context) (slot *asynqx.Slot, leave func()) {
	d.load.running.Add(1)
	slot = asynqx.ClientOf(ctx).TakeSlot(ctx)
	once := sync.OnceFunc(func() {
		ran := slot.Ran() // what was put back says nothing of how soon runs end
		relieves := slot.Leave()
		d.load.running.Add(-1)
		if ran {
			d.load.ended.Add(1)
		}
		d.slotFreed(relieves)
	})
	// asynq ends a task whose time is over, and takes another, whatever the handler does.
	over := context.AfterFunc(ctx, once)
	return slot, func() { over(); once() }
}

// Deciding counts a task that is about to be decided on, until decided is called.
func (d *Dispatcher) Deciding() (decided func()) {
	d.load.asking.Add(1)
	return sync.OnceFunc(func() { d.load.asking.Add(-1) })
}

// Hold takes a place to wait in for a task that has a slot, and says whether the task may wait for its start there: where it
// was not dispatched, and where it was. leave gives the place back.
func (d *Dispatcher) Hold() (queued, dispatched bool, leave func()) {
	select {
	case d.load.holders <- struct{}{}:
		return true, true, d.endHold
	default:
		// Another process released more than it could take. A task whose turn has
		// come waits nevertheless, or it would only be released again; but the last
		// slot is for those that need not wait.
		dispatched = int(d.load.surplus.Add(1))+cap(d.load.holders) < d.load.slots
		return false, dispatched, func() { d.load.surplus.Add(-1) }
	}
}

// endHold ends a task's wait in the handler: another may be dispatched.
func (d *Dispatcher) endHold() {
	<-d.load.holders
	d.slotFreed(false)
}

// Holds says whether tasks may wait in handlers at all. Where they may not, a task is dispatched only when its start has come.
func (d *Dispatcher) Holds() bool { return d.cfg.Hold > 0 && cap(d.load.holders) > 0 }
