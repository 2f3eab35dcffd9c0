package dispatch

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// watchdog tells whether the Dispatcher's loops do their work. A loop that hangs in a call,
// or never comes back, cannot tell of itself: so each notes the looks that it has
// completed, and those who handle tasks ask in passing whether one is overdue. It is
// safe for concurrent use.
type watchdog struct {
	d     *Dispatcher
	asked atomic.Int64 // when it was last asked, in ns since the epoch
	mu    sync.Mutex
	beats map[*beat]struct{}
	back  woken // those whose being overdue was told, and that look again
}

// woken are providers whose loops look again.
type woken struct {
	providers []string
	since     time.Time     // when the first of them did
	after     time.Duration // the longest that one had not looked
}

// beat is what one loop has done.
type beat struct {
	provider string    // anyProvider for the loop that asks what others announce
	last     time.Time // when it completed a look, or began
	due      time.Time // when it is to begin the next, where that is long after the last; zero: soon
	fault    error     // of the looks since
	told     bool      // that the next is overdue
}

const (
	// overdue is how long after its last look, or after it was due to look again, a loop is taken for stuck.
	overdue  = 3 * time.Second
	askPulse = time.Second

	// anyProvider stands for those that the limits do not name.
	anyProvider = "*"
)

func newWatchdog(d *Dispatcher) *watchdog { return &watchdog{d: d, beats: map[*beat]struct{}{}} }

// begins notes a loop whose first look is about to be made.
func (p *watchdog) begins(provider string) *beat {
	b := &beat{provider: provider, last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats[b] = struct{}{}
	p.observe(provider, true)
	return b
}

// looked notes a look: completed, or failed by err.
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

// rests notes in how long a loop looks again.
func (p *watchdog) rests(b *beat, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.due = (time.Time{}); wait > lookAgain {
		b.due = time.Now().Add(wait)
	}
}

// nothingDue notes that the loops which rest have nothing to look at: what they rest for would have been announced.
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

// stuck tells whether one is overdue that was told. p.mu is held.
func (p *watchdog) stuck() bool {
	for b := range p.beats {
		if b.told {
			return true
		}
	}
	return false
}

// takeBack returns who looks again, to be told. p.mu is held.
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

// ends forgets a loop: nobody waits, or the process stops.
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

// observe tells the observer of a look. p.mu is held.
func (p *watchdog) observe(provider string, again bool) {
	label := anyProvider
	if p.d.cfg.Limiter.Policy().Names(provider) {
		label = provider
	}
	p.d.cfg.Observer.DispatcherPolled(provider, label, again)
}

// well says whether a loop does its work.
func (p *watchdog) well(b *beat) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	return b.fault == nil && (now.Sub(b.last) <= overdue || now.Sub(b.due) <= overdue)
}

// check logs a line for the loops that are overdue, once until they look again. It costs
// next to nothing more often than once a second.
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

// late returns what to tell of loops that are newly overdue: of those that Redis does not
// answer, which mends itself, or of the others. It is nothing where there are none. p.mu is
// held.
func (p *watchdog) late(now time.Time, away bool) (line []any) {
	var newly []*beat
	due := false
	for b := range p.beats {
		failing := asynqx.MayPass(b.fault) // or it hangs in a call
		if b.told || away != (failing || b.fault == nil) {
			continue
		}
		// Where one has not been answered for so long, others will be overdue in a moment.
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
