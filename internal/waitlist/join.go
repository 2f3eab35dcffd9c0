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
	// Expected is the estimated time until its start; Never if no clock can tell.
	Expected time.Duration
	// MaxWait is the shortest max_wait of the rules that apply, 0 for none.
	MaxWait time.Duration
	// Binding is the rule that it waits for, or a pause by the policy, as in a WaiterStatus. It is zero if it waits for neither.
	Binding policy.MatchedRule
	// Err says why it can never start, and has no place: a *policy.ScopeError, *policy.UnmatchedError or *policy.CostError, an
	// error of policy.Costs.Check, or a priority out of bounds.
	Err error
}

// joinBatch is how many tasks one call of join places: few enough for a millisecond or two of the server, where each has a tenant of
// its own. joinCalls is how many calls go in one round trip.
const (
	joinBatch = 64
	joinCalls = 8
)

// frontRank is the priority of tasks that go to the front.
const frontRank = policy.MaxPriority + 1

// task is a task that joins, with the index of its result.
type task struct {
	Waiter
	at    int
	scope *wire.Scope
	rank  int64
	place int64
}

// Join gives tasks places at the end of their lines: those of a scope and queue in their order. A task that has a place keeps it.
// Nothing is charged. It wakes the processes that dispatch if a line had no task before. The result has one Joined for each waiter.
//
// It costs one round trip for each 512 tasks of a provider, one more if a line was empty, and one more if rules began or ended to
// apply. After an error some tasks may have places nevertheless.
func (l *List) Join(ctx context.Context, waiters []Waiter) ([]Joined, error) {
	tasks := make([]task, len(waiters))
	for i, w := range waiters {
		tasks[i] = task{Waiter: w, at: i, rank: int64(w.Priority)}
	}
	return l.join(ctx, tasks)
}

// Back is a task that goes back to its line.
type Back struct {
	Waiter
	// Score is the place that it had, as a grant has it. 0 puts it to the front of its line, behind those that were put there
	// before. Its priority then counts for nothing.
	Score int64
}

// Rejoin gives tasks back the places that they had, or puts them to the front. It is like Join otherwise.
func (l *List) Rejoin(ctx context.Context, list []Back) ([]Joined, error) {
	tasks := make([]task, len(list))
	for i, b := range list {
		tasks[i] = task{Waiter: b.Waiter, at: i, rank: frontRank, place: b.Score}
	}
	return l.join(ctx, tasks)
}

func (l *List) join(ctx context.Context, tasks []task) ([]Joined, error) {
	out := make([]Joined, len(tasks))
	byProvider := map[string][]task{}
	for _, t := range tasks {
		one := &out[t.at]
		if t.scope, one.Err = l.check(t.Waiter); one.Err != nil {
			continue
		}
		if one.Free = len(t.scope.Rules) == 0; one.Free {
			continue
		}
		one.MaxWait = maxWait(t.scope)
		byProvider[t.scope.Scope.Provider()] = append(byProvider[t.scope.Scope.Provider()], t)
	}
	for provider, its := range byProvider {
		slices.SortStableFunc(its, func(a, b task) int {
			return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Queue, b.Queue))
		})
		for some := range slices.Chunk(its, joinBatch*joinCalls) {
			if err := l.joinSome(ctx, provider, some, out); err != nil {
				return out, wire.Unavailable(ctx, "give places to tasks of", provider, err)
			}
		}
	}
	return out, nil
}

// check returns what applies to a waiter, and the error of one that can never start.
func (l *List) check(w Waiter) (*wire.Scope, error) {
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
		return s, policy.CheckMatched(s.Scope, s.All, w.Costs.Under)
	case w.Cost < 0:
		return nil, &policy.CostError{Scope: s.Scope, Cost: w.Cost}
	}
	return s, policy.CheckMatched(s.Scope, s.All, func(policy.Rule) int64 { return max(w.Cost, 1) })
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
			t.scope = s
			stale = append(stale, t)
		}
	}
	if len(stale) > 0 {
		if _, err := l.sendJoin(ctx, provider, stale, out); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(tasks, func(t task) bool { return out[t.at].Ahead == 0 }) {
		l.tell(provider)
		return l.send(ctx, provider, true)
	}
	return nil
}

func (l *List) sendJoin(ctx context.Context, provider string, tasks []task, out []Joined) (now time.Time, err error) {
	var calls [][]any
	for some := range slices.Chunk(tasks, joinBatch) {
		list := make([]wire.Task, len(some))
		for i, t := range some {
			list[i] = wire.Task{
				Scope: t.scope.Path, Text: t.scope.Text, Queue: t.Queue, ID: t.ID, Priority: t.rank, Place: t.place, Cost: t.cost(),
			}
		}
		calls = append(calls, wire.JoinArgs(l.cfg.Clock(), list))
	}
	asked := time.Now()
	err = l.run(ctx, provider, lua.Join, calls, func(i int, reply any) error {
		at, places, err := wire.ReadJoin(reply)
		some := tasks[i*joinBatch : min((i+1)*joinBatch, len(tasks))]
		if err != nil || len(places) != len(some) {
			return cmp.Or(err, wire.ErrReply)
		}
		now = l.observe(provider, asked, at)
		for k, t := range some {
			out[t.at].read(t.scope, places[k], now)
		}
		return nil
	})
	return now, err
}

// read takes over a task's place. While the limits pause its scope, it waits for the pause that ends last.
func (j *Joined) read(s *wire.Scope, p wire.Place, now time.Time) {
	j.Ahead, j.Expected, j.Binding = p.Before, us(p.Expected), policy.MatchedRule{}
	if pause, until := pauseOf(s); pause != nil {
		j.Binding, j.Expected = *pause, leftOf(until, now)
	} else if by := p.Binding; by > 0 && by <= int64(len(s.Rules)) {
		j.Binding = s.Rules[by-1]
	}
}

// pauseOf returns the pause of the limits that ends last, nil for none, and when it ends, in µs by the server's clock.
func pauseOf(s *wire.Scope) (pause *policy.MatchedRule, until int64) {
	for _, i := range s.Paused {
		ends := int64(wire.Never)
		if b := s.Rules[i]; !b.Until.IsZero() {
			ends = b.Until.UnixMicro()
		}
		if pause == nil || ends > until {
			pause, until = &s.Rules[i], ends
		}
	}
	return pause, until
}

// leftOf returns the time until a moment of the server's clock.
func leftOf(until int64, now time.Time) time.Duration {
	if until == wire.Never {
		return Never
	}
	return us(max(0, until-now.UnixMicro()))
}

// SafetyNet returns after how long asynq brings a task back by itself that is expected to start after so long, if it is not granted
// its start before: 5 to 9 minutes after that, and 10 to 15 if no clock can tell.
func SafetyNet(expected time.Duration) time.Duration {
	if expected == Never {
		return 10*time.Minute + rand.N(5*time.Minute)
	}
	const year = 365 * 24 * time.Hour
	return min(expected, year) + 5*time.Minute + rand.N(4*time.Minute)
}
