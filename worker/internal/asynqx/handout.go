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
	for _, task := range list {
		i := len(*h)
		for i > 0 && task.At.Before((*h)[i-1].At) { // most arrive in order
			i--
		}
		*h = slices.Insert(*h, i, task)
	}
}

// next removes the first task of a queue whose time has come; others reports whether another queue has one.
func (h *handouts) next(queue string, now time.Time) (task *Handout, others bool) {
	for i, task := range *h {
		if task.At.After(now) {
			break
		}
		if task.Queue == queue {
			*h = slices.Delete(*h, i, i+1)
			return task, false
		}
		others = true
	}
	return nil, others
}

// due returns how many are to be handed out now, of a queue and of all others.
func (h *handouts) due(queue string, now time.Time) (own, others int) {
	for _, task := range *h {
		switch {
		case task.At.After(now):
			return own, others
		case task.Queue == queue:
			own++
		default:
			others++
		}
	}
	return own, others
}

// until returns in how long the next is to be handed out, of those whose time is yet to come.
func (h *handouts) until(now time.Time) time.Duration {
	for _, task := range *h {
		if task.At.After(now) {
			return task.At.Sub(now)
		}
	}
	return noHandout
}

// remove removes those for which pick returns true.
func (h *handouts) remove(pick func(*Handout) bool) (gone []*Handout) {
	*h = slices.DeleteFunc(*h, func(task *Handout) bool {
		out := pick(task)
		if out {
			gone = append(gone, task)
		}
		return out
	})
	return gone
}
