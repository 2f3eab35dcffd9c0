// Package ratelog keeps a log quiet: a line that many tasks would log is due once a minute.
package ratelog

import (
	"sync"
	"time"
)

const (
	// repeatAgain is the interval at which one log line is repeated, and mostRepeats how many lines
	// are remembered.
	repeatAgain = time.Minute
	mostRepeats = 1000
)

// Repeats decides which lines are due. The zero value is ready to use. It is safe for concurrent use.
type Repeats struct {
	mu   sync.Mutex
	last map[string]*repeated
}

// repeated is when a line was last logged, and how often it was suppressed since.
type repeated struct {
	at   time.Time
	more int
}

// Due reports whether a line is due, and how often it was suppressed since it was last logged.
func (r *Repeats) Due(line string, now time.Time) (more int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.last[line]
	switch {
	case known == nil:
		if len(r.last) >= mostRepeats {
			clear(r.last)
		}
		if r.last == nil {
			r.last = map[string]*repeated{}
		}
		r.last[line] = &repeated{at: now}
		return 0, true
	case now.Sub(known.at) < repeatAgain:
		known.more++
		return 0, false
	}
	more = known.more
	known.at, known.more = now, 0
	return more, true
}
