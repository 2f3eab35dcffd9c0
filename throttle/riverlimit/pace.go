package riverlimit

import (
	"maps"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// paces spreads the jobs of this process for which no start could be reserved: each comes back when the rule that denied it can have
// admitted the ones before it. Else all of them would come back at the moment at which one of them can be admitted.
type paces struct {
	mu   sync.Mutex
	next map[paceOf]time.Time
}

type paceOf struct{ scope, rule string }

// mostPaces is how many rules have a pace before those that are over are removed.
const mostPaces = 1000

// pauseGap is the time between jobs that no rule limits but a pause.
const pauseGap = 10 * time.Millisecond

// later returns for how long a denied job is snoozed.
func (m *Middleware) later(req throttle.Request, d throttle.Decision) time.Duration {
	r, known := d.BindingRule()
	ahead := m.cfg.MaxDelay
	if holdsPlaces(d) {
		ahead = m.cfg.Hold
	}
	pause := m.cfg.MaxSnooze
	if d.RetryAfter != throttle.Never || r.Algorithm == policy.Concurrency {
		pause = min(d.RetryDelay(ahead), pause)
	}
	of, gap := paceOf{r.Scope, r.Rule}, pauseGap
	if !known || r.Paused {
		of = paceOf{scope: req.Scope}
	} else {
		gap = min(gapOf(r, req.Costs), m.cfg.MaxSnooze)
	}
	return m.paces.after(of, pause, gap, m.cfg.MaxSnooze)
}

// gapOf returns the time between jobs of such a cost under a rule. How long jobs keep a place is not known: they are to ask for each
// place once a second.
func gapOf(r throttle.RuleState, costs policy.Costs) time.Duration {
	units := int64(1)
	if len(costs) > 0 {
		units = costs.Of(r.Unit)
	}
	window := r.Window
	if r.Algorithm == policy.Concurrency {
		window, units = time.Second, 1
	}
	return time.Duration(float64(window) / float64(max(r.Limit, 1)) * float64(units))
}

// after returns a wait of at least pause, and at most most, that ends a gap after the last one.
func (p *paces) after(of paceOf, pause, gap, most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wait := min(max(pause, p.next[of].Sub(now)), most)
	if p.next == nil {
		p.next = map[paceOf]time.Time{}
	}
	if len(p.next) >= mostPaces {
		maps.DeleteFunc(p.next, func(_ paceOf, at time.Time) bool { return at.Before(now) })
	}
	p.next[of] = now.Add(wait + gap)
	return wait
}
