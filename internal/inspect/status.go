package inspect

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// WaiterStatus is the state of one task.
type WaiterStatus struct {
	At         time.Time // the Redis server's time
	Waits      bool      // it has a place
	Dispatched bool      // it was granted a start and has not come yet
	Ahead      int64     // how many tasks of its scope and queue are before it
	Expected   Estimate  // of the time from At until its start; it means nothing unless it waits
	// Binding is the rule that it waits for, or a pause by the policy: of all that it meets, the one that is expected to admit it
	// last. It is zero unless it waits, or when Paused. Its name is policy.MembersRule, at the pool's level, if that are the members of a
	// pool.
	Binding policy.MatchedRule
	Paused  bool // it waits for the end of a pause by an API's answer
}

// QueueStats counts the waiting tasks in a scope and the scopes below it.
type QueueStats struct {
	At         time.Time // the Redis server's time
	Waiting    int64     // how many tasks wait
	Scopes     int       // in how many scopes
	Dispatched int64     // how many were granted a start and have not come yet
	NextStart  Estimate  // of the time from At until the first of them starts; it means nothing if none waits
	// Binding and Paused are those of the WaiterStatus of the first.
	Binding policy.MatchedRule
	Paused  bool
}

const (
	// scopesAtOnce is of how many lines one call inspects the first or the last task, and tasksAtOnce how many tasks of one line:
	// each of those costs a fifth of a millisecond.
	scopesAtOnce = 64
	tasksAtOnce  = 10
	// inspectedScopes is how many scopes below a scope Scope looks at, those with most tasks, to find the next start.
	inspectedScopes = 1000
)

// Scope counts the waiting tasks in a scope and below it. If more than 1000 scopes below it have waiting tasks, the next start is
// that of those with the most. It costs what Count and InspectFirst do, and a round trip more. The error may also be a
// *policy.ScopeError or *policy.UnmatchedError.
func (r Reader) Scope(ctx context.Context, scope string) (QueueStats, error) {
	s, err := r.list.Scopes().Of(scope)
	if err != nil {
		return QueueStats{}, err
	}
	provider := s.Scope.Provider()
	own, err := r.inspect(ctx, provider, 1, []ask{{scope: s, queue: "*"}})
	if err != nil {
		return QueueStats{}, err
	}
	list, _, err := r.Count(ctx, provider, func(name string) bool { return name == scope || strings.HasPrefix(name, scope+"/") })
	if err != nil {
		return QueueStats{}, err
	}
	looked := list[:min(inspectedScopes, len(list))]
	if err := r.InspectFirst(ctx, provider, looked); err != nil {
		return QueueStats{}, err
	}
	out := QueueStats{At: own[0].At, NextStart: Unknown, Dispatched: own[0].flying, Scopes: len(list)}
	for i, q := range list {
		out.Waiting += q.Own
		if i < len(looked) {
			out.addFirst(q.FirstStatus, i == 0)
		}
	}
	return out, nil
}

// addFirst takes the first task of a scope into account: the soonest of all comes next.
func (s *QueueStats) addFirst(first WaiterStatus, only bool) {
	if first.Expected.Known() {
		first.Expected = first.Expected.Plus(first.At.Sub(s.At))
	}
	if only || first.Expected.In < s.NextStart.In {
		s.NextStart, s.Binding, s.Paused = first.Expected, first.Binding, first.Paused
	}
}

// Task returns the state of a task. It costs one round trip, and one more if tasks of its scope wait for runs to end. The error
// may also be a *policy.ScopeError or *policy.UnmatchedError.
func (r Reader) Task(ctx context.Context, task waitlist.Ref) (WaiterStatus, error) {
	s, err := r.list.Scopes().Of(task.Scope)
	if err != nil {
		return WaiterStatus{}, err
	}
	answers, err := r.inspect(ctx, task.Provider(), 1, []ask{{scope: s, queue: task.Queue, id: task.ID}})
	if err != nil {
		return WaiterStatus{}, err
	}
	return answers[0].WaiterStatus, nil
}

// QueuedWaiter is a task in the line of a scope.
type QueuedWaiter struct {
	waitlist.Ref
	WaiterStatus
}

