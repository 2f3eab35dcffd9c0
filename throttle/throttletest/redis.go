package throttletest

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Redis is the server in memory that a limiter of [NewWithRedis] keeps its state
// in. Beside what is here it can do all that a miniredis can: SetError makes it
// answer every command with an error, Keys lists what it holds.
type Redis struct {
	*miniredis.Miniredis

	mu   sync.RWMutex
	down bool
	now  time.Time // zero until Advance stops the clock
}

var errDown = errors.New("throttletest: connection refused, until Restart")

// Close cuts all connections and refuses new ones, as a server that is down.
func (r *Redis) Close() {
	r.mu.Lock()
	r.down = true
	r.mu.Unlock()
	r.Miniredis.Close()
}

// Restart ends what Close began, with all that the server held. The client needs
// up to a second to find out.
func (r *Redis) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Advance moves the server's clock, and with it what has been spent, without
// waiting. From the first call on the clock moves by Advance alone. That is for
// tests outside of a bubble, of Allow, Decide, Peek and Refund: what waits or
// holds leases goes by the clock of this process too, and wants a bubble.
func (r *Redis) Advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now.IsZero() {
		r.now = time.Now()
	}
	r.now = r.now.Add(d)
	r.SetTime(r.now)
}

func (r *Redis) dial() (net.Conn, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.down {
		return nil, errDown
	}
	return r.Dial()
}
