package sim

import (
	"net"
	"sync"
	"time"
)

// buffered is a connection whose writes do not wait for the other side to read. A
// pipe in memory has no room in it, as every network has: two sides that both write
// more than the other has asked for would wait for each other.
type buffered struct {
	net.Conn

	lag time.Duration // before anything is passed on

	mu    sync.Mutex
	more  sync.Cond
	queue []byte
	over  bool
}

func newBuffered(c net.Conn, lag time.Duration) *buffered {
	b := &buffered{Conn: c, lag: lag}
	b.more.L = &b.mu
	go b.pass()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, net.ErrClosed
	}
	b.queue = append(b.queue, p...)
	b.more.Signal()
	return len(p), nil
}

// pass passes on what was written.
func (b *buffered) pass() {
	for {
		b.mu.Lock()
		for len(b.queue) == 0 && !b.over {
			b.more.Wait()
		}
		next := b.queue
		b.queue = nil
		b.mu.Unlock()
		if len(next) == 0 {
			return
		}
		if b.lag > 0 {
			<-time.After(b.lag)
		}
		if _, err := b.Conn.Write(next); err != nil {
			_ = b.Close()
			return
		}
	}
}

func (b *buffered) Close() error {
	b.mu.Lock()
	b.over = true
	b.more.Signal()
	b.mu.Unlock()
	return b.Conn.Close()
}