// Queued returns a page of the tasks in a scope's own lines, at most 64 from a place on, 0 for the first: the lines of its asynq
// queues follow each other by name, each in the order of its turns. all is how many tasks the lines have. It costs three round
// trips, one more for each ten tasks, and one more if they wait for runs to end. The error is that of Scope.
func (r Reader) Queued(ctx context.Context, scope string, from, most int) (list []QueuedWaiter, all int64, err error) {
	s, err := r.list.Scopes().Of(scope)
	if err != nil {
		return nil, 0, err
	}
	provider := s.Scope.Provider()
	queues, lengths, err := r.lineLengths(ctx, provider, s.Path)
	if err != nil {
		return nil, 0, err
	}
	parts := make([]*redis.StringSliceCmd, len(queues))
	err = r.list.Read(ctx, provider, func(pipe redis.Pipeliner) {
		all = 0
		for i, queue := range queues { // this line begins at `all` among the places of all lines
			first, last := max(0, int64(from)-all), int64(from+min(most, scopesAtOnce))-all
			parts[i] = redis.NewStringSliceCmd(ctx)
			if all += lengths[0][i]; last > 0 {
				parts[i] = pipe.ZRange(ctx, wire.LineKey(s.Prefix, queue, s.Path), first, last-1)
			}
		}
	})
	if err != nil {
		return nil, 0, err
	}
	var asks []ask
	for i, part := range parts {
		for _, id := range part.Val() {
			asks = append(asks, ask{scope: s, queue: queues[i], id: id})
		}
	}
	answers, err := r.inspect(ctx, provider, tasksAtOnce, asks)
	for i, a := range answers {
		if a.Waits { // else it has started meanwhile
			list = append(list, QueuedWaiter{waitlist.Ref{Scope: scope, Queue: asks[i].queue, ID: asks[i].id}, a.WaiterStatus})
		}
	}
	return list, all, err
}

// LastQueued returns, for each of some scopes of one provider, the task in its own lines that is expected to start last: about
// when all that wait there now will have started. It does not wait in an empty line or for a scope that no rule matches. It costs
// one round trip, one more for each 64 lines, and one more if tasks wait for runs to end.
func (r Reader) LastQueued(ctx context.Context, provider string, scopes ...string) ([]WaiterStatus, error) {
	queues, err := r.queues(ctx, provider)
	if err != nil {
		return nil, err
	}
	var asks []ask
	for i, scope := range scopes {
		s, err := r.list.Scopes().Of(scope)
		for _, queue := range queues {
			if err == nil {
				asks = append(asks, ask{scope: s, queue: queue, id: "-", of: i})
			}
		}
	}
	answers, err := r.inspect(ctx, provider, scopesAtOnce, asks)
	list := make([]WaiterStatus, len(scopes))
	for k, a := range answers {
		if last := &list[asks[k].of]; a.Waits && (!last.Waits || a.Expected.In > last.Expected.In) {
			*last = a.WaiterStatus
		}
	}
	return list, err
}

// ask asks for a task of a scope: "*" is the asynq queue of any, "" the first and "-" the last of a line.
type ask struct {
	scope     *wire.Scope
	queue, id string
	of        int // an index of the caller's
}

// answer is what the script says of an ask.
type answer struct {
	WaiterStatus
	flying int64
	leases []lease
}

// lease is a concurrency rule of a task, and what the task waits for under it.
type lease struct {
	rule policy.MatchedRule
	PlaceQueue
}

// inspect asks for tasks of one provider, so many in one call, and returns an answer for each. If rules begin or end to apply
// just now, the answer is that of the rules before.
func (r Reader) inspect(ctx context.Context, provider string, atOnce int, asks []ask) (answers []answer, err error) {
	for some := range slices.Chunk(asks, atOnce) {
		part, err := r.inspectSome(ctx, provider, some)
		if err != nil {
			return nil, err
		}
		answers = append(answers, part...)
	}
	if err := r.addRunTimes(ctx, provider, answers); err != nil {
		return nil, err
	}
	return answers, nil
}

