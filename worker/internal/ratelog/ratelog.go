// Package ratelog keeps a log quiet: a line that many tasks would log is due once a minute.
package ratelog

import (
	"sync"
	"time"
)

const (
	repeatAgain = time.Minute // the interval at which one line is repeated
	mostRepeats = 1000        // lines that are remembered
)

// Repeats decides which lines are due. The zero value is ready to use. It is safe for concurrent use.
type Repeats struct {
	mu   sync.Mutex
	last map[string]*repeated
}

type repeated struct {
	at   time.Time // when the line was last logged
	more int       // how often it was suppressed since
}

// Due reports whether a line is due, and how often it was suppressed since it was last logged.
func (r *Repeats) Due(line string, now time.Time) (more int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.last[line]
	if known != nil && now.Sub(known.at) < repeatAgain {
		known.more++
		return 0, false
	}
	if known != nil {
		more = known.more
	} else if len(r.last) >= mostRepeats || r.last == nil {
		r.last = map[string]*repeated{}
	}
	r.last[line] = &repeated{at: now}
	return more, true
}
