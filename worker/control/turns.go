package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// NextTurn is a task in a queue of a scope.
type NextTurn struct {
	Queue, ID string
	Position  int64 // in the queue of its scope and asynq queue, from 1
	Start     Time  // zero if that is unknown
	Range
	Wait
}

// Turns is a part of the queues of a scope, one for each asynq queue, without those of the scopes below it.
type Turns struct {
	Scope string
	From  int   // the place of the first task, from 0
	All   int64 // how many tasks the queues have
	List  []NextTurn

	Unmatched bool // no rule matches the scope any more
}

// Turns returns the tasks of a scope's own queues that are next, 64 at most, from a place on; 0 is the first. The queues follow each
// other, by the name of their asynq queue. The cost does not depend on how long they are. The error is a *policy.ScopeError, or Redis's.
func (s *Service) Turns(ctx context.Context, scope string, from, most int) (Turns, error) {
	t := Turns{Scope: scope, From: from}
	limiter := s.limiter
	list, all, err := inspect.Of(limiter.Waitlist()).Queued(ctx, scope, from, most)
	if IsUnmatched(err) {
		t.Unmatched = true
		if limiter, err = s.openLimiter(); err != nil {
			return t, err
		}
		list, all, err = inspect.Of(limiter.Waitlist()).Queued(ctx, scope, from, most)
	}
	if err != nil {
		return t, err
	}
	t.All = all
	for _, q := range list {
		next := NextTurn{Queue: q.Queue, ID: q.ID, Position: q.Ahead + 1, Wait: waitOf(q.Binding, q.Paused)}
		next.Start, next.Range = expected(q.At, q.Expected)
		switch {
		case t.Unmatched:
			next.Start, next.Range, next.Reason = Time{}, Range{}, ReasonUnmatched
		case rulesChange(limiter, scope, next.Start.Time):
			next.Start, next.Range, next.Reason = Time{}, Range{}, ReasonHours
		}
		t.List = append(t.List, next)
	}
	waits := make([]*Wait, len(t.List))
	for i := range t.List {
		waits[i] = &t.List[i].Wait
	}
	s.askBreaker(ctx, scope, waits...)
	return t, nil
}

// rulesChange reports whether other rules apply to a scope by a time, since the hours of a rule begin or end. It does no I/O.
func rulesChange(limiter *throttle.Limiter, scope string, by time.Time) bool {
	hours, _ := limiter.Hours(scope) // none of a scope without rules
	return slices.ContainsFunc(hours, func(h throttle.RuleHours) bool { return !h.Changes.IsZero() && by.After(h.Changes) })
}

// Last is when the last task of several starts, and what it waits for.
type Last struct {
	Start Time `json:"start,omitzero"` // zero if that is unknown, or if no task waits
	Wait
}

// String returns the time in words.
func (l Last) String() string {
	by := ""
	if l.Reason == ReasonMember {
		by = ", with a member of " + quote(l.RuleScope)
	} else if l.Rule != "" && l.Reason != ReasonPaused {
		by = ", by rule " + quote(l.Rule) + " of " + quote(l.RuleScope)
	}
	switch {
	case l.Reason == ReasonUnmatched:
		return "when a rule matches its scope"
	case l.Start.IsZero() && l.Reason == ReasonPaused:
		return "when " + quote(l.RuleScope) + " is resumed"
	case l.Start.IsZero():
		return "at an unknown time" + by
	}
	return "at " + l.Start.String() + by
}

// isAfter reports whether a start is after another. An unknown start is after all others.
func (l Last) isAfter(other Last) bool {
	return !other.Start.IsZero() && (l.Start.IsZero() || l.Start.After(other.Start.Time))
}

