package dispatch

import "time"

// widen adapts the spread to the limit. A poll, and the call that brings its tasks, cost as much for
// one task as for several, so a slow limit gets a wider spread. Each task then occupies its slot for
// longer, so half of the slots must be free.
func (d *Dispatcher) widen(o *watch, granted int) {
	switch {
	case !d.gated(o.far) || !d.hasPlenty():
		o.wide = 0
	case granted > 0 && granted < fewGranted:
		o.wide = min(max(2*o.wide, spread), mostSpread)
	case granted > 2*fewGranted:
		o.wide /= 2
	}
}

// hasPlenty reports whether at most half of the slots are occupied by tasks that run or are on their
// way.
func (d *Dispatcher) hasPlenty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := int(d.load.running.Load())
	for _, one := range d.watches {
		taken += len(one.out)
	}
	return 2*taken <= d.load.slots
}

// Lead returns how long before its start a task is released: never so early that it would not be held.
func (d *Dispatcher) Lead() time.Duration { return d.leadOf(d.cfg.Servers.None()) }

// leadOf returns the lead for servers that this process can make poll. With far it cannot: they poll
// by themselves.
func (d *Dispatcher) leadOf(far bool) time.Duration {
	if !d.Holds() {
		return 0
	}
	lead := gatedLead
	if far || d.cfg.Servers.None() {
		lead = d.load.check*3/2 + gatedLead/2
	}
	return max(0, min(lead, d.cfg.Hold*2/3))
}

// spread returns how much earlier than the lead a task may be released, so that a call serves several
// tasks.
func (d *Dispatcher) spread() time.Duration {
	if !d.Holds() {
		return 0
	}
	return max(0, min(spread, d.cfg.Hold*2/3-d.Lead()))
}

// gated reports whether servers of this process hand out tasks that it has taken for them: these wait
// there for their starts, and not in handlers.
func (d *Dispatcher) gated(far bool) bool {
	return d.Holds() && !far && !d.cfg.Servers.None()
}

// beyond returns how much earlier than the lead tasks are granted because Redis is distant or the
// machine busy. window returns how much of what is next a call also grants.
func (d *Dispatcher) beyond(far bool) time.Duration {
	if !d.gated(far) {
		return 0
	}
	return d.reach.beyond()
}

// from returns how far ahead of now starts are at least.
func (d *Dispatcher) from(far bool) time.Duration {
	if !d.gated(far) {
		return 0
	}
	return d.reach.from()
}

func (d *Dispatcher) window(far bool) time.Duration {
	if !d.gated(far) {
		return d.spread()
	}
	return d.reach.window()
}
