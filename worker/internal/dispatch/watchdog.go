package dispatch

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// watchdog finds loops that hang in a call, or whose calls fail. Such a loop cannot report itself. So each loop records when its next
// call is due, and handlers of tasks check in passing whether one is overdue. It is safe for concurrent use.
type watchdog struct {
	d      *Dispatcher
	asked  atomic.Int64 // the last check, in ns since the epoch
	mu     sync.Mutex
	pulses map[*pulse]struct{}
	back   int // how many loops that were reported as overdue call again: one line of the log is for all of them
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

var errPanicked = errors.New("it panicked")

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
	w, now := p.of, time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	after, was := now.Sub(p.last), p.told
	p.last, p.due, p.fault, p.told = now, now.Add(wait), nil, false
	p.observe(true)
	if was {
		w.back++
	}
	if was && !slices.ContainsFunc(slices.Collect(maps.Keys(w.pulses)), func(other *pulse) bool { return other.told }) {
		w.d.cfg.Log.Info("dispatch resumed in this process", "provider", p.provider, "after", after, "more", w.back-1)
		w.back = 0
	}
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

// works reports whether a provider's loop is not overdue.
func (w *watchdog) works(provider string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pulses {
		if p.provider == provider {
			return time.Since(p.due) < overdue
		}
	}
	return false
}

// observe passes a call to the observer.
func (p *pulse) observe(again bool) {
	label := otherProviders
	if p.of.d.cfg.Limiter.Policy().Names(p.provider) {
		label = p.provider
	}
	p.of.d.cfg.Observer.DispatcherPolled(p.provider, label, again)
}

// check logs a line for the loops that are newly overdue: one for those that Redis does not answer, which mends itself, and one for
// the others.
func (w *watchdog) check() {
	now, asked := time.Now(), w.asked.Load()
	if now.UnixNano()-asked < int64(checkEach) || !w.asked.CompareAndSwap(asked, now.UnixNano()) || w.d.stopped() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	const text = "dispatch stalled in this process: waiting tasks run when another process dispatches them, or at their fallback time"
	if away := w.late(now, true); away != nil {
		w.d.cfg.Log.Warn(text, away...)
	}
	if stuck := w.late(now, false); stuck != nil {
		w.d.cfg.Log.Error(text, stuck...)
	}
}

// late returns what to log of loops that are newly overdue, nil if there are none: with away of those that Redis does not answer. If
// one of these has had no answer for so long, others will be overdue in a moment. w.mu is held.
func (w *watchdog) late(now time.Time, away bool) (about []any) {
	var newly []*pulse
	isDue := false
	for p := range w.pulses {
		unanswered := asynqx.MayPass(p.fault)
		if p.told || away != (unanswered || p.fault == nil) {
			continue
		}
		if isLate := now.Sub(p.last) > overdue && now.Sub(p.due) > overdue; isLate || unanswered {
			newly, isDue = append(newly, p), isDue || isLate
		}
	}
	if !isDue {
		return nil
	}
	for _, p := range newly {
		p.told = true
	}
	first := slices.MinFunc(newly, func(a, b *pulse) int { return cmp.Compare(a.provider, b.provider) })
	about = []any{"provider", first.provider, "last_look", now.Sub(first.last), "more", len(newly) - 1}
	if first.fault != nil {
		about = append(about, "error", first.fault)
	}
	return about
}
