package throttle

import "time"

// Waitlist is a Limiter as programs see it that let requests wait in line, such as package worker: who waits, whose turn it
// is, and what became of it. A program that only asks whether it may call needs none of it. It is safe for concurrent use
// and costs nothing to make.
type Waitlist struct{ l *Limiter }

// Waitlist returns the requests that wait for l's limits.
func (l *Limiter) Waitlist() Waitlist { return Waitlist{l} }

// Turn is what a Request says that waits in line.
type Turn struct {
	// WaiterID names a waiter: a denied request gets a place in the queue of its scope, and keeps it until it asks again under
	// the same id and is granted. Decision.Position says where it stands. A program that uses waiter ids must call
	// Dispatch, and see that waiters who are granted their starts ask again. A request with a waiter id overtakes no other
	// waiter. At most 1024 bytes. Defaults to none: the request does not wait in line.
	WaiterID string
	// Priority is the waiter's: a higher one goes first under every rule. At most a million either way. One above
	// Policy.MaxPriority of its scope counts as that when the waiter gets its place; a place stays as it is. Defaults to 0.
	Priority int
	// Lane names a part of the scope's queue. Lanes of the same priority share their turns; within a lane the order is first
	// come, first served. At most 128 bytes. Defaults to none: the waiter goes to the end of the queue.
	Lane string
	// Stride is the share of the lane: of lanes that wait, one of stride 1 starts six tasks
	// for one of stride 6. At most a million. Only used with a Lane. Defaults to 1.
	Stride int
	// DispatchLead is DispatchRequest.Lead. Only used with a WaiterID. Defaults to 0.
	DispatchLead time.Duration
	// MaxDelayQueued is MaxDelay for a waiter that has not been dispatched. At most MaxDelay. Defaults to 0.
	MaxDelayQueued time.Duration
	// Granted is what Dispatch has granted the waiter. Start takes it without asking Redis if it can be in time, and returns it
	// with Decision.Handed. After an error of Start it is still in flight: name it in DispatchRequest.Unused or Deleted.
	// Defaults to none.
	Granted *Granted
	// MissedStart is the start, by the server's clock, that a waiter had been granted and could not use: Decision.At and Wait
	// after it. Only RequeueFront uses it: a waiter goes before those that missed a later start. Defaults to now.
	MissedStart time.Time
}