func (r Reader) inspectSome(ctx context.Context, provider string, asks []ask) (answers []answer, err error) {
	var args []any
	met := make([]*wire.Scope, len(asks))
	for i, a := range asks {
		s, queue := a.scope, a.queue
		pause, ends := s.Pause()
		if pause != nil { // the script is given the end of the pause, and otherwise the rules alone count
			s = r.list.Scopes().Unpaused(s)
		}
		if queue != "*" {
			queue = wire.Escape(queue)
		}
		met[i] = s
		args = append(args, s.Path, s.Text, queue, a.id, ends)
	}
	_, err = r.list.Run(ctx, provider, lua.Inspect, args, func(reply any) (now int64, err error) {
		list, _ := reply.([]any)
		if len(list) != 1+len(asks) {
			return 0, wire.ErrReply
		}
		now, _ = list[0].(int64)
		answers = nil
		for i, a := range asks {
			got, ok := readAnswer(list[i+1], met[i])
			if !ok {
				return 0, wire.ErrReply
			}
			got.At = time.UnixMicro(now)
			got.pause(a.scope)
			answers = append(answers, got)
		}
		return now, nil
	})
	return answers, err
}

// answerNumbers is how many numbers the reply has for each ask, before those of its concurrency rules.
const answerNumbers = 6

func readAnswer(reply any, s *wire.Scope) (a answer, ok bool) {
	list, _ := reply.([]any)
	rules := s.Rules
	n := make([]int64, len(list))
	for k, v := range list {
		n[k], _ = v.(int64)
	}
	if len(n) < answerNumbers || n[5] < 0 || n[5] > int64(len(rules))+2 || n[5] == int64(len(rules))+2 && s.Pool == nil {
		return a, false
	}
	a.flying, a.Ahead = n[1], max(0, n[2])
	a.Waits, a.Dispatched, a.Expected = n[2] >= 0, n[2] < 0 && n[3] == 1, Exactly(wire.Wait(n[4]))
	switch by := int(n[5]); {
	case by == len(rules)+2:
		a.Binding = policy.MatchedRule{Rule: policy.Rule{Name: policy.MembersRule}, Scope: s.Pool.Level}
	case by > len(rules):
		a.Paused = true
	case by > 0:
		a.Binding = rules[by-1]
	}
	for _, b := range rules {
		if at := answerNumbers + 2*len(a.leases); b.Rule.Algorithm == policy.Concurrency && at+1 < len(n) {
			a.leases = append(a.leases, lease{b, PlaceQueue{n[at], n[at+1]}})
		}
	}
	return a, true
}

// pause has the task wait for a pause by the policy. Its rules have said how long after the end of the pause it starts.
func (a *answer) pause(s *wire.Scope) {
	pause, ends := s.Pause()
	if pause == nil || !a.Waits {
		return
	}
	a.Binding, a.Paused = *pause, false
	if ends == wire.Never {
		a.Expected = Unknown
	}
}

// addRunTimes adds what tasks wait for that wait for runs to end. It costs a round trip if there are any.
func (r Reader) addRunTimes(ctx context.Context, provider string, answers []answer) error {
	prefix, times := r.list.Prefix(provider), map[string]RunTimes{}
	for _, a := range answers {
		for _, l := range a.leases {
			if l.Full(l.rule.Rule.Limit) {
				times[RunTimesKey(prefix, l.rule)] = RunTimes{}
			}
		}
	}
	if len(times) == 0 {
		return nil
	}
	keys := slices.Collect(maps.Keys(times))
	var values *redis.SliceCmd
	if err := r.list.Read(ctx, provider, func(pipe redis.Pipeliner) { values = pipe.MGet(ctx, keys...) }); err != nil {
		return err
	}
	for i, v := range values.Val() {
		times[keys[i]] = ReadRunTimes(v)
	}
	for i := range answers {
		answers[i].waitForRuns(func(b policy.MatchedRule) RunTimes { return times[RunTimesKey(prefix, b)] })
	}
	return nil
}

// waitForRuns adds what the task waits for under its concurrency rules.
func (a *answer) waitForRuns(times func(policy.MatchedRule) RunTimes) {
	if a.Paused || a.Binding.Paused() || !a.Waits || !a.Expected.Known() {
		return
	}
	for _, l := range a.leases {
		if !l.Full(l.rule.Rule.Limit) {
			continue
		}
		wait := times(l.rule).Wait(l.PlaceQueue, l.rule.Rule.Limit)
		if wait.In > a.Expected.In {
			a.Binding = l.rule
		}
		a.Expected = a.Expected.And(wait)
	}
}
