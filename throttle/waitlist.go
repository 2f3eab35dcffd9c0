package throttle

import "time"

// Waitlist is the part of a Limiter for programs that queue denied requests, such as package worker:
// it joins waiters, dispatches them, and receives what became of them. Programs that only ask for
// decisions do not need it. It is safe for concurrent use and costs nothing to make.
type Waitlist struct{ l *Limiter }

// Waitlist returns the waitlist of l's limits. It does no I/O.
func (l *Limiter) Waitlist() Waitlist { return Waitlist{l} }

// Turn is the part of a Request that lets it wait in a queue.
type Turn struct {
	// WaiterID names a waiter. A denied request gets a place in the queue of its scope, and keeps it until
	// it asks again under the same id and is granted. Decision.Position is its place. A program that uses
	// waiter ids must call Dispatch, and have granted waiters ask again. A request with a waiter id
	// overtakes no other waiter. At most 1024 bytes. Defaults to none: the request does not wait in a
	// queue.
	WaiterID string
	// Priority is the waiter's priority: a higher one goes first under every rule. -1,000,000 to
	// 1,000,000. A value above the scope's Policy.MaxPriority counts as that when the waiter joins; a
	// waiter that is queued keeps its place. Defaults to 0.
	Priority int
	// Lane names a part of the scope's queue. Lanes of the same priority share their turns; within a lane,
	// waiters go first come, first served. At most 128 bytes. Defaults to none: the waiter goes to the end
	// of the queue.
	Lane string
	// Stride sets the share of the lane, inversely: among waiting lanes, one of stride 1 starts six tasks
	// for each task of one of stride 6. 1 to 1,000,000. Only used with a Lane. Defaults to 1.
	Stride int
	// DispatchLead is the DispatchRequest.Lead of the program's calls. Only used with a WaiterID. Defaults
	// to 0.
	DispatchLead time.Duration
	// MaxDelayQueued is MaxDelay for a waiter that has not been dispatched. At most MaxDelay. Defaults to
	// 0.
	MaxDelayQueued time.Duration
	// Granted is the waiter's grant from Dispatch. Start uses it without asking Redis if the run can begin
	// in time, and returns it with Decision.Handed. After an error of Start it is still in flight: name it
	// in DispatchRequest.Unused or Deleted. Defaults to none.
	Granted *Granted
	// MissedStart is the start, by the server's clock, that the waiter was granted and could not use:
	// Decision.At plus Wait. Only RequeueFront uses it: a waiter goes before those that missed a later
	// start. Defaults to now.
	MissedStart time.Time
}
