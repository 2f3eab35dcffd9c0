package sim

import (
	"net"
	"time"
)

// slow is a connection on which a request takes a while until it arrives.
type slow struct {
	net.Conn

	lag time.Duration
}

func (s slow) Write(p []byte) (int, error) {
	if s.lag > 0 {
		<-time.After(s.lag)
	}
	return s.Conn.Write(p)
}
