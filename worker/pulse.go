package worker

import (
	"sync"
	"sync/atomic"
	"time"
)

// pulse tells whether the waker's loops do their work. A loop that hangs in a call,
// or never comes back, cannot tell of itself: so each notes the looks that it has
// completed, and those who handle tasks ask in passing whether one is overdue. It is
// safe for concurrent use.
type pulse struct {
	t     *Throttle
	asked atomic.Int64 // when it was last asked, in ns since the epoch
	mu    sync.Mutex
	beats map[*beat]struct{}
}

// beat is what one loop has done.
type beat struct {
	provider string    // anyProvider for the loop that asks what others announce
	last     time.Time // when it completed a look, or began
	fault    error     // of the looks since
	told     bool      // that the next is overdue
}

const (
	// overdue is how long after its last look a loop is taken for stuck: at its slowest
	// it looks twice a second, or asks around once.
	overdue  = 3 * time.Second
	askPulse = time.Second

	// anyProvider stands for those that the limits do not name.
	anyProvider = "*"
)

func newPulse(t *Throttle) *pulse { return &pulse{t: t, beats: map[*beat]struct{}{}} }

// begins notes a loop whose first look is about to be made.
func (p *pulse) begins(provider string) *beat {
	b := &beat{provider: provider, last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats[b] = struct{}{}
	p.observe(provider, true)
	return b
}

// looked notes a look: completed, or failed by err.
func (p *pulse) looked(b *beat, err error) {
	p.mu.Lock()
	if b.fault = err; err != nil {
		p.mu.Unlock()
		return
	}
	last, told := b.last, b.told
	b.last, b.told = time.Now(), false
	p.observe(b.provider, true)
	p.mu.Unlock()
	if told {
		p.t.log.Info("waiting tasks are woken again", "provider", b.provider, "after", time.Since(last))
	}
}

// ends forgets a loop: nobody waits, or the process stops.
func (p *pulse) ends(b *beat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.beats, b)
	for other := range p.beats {
		if other.provider == b.provider {
			return
		}
	}
	p.observe(b.provider, false)
}

// observe tells the observer of a look. p.mu is held.
func (p *pulse) observe(provider string, again bool) {
	label := anyProvider
	if p.t.cfg.Limiter.Policy().Names(provider) {
		label = provider
	}
	p.t.observer.Looked(provider, label, again)
}

// check logs a line for each loop that is overdue, once until it looks again. It
// costs next to nothing more often than once a second.
func (p *pulse) check() {
	now, asked := time.Now(), p.asked.Load()
	if now.UnixNano()-asked < int64(askPulse) || !p.asked.CompareAndSwap(asked, now.UnixNano()) || p.t.stopped() {
		return
	}
	for _, late := range p.late(now) {
		p.t.log.Error("waiting tasks are not woken by this process: they come when another does, or asynq brings them", late...)
	}
}

// late returns what to tell of each loop that is newly overdue.
func (p *pulse) late(now time.Time) (lines [][]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.beats {
		since := now.Sub(b.last)
		if since <= overdue || b.told {
			continue
		}
		b.told = true
		line := []any{"provider", b.provider, "last_look", since}
		if b.fault != nil {
			line = append(line, "error", b.fault)
		}
		lines = append(lines, line)
	}
	return lines
}
