package asynqx

import (
	"slices"
	"time"
)

// Handout is a task that is active for asynq, and that this process has not handed to its server yet.
type Handout struct {
	Queue   string // asynq's prefix of the keys of its queue
	ID      string
	Lease   string    // under which it was taken
	Message string    // as asynq keeps it
	At      time.Time // when it is handed out
	since   time.Time // when it was taken
}

// NewHandout is one of a message that asynq's script or ours has brought.
func NewHandout(queue, lease, message string, at time.Time) *Handout {
	return &Handout{Queue: queue, ID: messageID(message), Lease: lease, Message: message, At: at, since: time.Now()}
}

// noHandout is how long a look waits for a task to be handed out where there is none.
const noHandout = time.Hour

// handouts are those of a server, by when they are handed out. Whoever has them locks them.
type handouts []*Handout

func (h *handouts) add(list ...*Handout) {
	for _, one := range list {
		i := len(*h)
		for i > 0 && one.At.Before((*h)[i-1].At) { // most come in their order
			i--
		}
		*h = slices.Insert(*h, i, one)
	}
}

// next takes the first task of a queue whose time has come; others says that there is one of another queue.
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

// due is how many are to be handed out now, of a queue and of all others.
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

// until is how long it takes until the next is to be handed out of those whose time is yet to come.
func (h *handouts) until(now time.Time) time.Duration {
	for _, its := range *h {
		if its.At.After(now) {
			return its.At.Sub(now)
		}
	}
	return noHandout
}

// remove takes out those that pick says.
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
