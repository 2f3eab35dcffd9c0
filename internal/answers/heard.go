package answers

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
)

// Grace is how long a start that was granted before a pause may still be ahead. With the notice of package policystore, such a
// start has come within a second of the change.
const Grace = 250 * time.Millisecond

// looksApart is how far apart lookups of one scope's pauses are at least.
const looksApart = 50 * time.Millisecond

// pause is a pause that this process has heard of.
type pause struct {
	until time.Time // its end, by the Redis server's clock
	ends  time.Time // the same by the clock of this process
	heard time.Time
	at    time.Time // when it was in force, by the Redis server's clock
}

// Start is a start that was granted and has not come.
type Start struct {
	Scope    *wire.Scope // nil if Redis did not decide
	Granted  time.Time   // when Redis granted it, by the server's clock
	At       time.Time   // the start, by the server's clock
	Begins   time.Time   // the start, by the clock of this process
	Replayed bool        // it was granted before Granted, at an unknown time
}

// Waiting notes that a start is waited for, until over is called.
func (r *Reporter) Waiting() (over func()) {
	r.waiting.Add(1)
	return func() { r.waiting.Add(-1) }
}

// Overtaken reports whether this process has heard of a pause that began after a start was granted and ends after it. next is
// closed when it hears of another pause.
func (r *Reporter) Overtaken(s Start) (overtaken bool, next <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = make(chan struct{})
	}
	if len(r.pauses) == 0 || s.Scope == nil || s.Granted.IsZero() {
		return false, r.next
	}
	for _, level := range levels(s.Scope) {
		p, known := r.pauses[s.Scope.Prefix+level]
		// If the server's clock has stepped back, an old pause seems to begin later and to last: so it must also last by our clock.
		if known && s.Begins.Before(p.ends.Add(Grace)) && (s.Replayed || !p.at.Before(s.Granted)) && p.until.After(s.At) {
			return true, r.next
		}
	}
	return false, r.next
}

// Denied notes that a pause by an API denied a start of a scope. If this process has not heard of that pause, it looks it up for
// the starts that are waited for.
func (r *Reporter) Denied(s *wire.Scope) {
	if r.waiting.Load() == 0 {
		return
	}
	now := time.Now()
	r.mu.Lock()
	known := slices.ContainsFunc(levels(s), func(level string) bool { return now.Before(r.pauses[s.Prefix+level].ends) })
	r.mu.Unlock()
	if !known {
		r.Look(s)
	}
}

// heard notes a pause of a scope, by its key, that was in force at a time of the server's clock, and wakes the starts that are waited for.
func (r *Reporter) heard(scope string, until, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	put(&r.pauses, scope, pause{until: until, ends: now.Add(until.Sub(at)), heard: now, at: at})
	if r.next != nil {
		close(r.next)
		r.next = nil
	}
}

// forgetPause notes that the pause of a scope is lifted.
func (r *Reporter) forgetPause(s *wire.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pauses, scopeKey(s))
}

// Look looks up the pauses of a scope and of those above it in the background, once for all starts that ask at about the same
// time. If Redis does not answer, starts are as they were granted.
func (r *Reporter) Look(s *wire.Scope) {
	r.mu.Lock()
	lately := time.Since(r.looked[scopeKey(s)]) < looksApart
	if !lately {
		put(&r.looked, scopeKey(s), time.Now())
	}
	r.mu.Unlock()
	if lately {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Timeout)
		defer cancel()
		paths := levels(s)
		values, err := r.cfg.Redis.HMGet(ctx, wire.APIKey(s.Prefix), pauseFields(paths)...).Result()
		if err != nil {
			return
		}
		at := r.cfg.Now(s.Prefix)
		for i, v := range values {
			text, _ := v.(string)
			if p, is := wire.ReadPause(text); is && p.Ends > at.UnixMicro() {
				r.heard(s.Prefix+paths[i%len(paths)], time.UnixMicro(p.Ends), at)
			}
		}
	}()
}

// levels returns the paths of a scope and of those above it, outermost first.
func levels(s *wire.Scope) (paths []string) {
	for _, path := range []string{s.Path, s.MemberPath()} {
		for i := range path {
			if path[i] == '/' && !slices.Contains(paths, path[:i]) {
				paths = append(paths, path[:i])
			}
		}
		if path != "" || paths == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// pauseFields returns where the hash api has the pauses of paths, by APIs and then by breakers.
func pauseFields(paths []string) (fields []string) {
	for _, letter := range []string{"P", "B"} {
		for _, path := range paths {
			fields = append(fields, letter+path)
		}
	}
	return fields
}
