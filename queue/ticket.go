package queue

import (
	"net/url"
	"strings"

	"github.com/google/uuid"
)

const (
	plainTicket  = "-"
	packedTicket = "u"
)

// Ticket returns the waiter id of a task: its queue and its id. It is as short as possible, because a
// backlog has many of them. An id that this package drew takes 16 bytes, and the default queue none.
func Ticket(name, id string) string {
	kind := plainTicket
	if u, err := uuid.Parse(id); err == nil && u.String() == id {
		kind, id = packedTicket, string(u[:])
	}
	if name == DefaultQueue {
		name = ""
	}
	return kind + url.PathEscape(name) + "/" + id
}

// TicketGroups returns the prefixes of the waiter ids of a queue's tasks, up to and including their
// first slash. All of one queue's ids, and no others, begin with one of them.
func TicketGroups(name string) []string {
	if name == DefaultQueue {
		name = ""
	}
	name = url.PathEscape(name) + "/"
	return []string{plainTicket + name, packedTicket + name}
}

// ReadTicket returns the queue and the id of a ticket. It returns false if Ticket did not write it.
func ReadTicket(ticket string) (name, id string, ok bool) {
	if ticket == "" {
		return "", "", false
	}
	kind := ticket[:1]
	escaped, id, cut := strings.Cut(ticket[1:], "/")
	name, err := url.PathUnescape(escaped)
	if !cut || err != nil {
		return "", "", false
	}
	if name == "" {
		name = DefaultQueue
	}
	switch kind {
	case plainTicket:
		return name, id, true
	case packedTicket:
		u, err := uuid.FromBytes([]byte(id))
		return name, u.String(), err == nil
	}
	return "", "", false
}
