package worker

import "time"

// widen adapts the spread to the limit. A look, and the call that brings its tasks, cost as much for one task as for
// several, so a slow limit gets a wider spread. Each task then takes its slot for longer, so half of the slots must be free.
func (w *waker) widen(o *watch, granted int) {
	switch {
	case !w.t.gated(o.far) || !w.hasPlenty():
		o.wide = 0
	case granted > 0 && granted < fewGranted:
		o.wide = min(max(2*o.wide, spread), mostSpread)
	case granted > 2*fewGranted:
		o.wide /= 2
	}
}

// hasPlenty says whether no more than half of the slots are taken, by tasks that run or are on their way.
func (w *waker) hasPlenty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := int(w.t.running.Load())
	for _, one := range w.watches {
		taken += len(one.out)
	}
	return 2*taken <= w.t.slots
}

// lead is how long before its start a task is released, and spread how much earlier
// it may be: never so early that it would not be held.
func (t *Middleware) lead() time.Duration { return t.leadOf(t.servers.None()) }

// leadOf is the lead for servers whose looks this process can bring about or, far, cannot: they look by themselves.
func (t *Middleware) leadOf(far bool) time.Duration {
	if !t.holds() {
		return 0
	}
	lead := gatedLead
	if far || t.servers.None() {
		lead = t.check*3/2 + gatedLead/2
	}
	return max(0, min(lead, t.cfg.Hold*2/3))
}

func (t *Middleware) spread() time.Duration {
	if !t.holds() {
		return 0
	}
	return max(0, min(spread, t.cfg.Hold*2/3-t.lead()))
}

// gated says whether servers of this process hand tasks out that it has taken for them: those wait there for their
// starts, and not in handlers.
func (t *Middleware) gated(far bool) bool {
	return t.holds() && !far && !t.servers.None() && t.waker.mover.Takes()
}

// beyond is how much sooner than lead says tasks are granted, since Redis is far or the machine busy, and window how
// much of what is next a call grants besides.
func (t *Middleware) beyond(far bool) time.Duration {
	if !t.gated(far) {
		return 0
	}
	return t.waker.reach.beyond()
}

// from is how far ahead of now starts are at least.
func (t *Middleware) from(far bool) time.Duration {
	if !t.gated(far) {
		return 0
	}
	return t.waker.reach.from()
}

func (t *Middleware) window(far bool) time.Duration {
	if !t.gated(far) {
		return t.spread()
	}
	return t.waker.reach.window()
}

// holds tells whether tasks may wait in handlers at all. Where they may not, a task
// is released only when its start has come.
func (t *Middleware) holds() bool { return t.cfg.Hold > 0 && cap(t.holders) > 0 }
