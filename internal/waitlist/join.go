package waitlist

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Joined is the result of Join for one Waiter.
type Joined struct {
	// Free says that no rule applies to its scope, so that it has no place and may run.
	Free bool
	// Ahead is how many tasks of its scope and queue are before it.
	Ahead int64
	// Expected is the estimated time until its start; wire.Forever if no clock can tell.
	Expected time.Duration
	// MaxWait is the shortest max_wait of the rules that apply, 0 for none.
	MaxWait time.Duration
	// Binding is the rule that it waits for, or a pause by the policy. It is zero if it waits for neither, as for a member of a pool.
	Binding policy.MatchedRule
	// Err says why it can never start, and has no place: a *policy.ScopeError, *policy.UnmatchedError or *policy.CostError, an
	// error of policy.Costs.Check, or a priority out of bounds.
	Err error
}

// joinBatch is how many tasks one call of join places: few enough for a millisecond or two of the server, where each has a tenant
// of its own. joinCalls is how many calls go in one round trip.
const (
	joinBatch = 64
	joinCalls = 8
)

// frontRank is the priority of tasks that go back to their lines.
const frontRank = policy.MaxPriority + 1

// task is a task that joins, with the index of its result.
type task struct {
	wire.Task
	at    int
	scope *wire.Scope
}

// Join gives tasks places at the end of their lines: those of a scope and queue in their order. A task that has a place keeps it.
// Nothing is charged. It wakes the processes that dispatch if a line had no task before. The result has one Joined for each waiter.
//
// It costs one round trip for each 512 tasks of a provider, one more if a line was empty, and one more if rules began or ended to
// apply. After an error some tasks may have places nevertheless.
func (l *List) Join(ctx context.Context, waiters []Waiter) ([]Joined, error) {
	return l.join(ctx, waiters, func(w Waiter) (priority, place int64) { return int64(w.Priority), 0 })
}

// Rejoin gives a task back the place that it had, as a grant has it in Score. For place 0 it puts the task to the front of its
// line, behind those that were put there before. Otherwise it is like Join.
func (l *List) Rejoin(ctx context.Context, w Waiter, place int64) (Joined, error) {
	out, err := l.join(ctx, []Waiter{w}, func(Waiter) (int64, int64) { return frontRank, place })
	return out[0], err
}

func (l *List) join(ctx context.Context, waiters []Waiter, order func(Waiter) (priority, place int64)) ([]Joined, error) {
	out := make([]Joined, len(waiters))
	byProvider := map[string][]task{}
	for i, w := range waiters {
		s, err := l.check(&w)
		if err != nil || !s.Limited() {
			out[i].Err, out[i].Free = err, err == nil
			continue
		}
		out[i].MaxWait = maxWait(s)
		t := task{wire.Task{Scope: s.Path, Text: s.Text, Queue: w.Queue, ID: w.ID, Cost: w.cost()}, i, s}
		t.Priority, t.Place = order(w)
		byProvider[s.Scope.Provider()] = append(byProvider[s.Scope.Provider()], t)
	}
	for provider, tasks := range byProvider {
		slices.SortStableFunc(tasks, func(a, b task) int {
			return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Queue, b.Queue))
		})
		for some := range slices.Chunk(tasks, joinBatch*joinCalls) {
			if err := l.joinSome(ctx, provider, some, out); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// check returns what applies to a waiter, and the error of one that can never start. It caps the waiter's costs.
func (l *List) check(w *Waiter) (*wire.Scope, error) {
	s, err := l.cfg.Scopes.Of(w.Scope)
	switch {
	case err != nil:
		return nil, err
	case w.Priority < -policy.MaxPriority || w.Priority > policy.MaxPriority:
		return nil, fmt.Errorf("throttle: priority %d is not from %d to %d", w.Priority, -policy.MaxPriority, policy.MaxPriority)
	case len(w.Costs) > 0:
		if err := w.Costs.Check(); err != nil {
			return nil, err
		}
		w.Costs = s.Capped(w.Costs)
		return s, s.CheckAll(w.Costs.Under)
	case w.Cost < 0:
		return nil, &policy.CostError{Scope: s.Scope, Cost: w.Cost}
	}
	return s, s.CheckAll(func(policy.Rule) int64 { return max(w.Cost, 1) })
}

func maxWait(s *wire.Scope) (least time.Duration) {
	for _, b := range s.Rules {
		if m := b.Rule.MaxWait; m > 0 && (least == 0 || m < least) {
			least = m
		}
	}
	return least
}

// joinSome places tasks of one provider in one round trip.
func (l *List) joinSome(ctx context.Context, provider string, tasks []task, out []Joined) error {
	now, err := l.sendJoin(ctx, provider, tasks, out)
	if err != nil {
		return err
	}
	var stale []task
	for _, t := range tasks {
		if t.scope.Holds(now.UnixMicro()) {
			continue
		}
		if s, err := l.cfg.Scopes.At(t.scope.Scope, now); err == nil {
			t.scope, t.Text = s, s.Text
			stale = append(stale, t)
		}
	}
	if len(stale) > 0 {
		if _, err := l.sendJoin(ctx, provider, stale, out); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(tasks, func(t task) bool { return out[t.at].Ahead == 0 }) {
		l.callListeners(provider)
		return l.publish(ctx, provider, true)
	}
	return nil
}

func (l *List) sendJoin(ctx context.Context, provider string, tasks []task, out []Joined) (now time.Time, err error) {
	batches := slices.Collect(slices.Chunk(tasks, joinBatch))
	calls := make([][]any, len(batches))
	for i, some := range batches {
		list := make([]wire.Task, len(some))
		for k, t := range some {
			list[k] = t.Task
		}
		calls[i] = wire.JoinArgs(l.cfg.Clock(), list)
	}
	return l.run(ctx, provider, lua.Join, calls, func(i int, reply any) (int64, error) {
		at, places, err := wire.ReadJoin(reply)
		if err != nil || len(places) != len(batches[i]) {
			return 0, cmp.Or(err, wire.ErrReply)
		}
		for k, t := range batches[i] {
			out[t.at].read(t.scope, places[k], time.UnixMicro(at))
		}
		return at, nil
	})
}

// read sets the place of a task. While the policy pauses its scope, the task waits for the pause that ends last.
func (j *Joined) read(s *wire.Scope, p wire.Place, now time.Time) {
	j.Ahead, j.Expected, j.Binding = p.Before, wire.Wait(p.Expected), policy.MatchedRule{}
	if pause, ends := s.Pause(); pause != nil {
		j.Binding, j.Expected = *pause, wire.Until(ends, now)
	} else if by := p.Binding; by > 0 && by <= int64(len(s.Rules)) {
		j.Binding = s.Rules[by-1]
	}
}

// SafetyNet returns after how long asynq brings a task back by itself that is expected to start after so long, if it is not
// granted its start before: 5 to 9 minutes after that, and 10 to 15 if no clock can tell.
func SafetyNet(expected time.Duration) time.Duration {
	if expected == wire.Forever {
		return 10*time.Minute + rand.N(5*time.Minute)
	}
	const year = 365 * 24 * time.Hour
	return min(expected, year) + 5*time.Minute + rand.N(4*time.Minute)
}
