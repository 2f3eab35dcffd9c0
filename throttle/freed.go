package throttle

import (
	"context"
	"sync"
	"time"
)

// freed tells of what has come free while tasks wait for it.
type freed struct {
	mu        sync.Mutex
	listeners map[*func(provider string)]struct{}
	said      map[string]*announcing // announced lately, by provider
}

// announcing is a provider that was announced a moment ago.
type announcing struct{ again bool } // more has come free since

// announcedEach is how often a provider is announced at most.
const announcedEach = 250 * time.Millisecond

// OnCapacityFreed calls f with a provider when this Limiter frees something that tasks wait for: a
// released place, settled or refunded units, an ended pause, a reset rule. f may be called from
// several goroutines at once and must be quick. The returned function ends the calls. A Limiter
// without such an f announces the provider instead, as PublishActive does, at most four times a
// second.
func (w Waitlist) OnCapacityFreed(f func(provider string)) (end func()) {
	w.l.freed.mu.Lock()
	defer w.l.freed.mu.Unlock()
	if w.l.freed.listeners == nil {
		w.l.freed.listeners = map[*func(string)]struct{}{}
	}
	w.l.freed.listeners[&f] = struct{}{}
	return func() {
		w.l.freed.mu.Lock()
		defer w.l.freed.mu.Unlock()
		delete(w.l.freed.listeners, &f)
	}
}

// PublishActiveSoon is PublishActive in the background, at most four times a second for each provider.
// It does not wait.
func (w Waitlist) PublishActiveSoon(provider string) {
	w.l.freed.mu.Lock()
	defer w.l.freed.mu.Unlock()
	w.l.freed.announce(w.l, provider)
}

// heedFreed tells of what has come free, if the last number of a reply says that tasks wait for it.
func (l *Limiter) heedFreed(provider string, reply []int64) {
	if reply[len(reply)-1] == 1 {
		l.tellFreed(provider)
	}
}

func (l *Limiter) tellFreed(provider string) {
	l.freed.mu.Lock()
	var calls []func(string)
	for f := range l.freed.listeners {
		calls = append(calls, *f)
	}
	if len(calls) == 0 {
		l.freed.announce(l, provider)
	}
	l.freed.mu.Unlock()
	for _, f := range calls {
		f(provider)
	}
}

// announce announces a provider at once, or when it may be announced again. f.mu is held.
func (f *freed) announce(l *Limiter, provider string) {
	if one := f.said[provider]; one != nil {
		one.again = true
		return
	}
	if f.said == nil {
		f.said = map[string]*announcing{}
	}
	f.said[provider] = &announcing{}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Timeout)
		defer cancel()
		_ = l.announce(ctx, provider) // whoever dispatches looks in a while anyway
	}()
	time.AfterFunc(announcedEach, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		again := f.said[provider].again
		delete(f.said, provider)
		if again {
			f.announce(l, provider)
		}
	})
}
