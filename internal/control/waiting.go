package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

// WaitingScope is a scope with tasks waiting in its own queue. docs/json.md has its fields.
type WaitingScope struct {
	Scope      string `json:"scope"`
	At         Time   `json:"at,omitzero"`
	Waiting    int64  `json:"waiting"`
	FirstSince Time   `json:"first_since,omitzero"` // when the wait of its first task began
	NextStart  Time   `json:"next_start,omitzero"`
	Range
	Reason    Reason `json:"reason,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RuleScope string `json:"rule_scope,omitempty"`
}

// Waiting is the list of scopes in which tasks wait.
type Waiting struct {
	// Fullest are the scopes with the most waiting tasks, fullest first.
	Fullest []WaitingScope
	// Scopes is the number of scopes that were counted. More says that a provider has more, which were
	// not.
	Scopes int
	More   bool
}

// Waiting returns the scopes in which tasks wait, at most as many as asked for. It counts at most
// 10,000 scopes of each provider; see Waitlist.Fullest for the cost. Each scope of the answer costs one
// more call of asynq. Scopes that the actor may not see are left out.
func (s *Service) Waiting(ctx context.Context, who Actor, most int) (Waiting, error) {
	var all Waiting
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return all, err
	}
	var list []throttle.ScopeQueue
	for _, provider := range slices.Sorted(maps.Keys(providers)) {
		some, counted, more, err := s.limiter.Waitlist().Fullest(ctx, provider, most, func(scope string) bool { return s.May(who, VerbSee, scope) == nil })
		if err != nil {
			return all, err
		}
		list, all.Scopes, all.More = append(list, some...), all.Scopes+counted, all.More || more
	}
	slices.SortStableFunc(list, func(a, b throttle.ScopeQueue) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, q := range list[:min(most, len(list))] {
		all.Fullest = append(all.Fullest, s.waitingScope(q))
	}
	return all, nil
}

func (s *Service) waitingScope(q throttle.ScopeQueue) WaitingScope {
	w := WaitingScope{Scope: q.Scope, At: At(q.At), Waiting: q.Waiting, FirstSince: s.since(q.First.ID)}
	if q.Unmatched {
		w.Reason = ReasonUnmatched
		return w
	}
	w.NextStart, w.Range = expected(q.At, q.NextStart)
	w.Reason = queue.ReasonOf(q.Binding, q.Paused)
	w.Rule, w.RuleScope = q.Binding.Rule.Name, q.Binding.Scope.String()
	return w
}

// since returns when the wait of a task began, as far as its headers say.
func (s *Service) since(ticket string) Time {
	name, id, is := queue.ReadTicket(ticket)
	if !is {
		return Time{}
	}
	info, err := s.inspector.GetTaskInfo(name, id)
	if err != nil {
		return Time{} // the task is gone
	}
	return At(dueOf(info))
}
