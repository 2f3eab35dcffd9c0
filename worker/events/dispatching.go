package events

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// stalledAfter is how late a poll must be before that is an event. stalledStays is how long no other process reports the same.
	stalledAfter = 10 * time.Second
	stalledStays = 10 * time.Minute
	dispatchLook = time.Second
)

// dispatching is when the process last polled each provider's queue, and when it is to poll it next.
type dispatching struct {
	mu    sync.Mutex
	polls map[string]poll
}

type poll struct{ at, due time.Time }

// DispatcherPolled takes what worker.Observer's method of that name reports.
func (e *Events) DispatcherPolled(provider, _ string, next time.Duration) {
	e.dispatch.mu.Lock()
	defer e.dispatch.mu.Unlock()
	if next < 0 {
		delete(e.dispatch.polls, provider)
		return
	}
	now := time.Now()
	e.dispatch.polls[provider] = poll{now, now.Add(next)}
}

// late returns the providers whose poll was due before a time, and the oldest poll.
func (d *dispatching) late(before time.Time) (providers []string, since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for provider, p := range d.polls {
		if !p.due.Before(before) {
			continue
		}
		providers = append(providers, provider)
		if since.IsZero() || p.at.Before(since) {
			since = p.at
		}
	}
	slices.Sort(providers)
	return providers[:min(len(providers), named)], since
}

// watchDispatch notices that this process does not dispatch, and that it does again. It asks nothing of Redis.
func (e *Events) watchDispatch(ctx context.Context) {
	late, reported := 0, map[string]bool{}
	for sleep(ctx, dispatchLook) {
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

// sleep waits, and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
