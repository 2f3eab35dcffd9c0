package refusals

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// apart is the interval between the times at which refused tasks come back to this process, as long as none waits for longer
	// than most. Beyond that, each waits up to twice as long.
	apart = 50 * time.Millisecond
	most  = 30 * time.Second
)

// Returns spreads the times at which refused tasks come back. The zero value is ready to use. It is safe for concurrent use.
type Returns struct {
	mu   sync.Mutex
	last time.Time // the last time that is taken
}

// Next returns when a task comes back that is put back now.
func (r *Returns) Next(now time.Time, pause time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Before(now) {
		r.last = now
	}
	r.last = r.last.Add(apart)
	if latest := now.Add(most); r.last.After(latest) {
		r.last = latest
		return latest.Add(rand.N(most)) // too many: each comes back about once a minute
	}
	if at := now.Add(pause + rand.N(pause/2)); at.After(r.last) {
		return at
	}
	return r.last
}
