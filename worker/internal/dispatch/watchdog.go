package dispatch

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// watchdog finds loops that hang in a call, or that Redis does not answer. Such a loop cannot report itself. So each loop records
// when its next call is due, and handlers of tasks check in passing whether one is overdue. It is safe for concurrent use.
type watchdog struct {
	d      *Dispatcher
	asked  atomic.Int64 // the last check, in ns since the epoch
	mu     sync.Mutex
	pulses map[*pulse]struct{}
}

// pulse is the progress of one loop.
type pulse struct {
	of       *watchdog
	provider string
	last     time.Time // when it completed a call, or began
	due      time.Time // when the next one is due
	fault    error     // of the calls since
	told     bool      // it was reported as overdue
}

const (
	// overdue is how long after its call was due a loop counts as stuck.
	overdue = 3 * time.Second
	// checkEach is how often loops are checked at most.
	checkEach = time.Second
	// otherProviders is the label of all providers that the limits do not name.
	otherProviders = "*"
)

func newWatchdog(d *Dispatcher) *watchdog { return &watchdog{d: d, pulses: map[*pulse]struct{}{}} }

// begins adds a loop before its first call.
func (w *watchdog) begins(provider string) *pulse {
	p := &pulse{of: w, provider: provider, last: time.Now(), due: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pulses[p] = struct{}{}
	p.observe(true)
	return p
}

// beats records a call, and the time until the next one.
func (p *pulse) beats(wait time.Duration) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	now := time.Now()
	if p.told && !p.of.othersStuck(p) {
		p.of.d.cfg.Log.Info("dispatch resumed in this process", "provider", p.provider, "after", now.Sub(p.last))
	}
	p.last, p.due, p.fault, p.told = now, now.Add(wait), nil, false
	p.observe(true)
}

// failed records a call that failed.
func (p *pulse) failed(err error) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.fault = err
}

// ends removes a loop: no task waits, or the process stops.
func (p *pulse) ends() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.pulses, p)
	p.observe(false)
}

// observe passes a call to the observer.
func (p *pulse) observe(again bool) {
	label := otherProviders
	if p.of.d.cfg.Limiter.Policy().Names(p.provider) {
		label = p.provider
	}
	p.of.d.cfg.Observer.DispatcherPolled(p.provider, label, again)
}

func (w *watchdog) othersStuck(except *pulse) bool {
	for p := range w.pulses {
		if p != except && p.told {
			return true
		}
	}
	return false
}

// check logs one line for the loops that are newly overdue.
func (w *watchdog) check() {
	now, asked := time.Now(), w.asked.Load()
	if now.UnixNano()-asked < int64(checkEach) || !w.asked.CompareAndSwap(asked, now.UnixNano()) || w.d.stopped() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var late []*pulse
	for p := range w.pulses {
		if !p.told && now.Sub(p.last) > overdue && now.Sub(p.due) > overdue {
			p.told = true
			late = append(late, p)
		}
	}
	if len(late) == 0 {
		return
	}
	first := slices.MinFunc(late, func(a, b *pulse) int { return cmp.Compare(a.provider, b.provider) })
	about := []any{"provider", first.provider, "last_look", now.Sub(first.last), "more", len(late) - 1}
	log := w.d.cfg.Log.Error // it hangs
	if first.fault != nil {
		about, log = append(about, "error", first.fault), w.d.cfg.Log.Warn // this mends itself
	}
	log("dispatch stalled in this process: waiting tasks run when another process dispatches them, or at their fallback time", about...)
}
