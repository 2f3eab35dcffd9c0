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

// Ticket returns the name under which a task waits for its turn: its queue and its
// id, in as few bytes as there need be, since a backlog has many of them. An id as
// this package draws it takes 16 bytes, and the default queue none.
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

// TicketGroups returns what the tickets of a queue's tasks begin with, up to and with their
// first slash: all of one queue, and no others, begin with one of them.
func TicketGroups(name string) []string {
	if name == DefaultQueue {
		name = ""
	}
	name = url.PathEscape(name) + "/"
	return []string{plainTicket + name, packedTicket + name}
}

// ReadTicket returns the queue and the id of a ticket, and false for what Ticket did
// not write.
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
