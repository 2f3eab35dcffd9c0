package dispatch

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// watchdog detects loops of the Dispatcher that hang in a call or have ended. Such a loop cannot report
// itself. So each loop records its completed polls, and handlers of tasks check in passing whether a
// poll is overdue. It is safe for concurrent use.
type watchdog struct {
	d     *Dispatcher
	asked atomic.Int64 // the last check, in ns since the epoch
	mu    sync.Mutex
	beats map[*beat]struct{}
	back  woken // loops that were reported as overdue, and poll again
}

// woken are providers whose loops poll again.
type woken struct {
	providers []string
	since     time.Time     // when the first of them did
	after     time.Duration // the longest time that one had not polled
}

// beat is the progress of one loop.
type beat struct {
	provider string    // anyProvider for the loop that reads announcements
	last     time.Time // when it completed a poll, or began
	due      time.Time // when the next poll is due, if that is long after the last; zero: soon
	fault    error     // of the polls since
	told     bool      // it was reported as overdue
}

const (
	// overdue is how long after its last poll, or after its next poll was due, a loop counts as stuck.
	overdue  = 3 * time.Second
	askPulse = time.Second

	// anyProvider stands for all providers that the limits do not name.
	anyProvider = "*"
)

func newWatchdog(d *Dispatcher) *watchdog { return &watchdog{d: d, beats: map[*beat]struct{}{}} }

// begins adds a loop before its first poll.
func (p *watchdog) begins(provider string) *beat {
	b := &beat{provider: provider, last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats[b] = struct{}{}
	p.observe(provider, true)
	return b
}

// looked records a poll: completed, or failed by err.
func (p *watchdog) looked(b *beat, err error) {
	p.mu.Lock()
	if b.fault = err; err != nil {
		p.mu.Unlock()
		return
	}
	last, told := b.last, b.told
	b.last, b.due, b.told = time.Now(), time.Time{}, false
	p.observe(b.provider, true)
	if told {
		if len(p.back.providers) == 0 {
			p.back.since = time.Now()
		}
		p.back.providers = append(p.back.providers, b.provider)
		p.back.after = max(p.back.after, time.Since(last))
	}
	var back woken
	if told && !p.stuck() { // else one line for several, a little later
		back = p.takeBack()
	}
	p.mu.Unlock()
	p.tellBack(back)
}

// rests records the time until the next poll of a loop.
func (p *watchdog) rests(b *beat, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.due = (time.Time{}); wait > lookAgain {
		b.due = time.Now().Add(wait)
	}
}

// nothingDue records that loops at rest have nothing to poll for: it would have been announced.
func (p *watchdog) nothingDue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for b := range p.beats {
		if now.Before(b.due) && b.fault == nil {
			p.observe(b.provider, true)
		}
	}
}

// stuck reports whether there is an overdue loop that was reported. p.mu is held.
func (p *watchdog) stuck() bool {
	for b := range p.beats {
		if b.told {
			return true
		}
	}
	return false
}

// takeBack returns and clears the loops that poll again, for the log. p.mu is held.
func (p *watchdog) takeBack() woken {
	back := p.back
	p.back = woken{}
	return back
}

func (p *watchdog) tellBack(back woken) {
	if len(back.providers) > 0 {
		first := slices.Min(back.providers)
		p.d.cfg.Log.Info("dispatch resumed in this process", "provider", first, "after", back.after, "more", len(back.providers)-1)
	}
}

// ends removes a loop: no task waits, or the process stops.
func (p *watchdog) ends(b *beat) {
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

// observe passes a poll to the observer. p.mu is held.
func (p *watchdog) observe(provider string, again bool) {
	label := anyProvider
	if p.d.cfg.Limiter.Policy().Names(provider) {
		label = provider
	}
	p.d.cfg.Observer.DispatcherPolled(provider, label, again)
}

// well reports whether a loop works.
func (p *watchdog) well(b *beat) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	return b.fault == nil && (now.Sub(b.last) <= overdue || now.Sub(b.due) <= overdue)
}

// check logs one line for loops that are newly overdue. Calls more often than once a second cost next
// to nothing.
func (p *watchdog) check() {
	now, asked := time.Now(), p.asked.Load()
	if now.UnixNano()-asked < int64(askPulse) || !p.asked.CompareAndSwap(asked, now.UnixNano()) || p.d.stopped() {
		return
	}
	p.mu.Lock()
	away, stuck := p.late(now, true), p.late(now, false)
	var back woken
	if now.Sub(p.back.since) > overdue {
		back = p.takeBack()
	}
	p.mu.Unlock()
	const text = "dispatch stalled in this process: waiting tasks run when another process dispatches them, or at their fallback time"
	if len(away) > 0 {
		p.d.cfg.Log.Warn(text, away...)
	}
	if len(stuck) > 0 {
		p.d.cfg.Log.Error(text, stuck...)
	}
	p.tellBack(back)
}

// late returns the log line for loops that are newly overdue, nil if there are none. With away it is
// about loops that Redis does not answer, which mends itself; otherwise it is about all others. p.mu is
// held.
func (p *watchdog) late(now time.Time, away bool) (line []any) {
	var newly []*beat
	due := false
	for b := range p.beats {
		failing := asynqx.MayPass(b.fault) // or it hangs in a call
		if b.told || away != (failing || b.fault == nil) {
			continue
		}
		// If one loop has had no answer for so long, others will be overdue in a moment.
		if isLate := now.Sub(b.last) > overdue && now.Sub(b.due) > overdue; isLate || failing {
			newly, due = append(newly, b), due || isLate
		}
	}
	if !due {
		return nil
	}
	for _, b := range newly {
		b.told = true
	}
	first := slices.MinFunc(newly, func(x, y *beat) int { return strings.Compare(x.provider, y.provider) })
	line = []any{"provider", first.provider, "last_look", now.Sub(first.last), "more", len(newly) - 1}
	if first.fault != nil {
		line = append(line, "error", first.fault)
	}
	return line
}
