// Package watchdog finds loops that hang in a call, or whose calls fail. Such a loop cannot report itself. So each loop records when
// its next call is due, and handlers of tasks check in passing whether one is overdue.
package watchdog

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Watchdog watches the loops of one process. It is safe for concurrent use. Set its exported fields before the first call.
type Watchdog struct {
	// Observe is called for each call of a loop, with the time until the next one; negative when the loop ends.
	Observe func(provider string, next time.Duration)
	// Stopped reports whether the process stops: no loop is overdue then.
	Stopped func() bool
	Log     *slog.Logger

	asked  atomic.Int64 // the last check, in ns since the epoch
	mu     sync.Mutex
	pulses map[*Pulse]struct{}
	back   int // how many loops that were reported as overdue call again: one line of the log is for all of them
}

// Pulse is the progress of one loop.
type Pulse struct {
	w        *Watchdog
	provider string
	last     time.Time // when it completed a call, or began
	due      time.Time // when the next one is due
	fault    error     // of the calls since
	reported bool      // it was reported as overdue
}

const (
	// overdue is how long after its call was due a loop counts as stuck.
	overdue = 3 * time.Second
	// checkEach is how often loops are checked at most.
	checkEach = time.Second
)

// Begins adds the loop of a provider before its first call.
func (w *Watchdog) Begins(provider string) *Pulse {
	p := &Pulse{w: w, provider: provider, last: time.Now(), due: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pulses == nil {
		w.pulses = map[*Pulse]struct{}{}
	}
	w.pulses[p] = struct{}{}
	w.Observe(provider, 0)
	return p
}

// Beats records a call, and the time until the next one.
func (p *Pulse) Beats(wait time.Duration) {
	w, now := p.w, time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	after, was := now.Sub(p.last), p.reported
	p.last, p.due, p.fault, p.reported = now, now.Add(wait), nil, false
	w.Observe(p.provider, wait)
	if !was {
		return
	}
	w.back++
	for other := range w.pulses {
		if other.reported {
			return
		}
	}
	w.Log.Info("dispatch resumed in this process", "provider", p.provider, "after", after, "more", w.back-1)
	w.back = 0
}

// Rests records that the next call is due later, since it could do nothing now.
func (p *Pulse) Rests(wait time.Duration) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.due = time.Now().Add(wait)
	p.w.Observe(p.provider, wait)
}

// Failed records a call that failed.
func (p *Pulse) Failed(err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.fault = err
}

// Ends removes a loop: no task waits, or the process stops.
func (p *Pulse) Ends() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	delete(p.w.pulses, p)
	p.w.Observe(p.provider, -1)
}

// Works reports whether a provider's loop is not overdue.
func (w *Watchdog) Works(provider string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pulses {
		if p.provider == provider {
			return time.Since(p.due) < overdue
		}
	}
	return false
}

// Check logs one line for the loops that are newly overdue: a warning if Redis does not answer, which mends itself, and an error
// otherwise. If Redis has left one loop without an answer for so long, others will be overdue in a moment, and are in the same line.
func (w *Watchdog) Check() {
	now, asked := time.Now(), w.asked.Load()
	if now.UnixNano()-asked < int64(checkEach) || !w.asked.CompareAndSwap(asked, now.UnixNano()) || w.Stopped() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var newly []*Pulse
	isLate, level := false, slog.LevelWarn
	for p := range w.pulses {
		unanswered := asynqx.MayPass(p.fault)
		late := now.Sub(p.last) > overdue && now.Sub(p.due) > overdue
		if p.reported || !late && !unanswered {
			continue
		}
		newly, isLate = append(newly, p), isLate || late
		if p.fault != nil && !unanswered {
			level = slog.LevelError
		}
	}
	if !isLate {
		return
	}
	for _, p := range newly {
		p.reported = true
	}
	first := slices.MinFunc(newly, func(a, b *Pulse) int { return cmp.Compare(a.provider, b.provider) })
	about := []any{"provider", first.provider, "last_look", now.Sub(first.last), "more", len(newly) - 1}
	if first.fault != nil {
		about = append(about, "error", first.fault)
	}
	w.Log.Log(context.Background(), level, "dispatch stalled in this process: waiting tasks run when another process dispatches them, or at their fallback time", about...)
}
