package dispatch

import (
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// around reads what other processes announce, and exchanges weights with them.
func (d *Dispatcher) around(beat *beat) {
	var said, all, last time.Time
	for first := true; ; first = false {
		if time.Since(said) >= sayWeights {
			said = time.Now()
			if err := d.weights.publish(d.cfg.Serving, d.cfg.Redis); err != nil && !d.stopped() {
				d.cfg.Observer.Failed("weights")
			}
		}
		since, now := last.Add(-skewed), time.Now()
		if now.Sub(all) >= askAll {
			since = time.Time{}
		}
		turns, err := d.cfg.Limiter.Waitlist().ActiveProviders(d.cfg.Serving, since)
		if err == nil {
			if since.IsZero() {
				all = now
			}
			last = now
			d.watchdog.nothingDue()
			for provider, said := range turns {
				d.announced(provider, said, first)
			}
		} else if d.cfg.Serving.Err() == nil {
			d.cfg.Observer.Failed("wake")
		}
		d.watchdog.looked(beat, err)
		if !asynqx.Sleep(d.cfg.Serving, askAround) {
			return
		}
	}
}

// announcement is one that was handled.
type announcement struct {
	said   time.Time // by the clock of its author
	looked time.Time
}

func (d *Dispatcher) announced(provider string, said time.Time, first bool) {
	d.mu.Lock()
	last, known := d.seen[provider]
	news := !known || !said.Equal(last.said)
	one := d.watches[provider]
	if one != nil && news {
		one.nudge()
	} else if one != nil || !news && time.Since(last.looked) < lookAnyway {
		d.mu.Unlock()
		return
	}
	d.seen[provider] = announcement{said, time.Now()}
	d.mu.Unlock()
	if one == nil {
		d.look(provider, hint{all: first, said: said})
	}
}

// Decided applies what a decision says about the waiters of its scope. After a denial, the provider is
// polled in time. A grant only hints that others may wait, or be about to come.
func (d *Dispatcher) Decided(scope string, decision throttle.Decision) {
	provider := Provider(scope)
	if decision.Allowed && d.wellKnown(provider) {
		return
	}
	d.look(provider, hint{in: decision.Position.Look})
}

// wellKnown reports whether a provider is polled without a hint. During a backoff it is polled when
// that ends.
func (d *Dispatcher) wellKnown(provider string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one := d.watches[provider]; one != nil && !one.idle {
		return true
	}
	l := d.lulls[provider]
	if l != nil {
		l.hinted = true
	}
	return l != nil
}

// backoff is a period in which hints from grants are not followed, so that polls that find no waiter
// are a small part of Redis's load, however many tasks start.
type backoff struct{ hinted bool }

// lullOf is the length of a backoff as a multiple of the duration of the last poll.
const lullOf = 20

// rests begins a backoff. d.mu is held.
func (d *Dispatcher) rests(one *watch) {
	l := &backoff{}
	d.lulls[one.provider] = l
	time.AfterFunc(min(lullOf*one.took, lookAgain), func() {
		d.mu.Lock()
		delete(d.lulls, one.provider)
		hinted := l.hinted
		d.mu.Unlock()
		if hinted {
			d.look(one.provider, hint{})
		}
	})
}

// announce publishes to other processes that tasks wait: once for each watch, unless they know
// already, and again during a long one, since a process may have started meanwhile.
func (d *Dispatcher) announce(one *watch) {
	if time.Since(one.said) < announceAgain {
		return
	}
	if err := d.cfg.Limiter.Waitlist().PublishActive(d.cfg.Serving, one.provider); err == nil {
		one.said = time.Now()
	} else if !d.stopped() {
		d.cfg.Observer.Failed("wake")
	}
}
