package control

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// mostLast is for how many of the fullest queues the last start is worked out, and LastCost the most Redis commands that it takes for
// the queues of one provider.
const (
	mostLast = 16
	LastCost = 3
)

// hold is why no task of a scope can start, as the limits alone say. Its Reason is empty if they do not.
type hold struct {
	Last
	endless bool // no clock tells when it is over
}

// holdOf returns what the limits of a policy hold the tasks of a scope by at a time: no rule, a pause, or limit 0. It does no I/O.
func holdOf(p *policy.Policy, scope string, at time.Time) hold {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return hold{}
	}
	bounds, err := p.MatchAt(parsed, at)
	if err != nil {
		return hold{Last{Reason: ReasonUnmatched}, true}
	}
	var h hold
	for _, b := range bounds {
		last := Last{Rule: b.Rule.Name, RuleScope: b.Scope.String(), Start: At(b.Until)}
		switch {
		case b.Paused() && b.Until.IsZero():
			last.Reason = ReasonPaused
			return hold{last, true}
		case b.Paused() && (h.Reason != ReasonPaused || b.Until.After(h.Start.Time)) && !h.endless:
			last.Reason = ReasonPaused
			h = hold{last, false}
		case !b.Paused() && b.Rule.Limit == 0 && !b.Rule.Unlimited && !b.Rule.Shadow && (b.Rule.Active == nil || b.Rule.Active.Holds(at)):
			last.Reason = ReasonSuspended
			h = hold{last, true}
		}
	}
	return h
}

// Held returns why the limits alone hold the tasks of a scope: ReasonUnmatched, ReasonPaused, ReasonSuspended, or none. It does no I/O.
func (s *Service) Held(scope string, limits Limits) Reason {
	return holdOf(s.limiter.Policy(), scope, limits.At).Reason
}

// lastStart returns when the last task of some queues, fullest first, starts under a limiter's policy: of the 16 fullest, and of the one
// whose pause lasts longest. A time that no clock tells is later than all others. It is the estimate that Turns and Task have for that task.
// Costs two round trips for each provider, and one more for each 64 of its lines and if those wait for runs to end; none if the limits
// alone say that no clock tells.
func (s *Service) lastStart(ctx context.Context, limiter *throttle.Limiter, queues []inspect.ScopeQueue) (last Last, err error) {
	byProvider, paused, until := map[string][]string{}, "", time.Time{}
	add := func(scope string) {
		provider, _, _ := strings.Cut(scope, "/")
		byProvider[provider] = append(byProvider[provider], scope)
	}
	for i, q := range queues {
		h := holdOf(limiter.Policy(), q.Scope, s.now())
		if h.endless {
			return h.Last, nil
		}
		if i < mostLast {
			add(q.Scope)
		}
		if h.Reason == ReasonPaused && h.Start.After(until) {
			if paused, until = q.Scope, h.Start.Time; i < mostLast {
				paused = ""
			}
		}
	}
	if paused != "" {
		add(paused)
	}
	first := true
	for provider, scopes := range byProvider {
		list, err := inspect.Of(limiter.Waitlist()).LastQueued(ctx, provider, scopes...)
		if err != nil {
			return last, err
		}
		for i, one := range list {
			if !one.Waits {
				continue
			}
			if l := lastOf(limiter, scopes[i], one); first || l.later(last) {
				last, first = l, false
			}
		}
	}
	return last, nil
}

// later reports whether one comes after another: at a time that no clock tells, or after its.
func (l Last) later(than Last) bool {
	return !than.Start.IsZero() && (l.Start.IsZero() || l.Start.After(than.Start.Time))
}

// lastOf returns the start of a waiter, and what it waits for.
func lastOf(limiter *throttle.Limiter, scope string, one inspect.WaiterStatus) Last {
	start, _ := expected(one.At, one.Expected)
	if changes(limiter, scope, start.Time) {
		return Last{Reason: ReasonHours}
	}
	l := Last{Start: start, Reason: queue.ReasonOf(one.Binding, one.Paused), Rule: one.Binding.Rule.Name, RuleScope: one.Binding.Scope.String()}
	if one.Paused {
		l.RuleScope = scope
	}
	return l
}

// changes reports whether other rules apply to a scope by a time, since the hours of one begin or end. It does no I/O.
func changes(limiter *throttle.Limiter, scope string, by time.Time) bool {
	hours, _ := limiter.Hours(scope) // none of a scope without rules
	return slices.ContainsFunc(hours, func(h throttle.RuleHours) bool { return !h.Changes.IsZero() && by.After(h.Changes) })
}

// LastStart returns when the last of the tasks will have started that wait now in a scope and below it, as far as an outline has their
// queues. Last is zero if none waits. Costs two round trips. Its errors are those of Turns.
func (s *Service) LastStart(ctx context.Context, scope string, out Outline) (Last, error) {
	var queues []inspect.ScopeQueue
	for _, b := range out.Branches {
		if b.Own > 0 && isIn(b.Scope, scope) {
			queues = append(queues, inspect.ScopeQueue{Scope: b.Scope, Own: b.Own})
		}
	}
	slices.SortStableFunc(queues, func(a, b inspect.ScopeQueue) int { return cmp.Compare(b.Own, a.Own) })
	return s.lastStart(ctx, s.limiter, queues)
}
