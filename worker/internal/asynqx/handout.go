package asynqx

import (
	"slices"
	"time"
)

// Handout is a task that is active in asynq, and that this process has not handed to its server yet.
type Handout struct {
	Queue   string // prefix of asynq's keys of its queue
	ID      string
	Lease   string    // under which it was taken
	Message string    // in asynq's encoding
	At      time.Time // when it is handed out
}

// NewHandout returns a Handout for a message that asynq's script or Headway's has returned.
func NewHandout(queue, lease, message string, at time.Time) *Handout {
	return &Handout{Queue: queue, ID: messageID(message), Lease: lease, Message: message, At: at}
}

// noHandout is how long a poll waits for a handout if there is none.
const noHandout = time.Hour

// handouts are those of a server, ordered by time. Their owner locks them.
type handouts []*Handout

func (h *handouts) add(list ...*Handout) {
	for _, one := range list {
		i := len(*h)
		for i > 0 && one.At.Before((*h)[i-1].At) { // most arrive in order
			i--
		}
		*h = slices.Insert(*h, i, one)
	}
}

// next removes the first task of a queue whose time has come; others reports whether another queue has
// one.
func (h *handouts) next(queue string, now time.Time) (one *Handout, others bool) {
	for i, its := range *h {
		if its.At.After(now) {
			break
		}
		if its.Queue == queue {
			*h = slices.Delete(*h, i, i+1)
			return its, false
		}
		others = true
	}
	return nil, others
}

// due returns how many are to be handed out now, of a queue and of all others.
func (h *handouts) due(queue string, now time.Time) (its, others int) {
	for _, one := range *h {
		switch {
		case one.At.After(now):
			return its, others
		case one.Queue == queue:
			its++
		default:
			others++
		}
	}
	return its, others
}

// until returns how long it takes until the next is to be handed out, of those whose time is yet to
// come.
func (h *handouts) until(now time.Time) time.Duration {
	for _, its := range *h {
		if its.At.After(now) {
			return its.At.Sub(now)
		}
	}
	return noHandout
}

// remove removes those for which pick returns true.
func (h *handouts) remove(pick func(*Handout) bool) (gone []*Handout) {
	*h = slices.DeleteFunc(*h, func(one *Handout) bool {
		out := pick(one)
		if out {
			gone = append(gone, one)
		}
		return out
	})
	return gone
}