// heldBy returns what the limits of a policy hold the tasks of a scope by at a time: no rule, a pause, or limit 0. Start is its end, zero if
// that is unknown, and Reason is empty if nothing holds them. It does no I/O.
func heldBy(p *policy.Policy, scope string, at time.Time) (l Last) {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return l
	}
	bounds, err := p.MatchAt(parsed, at)
	if err != nil {
		return Last{Wait: Wait{Reason: ReasonUnmatched}}
	}
	for _, b := range bounds {
		r := b.Rule
		if b.Paused() {
			until := Last{At(b.Until), Wait{ReasonPaused, r.Name, b.Scope.String()}}
			if b.Until.IsZero() {
				return until
			}
			if l.Reason == "" || l.Reason == ReasonPaused && until.isAfter(l) {
				l = until
			}
		} else if r.Limit == 0 && !r.Unlimited && !r.Shadow && (r.Active == nil || r.Active.Holds(at)) {
			l = Last{Wait: Wait{ReasonSuspended, r.Name, b.Scope.String()}}
		}
	}
	return l
}

// HeldBy returns why the limits alone hold the tasks of a scope: ReasonUnmatched, ReasonPaused, ReasonSuspended, or none. It does no I/O.
func (s *Service) HeldBy(scope string, limits Limits) Reason {
	return heldBy(s.limiter.Policy(), scope, limits.At).Reason
}

// LastStart returns when the last of the tasks will have started that wait now in a scope and below it, as far as an outline has their
// queues. Last is zero if none waits. Costs two round trips. Its errors are those of Turns.
func (s *Service) LastStart(ctx context.Context, scope string, out Outline) (Last, error) {
	var queues []inspect.ScopeQueue
	for _, b := range out.Branches {
		if b.Own > 0 && covers(scope, b.Scope) {
			queues = append(queues, inspect.ScopeQueue{Scope: b.Scope, Own: b.Own})
		}
	}
	slices.SortStableFunc(queues, func(a, b inspect.ScopeQueue) int { return cmp.Compare(b.Own, a.Own) })
	return s.lastStart(ctx, s.limiter, queues)
}

// mostLast is of how many of the fullest queues the last start is worked out.
const mostLast = 16

// lastStart returns when the last task of some queues, fullest first, starts under a limiter's policy: of the 16 fullest, and of the one
// whose pause lasts longest. It is the estimate that Turns and Task have for that task. Costs two round trips for each provider, and one
// more for each 64 of its queues and if those wait for runs to end; none if the limits alone leave the start unknown.
func (s *Service) lastStart(ctx context.Context, limiter *throttle.Limiter, queues []inspect.ScopeQueue) (last Last, err error) {
	var scopes []string
	paused, until := -1, time.Time{}
	for i, q := range queues {
		held := heldBy(limiter.Policy(), q.Scope, s.now())
		if held.Reason != "" && held.Start.IsZero() {
			return held, nil
		}
		if held.Reason == ReasonPaused && held.Start.After(until) {
			paused, until = i, held.Start.Time
		}
		if i < mostLast {
			scopes = append(scopes, q.Scope)
		}
	}
	if paused >= mostLast {
		scopes = append(scopes, queues[paused].Scope)
	}
	byProvider := map[string][]string{}
	for _, scope := range scopes {
		byProvider[providerOf(scope)] = append(byProvider[providerOf(scope)], scope)
	}
	first := true
	for provider, scopes := range byProvider {
		list, err := inspect.Of(limiter.Waitlist()).LastQueued(ctx, provider, scopes...)
		if err != nil {
			return last, err
		}
		for i, w := range list {
			if !w.Waits {
				continue
			}
			if l := lastOf(limiter, scopes[i], w); first || l.isAfter(last) {
				last, first = l, false
			}
		}
	}
	s.askBreaker(ctx, last.RuleScope, &last.Wait)
	return last, nil
}

// lastOf returns the start of a waiter, and what it waits for.
func lastOf(limiter *throttle.Limiter, scope string, w inspect.WaiterStatus) Last {
	start, _ := expected(w.At, w.Expected)
	if rulesChange(limiter, scope, start.Time) {
		return Last{Wait: Wait{Reason: ReasonHours}}
	}
	l := Last{start, waitOf(w.Binding, w.Paused)}
	if w.Paused {
		l.RuleScope = scope
	}
	return l
}
