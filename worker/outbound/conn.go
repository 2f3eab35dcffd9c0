package outbound

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// readBuffer is the size of the transport's read buffer. See conn.Read.
const readBuffer = 256

// errSentOnce is what the transport meets when it tries to send a request again.
var errSentOnce = errors.New("the connection closed before an answer came; the API may have received the request, so this run does not send it again")

// permit is one charge's right to be sent, once.
//
// http.Transport sends a request again by itself when a kept connection fails
// before the answer and shouldRetryRequest says yes: for GET, HEAD, OPTIONS and
// TRACE, and for any method with an Idempotency-Key or X-Idempotency-Key header
// (Request.isReplayable, if there is no body or it has GetBody). There is no
// switch for it. So the socket has the last word: the first byte of a request
// claims its permit for the connection it goes to, and no other connection takes
// a byte for it. What stays is the repetition that is harmless, when a kept
// connection took nothing.
type permit struct {
	by     atomic.Pointer[conn] // the connection that took the request's first byte
	got    atomic.Pointer[conn] // the connection that the transport chose last
	cancel context.CancelCauseFunc
}

type permitKey struct{}

func (p *permit) used() bool { return p.by.Load() != nil }

// trace follows the request through the transport: which connection it is about
// to use, and when that connection is idle again.
func (p *permit) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			if p.used() { // the transport begins a replay: end it here, quickly
				p.cancel(errSentOnce)
			}
		},
		GotConn: func(info httptrace.GotConnInfo) {
			c, ok := info.Conn.(*conn)
			switch {
			case !ok: // never: all connections come from dialer
			case p.used():
				c.permit.Store(nil)
			default:
				p.got.Store(c)
				c.permit.Store(p)
			}
		},
		PutIdleConn: func(error) {
			// Only if it is still ours: the next request may have taken it already.
			if c := p.got.Load(); c != nil {
				c.permit.CompareAndSwap(p, nil)
			}
		},
	}
}

// conn is a connection that carries a request's bytes only under its permit,
// and an answer's bytes only to the request that is waiting for them.
type conn struct {
	net.Conn                        // TCP, or TLS over it
	permit   atomic.Pointer[permit] // of the request that has the connection now; nil: idle

	// The two below belong to the transport's read loop.
	in  *bufio.Reader
	due *permit // whom the bytes in the buffer were read for
}

func newConn(inner net.Conn) *conn {
	return &conn{Conn: inner, in: bufio.NewReader(inner)}
}

func (c *conn) Write(b []byte) (int, error) {
	p := c.permit.Load()
	if p == nil {
		return 0, errSentOnce
	}
	first := p.by.CompareAndSwap(nil, c)
	if !first && p.by.Load() != c {
		return 0, errSentOnce
	}
	n, err := c.Conn.Write(b)
	if first && n == 0 && err != nil {
		p.by.CompareAndSwap(c, nil) // nothing left: another connection may try
	}
	return n, err
}

// Read gives bytes out only while a request that was written on this connection
// waits for its answer, and only those that were not read together with the
// answer before it. Bytes that nobody asked for end the connection as EOF does.
// The transport alone would take them as the answer to the next task's request,
// or print them, whatever they echo, through package log.
//
// To keep the two apart the transport must not read ahead, so that its small
// buffer is filled a byte at a time, from the buffer here. Bodies that are longer
// than its buffer do not pass through it and come in one piece.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if c.in.Buffered() == 0 {
		if _, err := c.in.Peek(1); err != nil {
			return 0, err
		}
		c.due = c.permit.Load()
	}
	p := c.permit.Load()
	if p == nil || p != c.due || p.by.Load() != c {
		return 0, io.EOF
	}
	if len(b) <= readBuffer {
		b = b[:1]
	}
	return c.in.Read(b)
}
