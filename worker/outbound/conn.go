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

// errSentOnce is the error of the transport's attempt to send a request again.
var errSentOnce = errors.New("the connection closed before an answer came; the API may have received the request, so this run does not send it again")

// permit is the right of one charge to send a request once: see the package's comment. Of http.Transport's
// repetitions only the harmless one remains: when a kept connection accepted nothing.
type permit struct {
	by     atomic.Pointer[conn] // the connection that accepted the request's first byte
	got    atomic.Pointer[conn] // the connection that the transport chose last
	cancel context.CancelCauseFunc
	wrote  func() // called when the request was written
}

type permitKey struct{}

func (p *permit) used() bool { return p.by.Load() != nil }

// trace follows the request through the transport: which connection it is about to use, and when that connection is idle again.
func (p *permit) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			if p.used() { // the transport begins a replay: end it early
				p.cancel(errSentOnce)
			}
		},
		GotConn: func(info httptrace.GotConnInfo) {
			c := info.Conn.(*conn) // as dialer makes all of them
			if p.used() {
				c.permit.Store(nil)
				return
			}
			p.got.Store(c)
			c.permit.Store(p)
		},
		WroteRequest: func(httptrace.WroteRequestInfo) { p.wrote() },
		PutIdleConn: func(error) {
			// Only if it still belongs to this request: the next one may have it already.
			if c := p.got.Load(); c != nil {
				c.permit.CompareAndSwap(p, nil)
			}
		},
	}
}

// conn is a connection that sends a request's bytes only under its permit, and delivers an answer's
// bytes only to the request that waits for them.
type conn struct {
	net.Conn                        // TCP, or TLS over it
	permit   atomic.Pointer[permit] // of the request that has the connection now; nil: idle

	// The transport's read loop owns the two below.
	in  *bufio.Reader
	due *permit // the permit for which the buffered bytes were read
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
		p.by.CompareAndSwap(c, nil) // nothing was sent: another connection may try
	}
	return n, err
}

// Read returns bytes only while a request that was written on this connection waits for its answer, and only bytes that were not
// read together with the previous answer. Other bytes end the connection like EOF: the transport alone would take them as the
// answer to the next task's request, or print them through package log. So that the transport does not read ahead, its small
// buffer is filled one byte at a time, from the buffer here. Bodies longer than its buffer bypass it and come in one piece.
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
