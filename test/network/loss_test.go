package network

import (
	"testing"
	"time"
)

// every calls do again and again until the function that it returns is called.
func every(d time.Duration, do func()) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done }
}

// All connections of both workers are cut each half second, in whatever they do.
func TestConnectionsAreCut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := many()
	s.enqueue(n)
	s.start(s.workers...)
	cuts := 0
	stop := every(500*time.Millisecond, func() {
		cuts++
		for _, m := range s.workers {
			m.net.Cut()
		}
	})
	lost := s.until(n)
	stop()
	// What a look took is given back when Redis answers; one that Redis takes from the network later than that is not.
	if most := cuts / 4; len(lost) > most {
		t.Errorf("%d cuts left %d tasks to nobody; want %d at most", cuts, len(lost), most)
	}
	s.perfect(lost)
}

// Every 50th reply is lost: Redis has done what it was asked, and no worker knows.
func TestRepliesAreLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := many()
	s.enqueue(n)
	for _, m := range s.workers {
		m.net.LoseReplies(50)
	}
	s.start(s.workers...)
	lost := s.until(n)
	replies := 0
	for _, m := range s.workers {
		replies += m.net.Lost()
	}
	if replies == 0 || len(lost) > replies/20 {
		t.Errorf("%d lost replies left %d tasks to nobody", replies, len(lost))
	}
	s.perfect(lost)
}
