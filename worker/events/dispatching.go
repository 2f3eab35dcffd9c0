package events

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// stalledAfter is how long a process must not have polled before that is an event; a poll is late after
	// three seconds. stalledStays is how long no other process reports the same.
	stalledAfter = 10 * time.Second
	stalledStays = 10 * time.Minute
	dispatchLook = time.Second
)

// dispatching is when the process last polled each provider's queue.
type dispatching struct {
	mu    sync.Mutex
	polls map[string]time.Time
}

// DispatcherPolled takes what worker.Observer's method of that name reports.
func (e *Events) DispatcherPolled(provider, _ string, again bool) {
	e.dispatch.mu.Lock()
	defer e.dispatch.mu.Unlock()
	if !again {
		delete(e.dispatch.polls, provider)
		return
	}
	if e.dispatch.polls == nil {
		e.dispatch.polls = map[string]time.Time{}
	}
	e.dispatch.polls[provider] = time.Now()
}

// late returns the providers that were last polled before a time, and the oldest poll.
func (d *dispatching) late(before time.Time) (providers []string, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for provider, at := range d.polls {
		if !at.Before(before) {
			continue
		}
		providers = append(providers, provider)
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	slices.Sort(providers)
	return providers[:min(len(providers), named)], since
}

// watchDispatch notices that this process does not dispatch, and that it does again. It asks nothing of
// Redis.
func (e *Events) watchDispatch(ctx context.Context) {
	tick := time.NewTicker(dispatchLook)
	defer tick.Stop()
	late, reported := 0, map[string]bool{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		providers, since := e.dispatch.late(time.Now().Add(-stalledAfter))
		if len(providers) == 0 {
			if late = 0; len(reported) > 0 {
				e.notice(noticed{event: Event{Kind: Resumed, Providers: slices.Sorted(maps.Keys(reported))}})
				clear(reported)
			}
			continue
		}
		if late++; late < 2 || len(reported) > 0 { // one tick alone is late where the whole process was
			continue
		}
		for _, provider := range providers {
			reported[provider] = true
		}
		e.notice(noticed{event: Event{Kind: Stalled, Providers: providers, Since: since.UTC()}, about: string(Stalled), stays: stalledStays})
	}
}
