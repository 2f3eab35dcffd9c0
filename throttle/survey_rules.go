package throttle

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// readRules reads the rules of the policy's own scopes, and of the fullest queues.
func (s *survey) readRules(ctx context.Context) error {
	scopes := s.ownScopes()
	for _, q := range s.out.Queues[:min(surveyedPaths, len(s.out.Queues))] {
		if !q.never && len(q.meets) > 0 && !slices.Contains(scopes, q.Scope) {
			scopes = append(scopes, q.Scope)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var fault error
	room := make(chan struct{}, surveyedAtOnce)
	for _, scope := range scopes {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			now, d, err := s.pacesOf(ctx, scope)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if fault == nil {
					fault = err
				}
				return
			}
			s.note(scope, now, d)
		})
	}
	wg.Wait()
	return fault
}

// pacesOf returns the rules of a scope, and how long their runs take.
func (s *survey) pacesOf(ctx context.Context, scope string) (Forecast, Decision, error) {
	now, p, d, err := s.w.l.paces(ctx, scope)
	if err != nil || p == nil || len(p.leases) == 0 {
		return now, d, err
	}
	var runs runsReply
	err = s.w.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { runs = p.askRuns(ctx, pipe, now.At) })
	if err != nil {
		return now, d, unavailable(ctx, "read the run times of", scope, err)
	}
	now.setRuns(p, runs)
	return now, d, nil
}

// ownScopes returns the scopes that the policy names and has rules for. A scope above another is left
// out, since it is read with that.
func (s *survey) ownScopes() (scopes []string) {
	for _, r := range slices.Backward(s.out.Rules) { // scopes come before those above them
		above := func(scope string) bool { return scope == r.Pattern || strings.HasPrefix(scope, r.Pattern+"/") }
		if !slices.Contains(strings.Split(r.Pattern, "/"), "*") && !slices.ContainsFunc(scopes, above) {
			scopes = append(scopes, r.Pattern)
		}
	}
	slices.Reverse(scopes)
	if len(scopes) > surveyedScopes {
		scopes, s.out.Partial = scopes[:surveyedScopes], true
	}
	return scopes
}

// note records the state of the rules on a scope's path.
func (s *survey) note(scope string, now Forecast, d Decision) {
	if s.out.At.Before(now.At) {
		s.out.At = now.At
	}
	s.closed[scope] = d.Paused
	for i := range now.Rules {
		if r := &now.Rules[i]; r.Paused {
			s.closed[scope] = true
		} else if index, known := s.index[ruleAt{r.Pattern, r.Rule}]; known {
			one := s.rule(ruleOf{r.Scope, r.Rule}, index)
			one.state, one.left = r, r.Free()
			one.held = max(one.held, heldUntil(r.Scope, scope, now, d))
		}
	}
}

// heldUntil returns how long pauses alone hold the tasks under a rule: the pauses of its own level and of
// those above.
func heldUntil(level, scope string, now Forecast, d Decision) (held time.Duration) {
	if d.Paused && level == scope {
		held = d.RetryAfter
	}
	for _, r := range now.Rules {
		if r.Paused && (r.Scope == level || strings.HasPrefix(level, r.Scope+"/")) {
			held = max(held, r.RetryAfter)
		}
	}
	return held
}

// countReady divides what the rules would admit now among the queues, the fullest first.
func (s *survey) countReady() {
	for i := range s.out.Queues[:min(surveyedPaths, len(s.out.Queues))] {
		q := &s.out.Queues[i]
		if q.never || s.closed[q.Scope] {
			continue
		}
		ready := q.Tasks
		for _, m := range q.meets {
			if one := s.at[m.of]; one.state != nil {
				ready = min(ready, portionOf(one.left, q.Tasks, q.units(m.rule)))
			}
		}
		for _, m := range q.meets {
			if one := s.at[m.of]; one.state != nil && q.Tasks > 0 {
				one.left -= portionOf(ready, q.units(m.rule), q.Tasks)
			}
		}
		q.Ready = ready
	}
}

// units returns how many units of a rule all waiters of a queue take.
func (q *QueueSurvey) units(r policy.Rule) int64 {
	if r.Algorithm == policy.Concurrency {
		return q.Tasks
	}
	return q.sum.of(r.Unit)
}

// portionOf returns whole times n/all, rounded down, and whole if all is 0.
func portionOf(n, whole, all int64) int64 {
	if all <= 0 {
		return whole
	}
	return int64(float64(max(0, n)) * float64(whole) / float64(all))
}

// finish sums up the counts of each rule over its scopes.
func (s *survey) finish() Survey {
	best := make([]*ruleCount, len(s.out.Rules))
	for _, of := range slices.SortedFunc(maps.Keys(s.at), func(a, b ruleOf) int {
		return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.name, b.name))
	}) {
		one := s.at[of]
		r := &s.out.Rules[one.index]
		r.Waiting, r.Queues = r.Waiting+one.waiting, r.Queues+one.lines
		if one.state != nil && one.above(best[one.index]) {
			best[one.index] = one
		}
	}
	for i, one := range best {
		if one != nil {
			r := &s.out.Rules[i]
			r.Read, r.Used, r.Limit, r.DoneIn = true, one.used(), one.state.Limit, one.doneIn()
		}
	}
	if s.out.At.IsZero() {
		s.out.At = time.Now()
	}
	for i := range s.out.Queues {
		if q := &s.out.Queues[i]; q.First.ID != "" {
			q.Joined = joined(q.score, s.out.At)
		}
	}
	return s.out
}

// above reports whether more units wait for one count than for another, or as many and more are used.
func (c *ruleCount) above(other *ruleCount) bool {
	return other == nil || c.waiting > other.waiting || c.waiting == other.waiting && c.used() > other.used()
}

func (c *ruleCount) used() int64 { return max(0, c.state.Limit-c.state.Remaining) }

func (c *ruleCount) doneIn() time.Duration {
	if c.waiting == 0 {
		return 0
	}
	end := c.state.AdmitsIn(c.waiting)
	if !end.Known() || c.held == Never || end.In > Never-c.held {
		return Never
	}
	return c.held + end.In
}
