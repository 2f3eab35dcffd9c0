package worker

import (
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// around looks into what other processes announce, and exchanges weights with them.
func (w *waker) around(beat *beat) {
	var said, all, last time.Time
	for first := true; ; first = false {
		if time.Since(said) >= sayWeights {
			said = time.Now()
			if err := w.t.weights.publish(w.t.serving, w.t.cfg.Redis); err != nil && !w.t.stopped() {
				w.t.observer.Failed("weights")
			}
		}
		since, now := last.Add(-skewed), time.Now()
		if now.Sub(all) >= askAll {
			since = time.Time{}
		}
		turns, err := w.t.cfg.Limiter.Waitlist().ActiveProviders(w.t.serving, since)
		if err == nil {
			if since.IsZero() {
				all = now
			}
			last = now
			w.pulse.nothingDue()
			for provider, said := range turns {
				w.announced(provider, said, first)
			}
		} else if w.t.serving.Err() == nil {
			w.t.observer.Failed("wake")
		}
		w.pulse.looked(beat, err)
		if !asynqx.Sleep(w.t.serving, askAround) {
			return
		}
	}
}

// announcement is one that has been looked into.
type announcement struct {
	said   time.Time // by the clock of who made it
	looked time.Time
}

func (w *waker) announced(provider string, said time.Time, first bool) {
	w.mu.Lock()
	last, known := w.seen[provider]
	news := !known || !said.Equal(last.said)
	one := w.watches[provider]
	if one != nil && news {
		one.nudge()
	} else if one != nil || !news && time.Since(last.looked) < lookAnyway {
		w.mu.Unlock()
		return
	}
	w.seen[provider] = announcement{said, time.Now()}
	w.mu.Unlock()
	if one == nil {
		w.look(provider, hint{all: first, said: said})
	}
}

// heard heeds what a decision says of those who wait: one who was denied has the
// provider looked at in time, and one who was granted knows only that others may
// wait, or be about to come.
func (w *waker) heard(provider string, d throttle.Decision) {
	if d.Allowed && w.wellKnown(provider) {
		return
	}
	w.look(provider, hint{in: d.Position.Look})
}

// wellKnown says whether a provider is looked at without anybody's hint. In a lull
// it is when that ends.
func (w *waker) wellKnown(provider string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.watches[provider]; one != nil && !one.idle {
		return true
	}
	l := w.lulls[provider]
	if l != nil {
		l.hinted = true
	}
	return l != nil
}

// backoff is a while in which what grants hint at is not followed, so that looks that
// find nobody are a small part of what Redis does, however many tasks start.
type backoff struct{ hinted bool }

// lullOf is how long a lull is, by how long the look before took.
const lullOf = 20

// rests begins a lull. w.mu is held.
func (w *waker) rests(one *watch) {
	l := &backoff{}
	w.lulls[one.provider] = l
	time.AfterFunc(min(lullOf*one.took, lookAgain), func() {
		w.mu.Lock()
		delete(w.lulls, one.provider)
		hinted := l.hinted
		w.mu.Unlock()
		if hinted {
			w.look(one.provider, hint{})
		}
	})
}

// announce lets other processes know that somebody waits, once for each watch, unless
// they know already, and again while it is a long one: a process may start meanwhile.
func (w *waker) announce(one *watch) {
	if time.Since(one.said) < announceAgain {
		return
	}
	if err := w.t.cfg.Limiter.Waitlist().PublishActive(w.t.serving, one.provider); err == nil {
		one.said = time.Now()
	} else if !w.t.stopped() {
		w.t.observer.Failed("wake")
	}
}
