package throttle

import (
	"context"
	"slices"
	"strings"
	"time"
)

// wakeByGrants is Wake by Dispatch: those who are released have their grants in flight, and claim them when they ask.
func (l *Limiter) wakeByGrants(ctx context.Context, req WakeRequest) (Woken, error) {
	scopes := l.nexts.of(req.Provider)
	d, err := l.Dispatch(ctx, DispatchRequest{
		Provider: req.Provider, Lead: req.Lead, Spread: req.Spread, Max: req.Most, MaxReady: req.More, All: req.All, Glance: req.Glance,
		Claimed: req.Running, NotYet: req.NotYet, Gone: req.Gone, StandStill: req.StandStill, Back: req.Back, Leave: req.Leave,
	})
	if err == nil && len(d.Overdue) > 0 { // nobody can have started them: who asks claims what it was granted
		places := d.Overdue
		granted := d.Granted
		room := max(0, req.Most+req.More-len(granted))
		d, err = l.Dispatch(ctx, DispatchRequest{
			Provider: req.Provider, Lead: req.Lead, Spread: req.Spread, Max: room, Unused: places, StandStill: req.StandStill, Leave: req.Leave,
		})
		d.Granted = append(granted, d.Granted...)
	}
	out := Woken{Waiting: d.Waiting, Next: d.Next, Parked: d.Parked}
	for _, g := range d.Granted {
		out.Released = append(out.Released, g.Place)
	}
	scopes.released(out.Released, slices.Concat(req.Running, req.NotYet, req.Gone))
	out.Out, out.Slow = scopes.out()
	return out, err
}

// flying is what this process has released.
type flying struct{ since map[Place]time.Time }

func (s *nextScopes) released(places, over []Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flying.since == nil {
		s.flying.since = map[Place]time.Time{}
	}
	for _, p := range over {
		delete(s.flying.since, p)
	}
	for _, p := range places {
		s.flying.since[p] = time.Now()
	}
}

// came notes that a task has asked.
func (s *nextScopes) came(p Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flying.since, p)
}

// slowAfter is when a task that was released is slow to come.
const slowAfter = 250 * time.Millisecond

// out returns how many have been released and not come, and a ticket of each group that is slow to.
func (s *nextScopes) out() (n int, slow []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[string]bool{}
	for p, since := range s.flying.since {
		if time.Since(since) > 4*time.Second {
			delete(s.flying.since, p)
			continue
		}
		if group, _, is := strings.Cut(p.Ticket, "/"); is && time.Since(since) >= slowAfter && !groups[group] {
			groups[group] = true
			slow = append(slow, p.Ticket)
		}
	}
	return len(s.flying.since), slow
}
