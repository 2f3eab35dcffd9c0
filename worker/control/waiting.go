package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/inspect"
)

// WaitingScope is a scope with tasks waiting in its own queue. docs/json.md has its fields.
type WaitingScope struct {
	Scope      string `json:"scope"`
	At         Time   `json:"at,omitzero"`
	Waiting    int64  `json:"waiting"`
	FirstSince Time   `json:"first_since,omitzero"` // when the wait of its first task began
	NextStart  Time   `json:"next_start,omitzero"`
	Range
	Wait
}

// Waiting is the list of scopes in which tasks wait.
type Waiting struct {
	Fullest []WaitingScope // the scopes with the most waiting tasks, fullest first
	Scopes  int            // how many were counted
	More    bool           // a provider has more, which were not counted
}

// Waiting returns the scopes in which tasks wait and that the actor may see, at most as many as asked for. It counts at most 10,000
// scopes of each provider, and costs what Count and InspectFirst of a Reader do for each, and a call of asynq for each scope returned.
func (s *Service) Waiting(ctx context.Context, actor Actor, most int) (Waiting, error) {
	var all Waiting
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return all, err
	}
	reader := inspect.Of(s.limiter.Waitlist())
	var list []inspect.ScopeQueue
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		scopes, more, err := reader.Count(ctx, provider, func(scope string) bool { return s.May(actor, VerbSee, scope) == nil })
		if err != nil {
			return all, err
		}
		fullest := scopes[:min(most, len(scopes))]
		if err := reader.InspectFirst(ctx, provider, fullest); err != nil {
			return all, err
		}
		list, all.Scopes, all.More = append(list, fullest...), all.Scopes+len(scopes), all.More || more
	}
	slices.SortStableFunc(list, func(a, b inspect.ScopeQueue) int { return cmp.Compare(b.Own, a.Own) })
	for _, q := range list[:min(most, len(list))] {
		w := s.waitingScope(q)
		s.askBreaker(ctx, w.Scope, &w.Wait)
		all.Fullest = append(all.Fullest, w)
	}
	return all, nil
}

func (s *Service) waitingScope(q inspect.ScopeQueue) WaitingScope {
	first := q.FirstStatus
	w := WaitingScope{Scope: q.Scope, At: At(first.At), Waiting: q.Own}
	if info, err := s.inspector.GetTaskInfo(q.First.Queue, q.First.ID); err == nil { // or it has started by now
		w.FirstSince = At(dueOf(info))
	}
	if q.Unmatched {
		w.Reason = ReasonUnmatched
		return w
	}
	w.NextStart, w.Range = expected(first.At, first.Expected)
	w.Wait = waitOf(first.Binding, first.Paused)
	return w
}
