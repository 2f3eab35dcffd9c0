package redistest

import (
	"bytes"
	"net"
	"os"
	"sync"
	"time"
)

// socket is a client's end of a pipe in memory that takes what the server writes as it comes, as a socket does: a pipe has no
// room in it, and of a long pipeline the replies would have to be read while it is written.
type socket struct {
	net.Conn
	more chan struct{} // holds one when there may be something new for a Read

	mu       sync.Mutex
	came     bytes.Buffer
	err      error // that comes after it
	deadline time.Time
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c, more: make(chan struct{}, 1)}
	go s.take()
	return s
}

// take takes what comes until the pipe is closed.
func (s *socket) take() {
	p := make([]byte, 4096)
	for {
		n, err := s.Conn.Read(p)
		s.mu.Lock()
		s.came.Write(p[:n])
		s.err = err
		s.mu.Unlock()
		s.tell()
		if err != nil {
			return
		}
	}
}

func (s *socket) tell() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Read waits until something has come, or until the deadline.
func (s *socket) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		n, _ := s.came.Read(p)
		err, deadline := s.err, s.deadline
		s.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case err != nil:
			return 0, err
		}
		if err := s.await(deadline); err != nil {
			return 0, err
		}
	}
}

func (s *socket) await(deadline time.Time) error {
	if deadline.IsZero() {
		<-s.more
		return nil
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.more:
		return nil
	case <-timer.C:
		return os.ErrDeadlineExceeded
	}
}

// SetReadDeadline is for the Read that waits, too.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.deadline = t
	s.mu.Unlock()
	s.tell()
	return nil
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (s *socket) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t) // which always can
	return s.SetWriteDeadline(t)
}
