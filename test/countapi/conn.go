package countapi

import (
	"net"
	"sync/atomic"
	"time"
)

// stampedConn notes when the first bytes of each request arrived, by the kernel or when they came out of the socket. net/http
// reads ahead by one byte, so a stamp may be there before its request's handler. A client that does not pipeline has one request
// on the way at most, and the stamp is that request's.
type stampedConn struct {
	net.Conn
	now    func() time.Duration
	kernel func(p []byte) (n int, age time.Duration, err error) // nil where the kernel notes nothing
	stamp  atomic.Int64                                         // 0: no byte since the stamp was last taken
}

func (c *stampedConn) Read(p []byte) (n int, err error) {
	var age time.Duration
	if c.kernel != nil {
		n, age, err = c.kernel(p)
	} else {
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.stamp.CompareAndSwap(0, int64(max(1, c.now()-age)))
	}
	return n, err
}

// take returns the stamp of the request at hand and makes room for the next.
func (c *stampedConn) take() (time.Duration, bool) {
	at := c.stamp.Swap(0)
	return time.Duration(at), at != 0
}

// stampedListener stamps what it accepts.
type stampedListener struct {
	net.Listener
	now func() time.Duration
}

func (l stampedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stampedConn{Conn: c, now: l.now, kernel: kernelStamped(c)}, nil
}

// connKey finds the connection of a request in its context.
type connKey struct{}
