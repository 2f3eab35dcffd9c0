package waitlist

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// WaiterStatus is the state of one task.
type WaiterStatus struct {
	// At is the Redis server's time.
	At time.Time
	// Waits says that it has a place. Dispatched says that it was granted a start and has not come yet.
	Waits, Dispatched bool
	// Ahead is how many tasks of its scope and queue are before it.
	Ahead int64
	// Expected is the estimated time from At until its start. It means nothing unless it waits.
	Expected Estimate
	// Binding is the rule that it waits for, or a pause by the policy: of all that it meets, the one that is expected to admit it
	// last. It is zero unless it waits, or when Paused.
	Binding policy.MatchedRule
	// Paused says that it waits for the end of a pause by an API's answer.
	Paused bool
}

// QueueStats counts the waiting tasks in a scope and the scopes below it.
type QueueStats struct {
	// At is the Redis server's time.
	At time.Time
	// Waiting is the number of waiting tasks. Scopes is in how many scopes they wait.
	Waiting int64
	Scopes  int
	// Dispatched is the number of tasks that were granted a start and have not come yet.
	Dispatched int64
	// NextStart is the estimated time from At until the first of them starts. It means nothing if none waits.
	NextStart Estimate
	// Binding and Paused are those of that task's WaiterStatus.
	Binding policy.MatchedRule
	Paused  bool
}

// add counts a scope's own tasks in, by the status of its first. The soonest comes next.
func (s *QueueStats) add(own int64, first WaiterStatus) {
	s.Waiting, s.Scopes = s.Waiting+own, s.Scopes+1
	if first.Expected.Known() {
		first.Expected = first.Expected.Plus(first.At.Sub(s.At))
	}
	if s.Scopes == 1 || first.Expected.In < s.NextStart.In {
		s.NextStart, s.Binding, s.Paused = first.Expected, first.Binding, first.Paused
	}
}

const (
	// inspectBatch is how many scopes one call inspects, and waiterBatch how many tasks of one line: each of those costs a fifth of
	// a millisecond.
	inspectBatch = 64
	waiterBatch  = 10
	// inspectedScopes is how many scopes below a scope Inspect looks at, those with most tasks, to find the next start.
	inspectedScopes = 1000
)

// Inspect counts the waiting tasks in a scope and below it. It changes nothing. If more than 1000 scopes below it have waiting tasks,
// the next start is that of those with the most. It costs what Count does, and a round trip for each 64 scopes. The error may also be
// a *policy.ScopeError or *policy.UnmatchedError.
func (l *List) Inspect(ctx context.Context, scope string) (QueueStats, error) {
	s, err := l.cfg.Scopes.Of(scope)
	if err != nil {
		return QueueStats{}, err
	}
	provider := s.Scope.Provider()
	at, own, err := l.inspect(ctx, provider, []ask{{scope: s, queue: "*"}})
	if err != nil {
		return QueueStats{}, wire.Unavailable(ctx, "inspect", scope, err)
	}
	out := QueueStats{At: at, NextStart: Unknown, Dispatched: own[0].flying}
	list, _, err := l.Count(ctx, provider, func(name string) bool { return name == scope || strings.HasPrefix(name, scope+"/") })
	if err != nil {
		return QueueStats{}, err
	}
	for some := range slices.Chunk(list[:min(inspectedScopes, len(list))], inspectBatch) {
		if err := l.inspectFirst(ctx, provider, some); err != nil {
			return QueueStats{}, err
		}
		for _, q := range some {
			out.add(q.Own, q.FirstStatus)
		}
	}
	for _, q := range list[min(inspectedScopes, len(list)):] {
		out.Waiting, out.Scopes = out.Waiting+q.Own, out.Scopes+1
	}
	return out, nil
}

// InspectWaiter returns the state of a task. It changes nothing. It costs one round trip, and one more if tasks of its scope wait for
// runs to end. The error may also be a *policy.ScopeError or *policy.UnmatchedError.
func (l *List) InspectWaiter(ctx context.Context, task Ref) (WaiterStatus, error) {
	s, err := l.cfg.Scopes.Of(task.Scope)
	if err != nil {
		return WaiterStatus{}, err
	}
	_, list, err := l.inspect(ctx, task.Provider(), []ask{{scope: s, queue: task.Queue, id: task.ID}})
	if err != nil {
		return WaiterStatus{}, wire.Unavailable(ctx, "inspect a task of", task.Scope, err)
	}
	return list[0].WaiterStatus, nil
}

// QueuedWaiter is a task in the line of a scope.
type QueuedWaiter struct {
	Ref
	WaiterStatus
}

// Queued returns a page of the tasks in a scope's own lines, at most 64 from a place on, 0 for the first: the lines of its asynq
// queues follow each other by name, each in the order of its turns. all is how many tasks the lines have. It costs three round trips,
// and one more for each ten tasks. The error is that of Inspect.
func (l *List) Queued(ctx context.Context, scope string, from, most int) (list []QueuedWaiter, all int64, err error) {
	s, err := l.cfg.Scopes.Of(scope)
	if err != nil {
		return nil, 0, err
	}
	queues, counts, err := l.counts(ctx, s.Scope.Provider(), s.Path)
	if err != nil {
		return nil, 0, err
	}
	parts := make([]*redis.StringSliceCmd, len(queues))
	err = l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		all = 0
		for i, queue := range queues { // this line begins at `all` among the places of all lines
			first, last := max(0, int64(from)-all), int64(from+min(most, inspectBatch))-all
			parts[i] = redis.NewStringSliceCmd(ctx)
			if all += counts[0].byLine[i]; last > 0 {
				parts[i] = pipe.ZRange(ctx, leafKey(s.Prefix, queue, s.Path), first, last-1)
			}
		}
	})
	var asks []ask
	for i, part := range parts {
		for _, id := range part.Val() {
			asks = append(asks, ask{scope: s, queue: queues[i], id: id})
		}
	}
	for some := range slices.Chunk(asks, waiterBatch) {
		var statuses []inspected
		if err == nil {
			_, statuses, err = l.inspect(ctx, s.Scope.Provider(), some)
		}
		for i, one := range statuses {
			if one.Waits { // else it has started meanwhile
				list = append(list, QueuedWaiter{Ref{scope, some[i].queue, some[i].id}, one.WaiterStatus})
			}
		}
	}
	if err != nil {
		return nil, 0, wire.Unavailable(ctx, "look at the lines of", scope, err)
	}
	return list, all, nil
}

// LastQueued returns, for each of some scopes of one provider, 64 at most, the task in its own lines that is expected to start last:
// about when all that wait there now will have started. It does not wait in an empty line or for a scope that no rule matches. It
// costs one round trip, one more for each 64 lines, and as many for those that wait for runs to end.
func (l *List) LastQueued(ctx context.Context, provider string, scopes ...string) ([]WaiterStatus, error) {
	list := make([]WaiterStatus, len(scopes))
	queues, err := l.queues(ctx, provider)
	if err != nil {
		return nil, err
	}
	var asks []ask
	var of []int
	for i, scope := range scopes {
		s, err := l.cfg.Scopes.Of(scope)
		for _, queue := range queues {
			if err == nil {
				asks, of = append(asks, ask{scope: s, queue: queue, id: "-"}), append(of, i)
			}
		}
	}
	for at := 0; at < len(asks); at += inspectBatch {
		_, some, err := l.inspect(ctx, provider, asks[at:min(at+inspectBatch, len(asks))])
		if err != nil {
			return nil, wire.Unavailable(ctx, "look at the lines of", provider, err)
		}
		for k, one := range some {
			if last := &list[of[at+k]]; one.Waits && (!last.Waits || one.Expected.In > last.Expected.In) {
				*last = one.WaiterStatus
			}
		}
	}
	return list, nil
}

// ask asks for a task of a scope: "*" is the asynq queue of any, "" the first and "-" the last of a line.
type ask struct {
	scope     *wire.Scope
	queue, id string
}

// inspected is the answer to an ask.
type inspected struct {
	WaiterStatus
	flying int64
	leases []policy.MatchedRule // its concurrency rules
	places []PlaceQueue         // under each of them
}

// inspect asks for tasks of one provider. If rules begin or end to apply just now, the answer is that of the rules before.
func (l *List) inspect(ctx context.Context, provider string, asks []ask) (at time.Time, out []inspected, err error) {
	args := []any{l.cfg.Clock()}
	rules := make([][]policy.MatchedRule, len(asks))
	for i, a := range asks {
		s, queue := a.scope, a.queue
		pause, until := pauseOf(s)
		if pause != nil { // the script is told how long the pause lasts, and else the rules alone count
			s = l.cfg.Scopes.Unpaused(s)
		}
		if queue != "*" {
			queue = wire.Escape(queue)
		}
		rules[i] = s.Rules
		args = append(args, s.Path, s.Text, queue, a.id, until)
	}
	asked := time.Now()
	err = l.run(ctx, provider, lua.Inspect, [][]any{args}, func(_ int, reply any) error {
		list, _ := reply.([]any)
		if len(list) != 1+len(asks) {
			return wire.ErrReply
		}
		now, _ := list[0].(int64)
		at, out = l.observe(provider, asked, now), nil
		for i, a := range asks {
			one, ok := readInspected(list[i+1], rules[i])
			if !ok {
				return wire.ErrReply
			}
			one.At = at
			one.pause(a.scope)
			out = append(out, one)
		}
		return nil
	})
	if err == nil {
		err = l.addRunTimes(ctx, provider, out)
	}
	return at, out, err
}

// inspectNumbers is how many numbers the reply has for each ask, before those of its concurrency rules.
const inspectNumbers = 6

func readInspected(reply any, rules []policy.MatchedRule) (i inspected, ok bool) {
	list, _ := reply.([]any)
	n := make([]int64, len(list))
	for k, one := range list {
		n[k], _ = one.(int64)
	}
	if len(n) < inspectNumbers || n[5] < 0 || n[5] > int64(len(rules))+1 {
		return i, false
	}
	i.flying, i.Ahead = n[1], max(0, n[2])
	i.Waits, i.Dispatched, i.Expected = n[2] >= 0, n[2] < 0 && n[3] == 1, Exactly(us(n[4]))
	if by := int(n[5]); by > len(rules) {
		i.Paused = true
	} else if by > 0 {
		i.Binding = rules[by-1]
	}
	for _, b := range rules {
		if at := inspectNumbers + 2*len(i.places); b.Rule.Algorithm == policy.Concurrency && at+1 < len(n) {
			i.leases, i.places = append(i.leases, b), append(i.places, PlaceQueue{n[at], n[at+1]})
		}
	}
	return i, true
}

// pause takes a pause of the limits over: the task waits for it, and its rules say how long after its end.
func (i *inspected) pause(s *wire.Scope) {
	pause, until := pauseOf(s)
	if pause == nil || !i.Waits {
		return
	}
	rule := i.Binding.Rule
	i.Binding, i.Paused = *pause, false
	switch {
	case until == wire.Never:
		i.Expected = Unknown
	case !i.Expected.Known() && rule.Algorithm == policy.Concurrency && rule.Limit > 0: // runs end meanwhile
		i.Expected = Exactly(leftOf(until, i.At))
	}
}

// addRunTimes adds when those start that wait for runs to end. It costs a round trip if there are any.
func (l *List) addRunTimes(ctx context.Context, provider string, list []inspected) error {
	prefix, index := l.prefix(provider), map[string]int{}
	var keys []string
	for _, one := range list {
		for k, b := range one.leases {
			if key := RunTimesKey(prefix, b); index[key] == 0 && one.places[k].Full(b.Rule.Limit) {
				keys = append(keys, key)
				index[key] = len(keys)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	var values *redis.SliceCmd
	if err := l.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { values = pipe.MGet(ctx, keys...) }); err != nil {
		return err
	}
	for i := range list {
		list[i].waitForRuns(func(b policy.MatchedRule) RunTimes {
			return ReadRunTimes(values.Val()[index[RunTimesKey(prefix, b)]-1])
		})
	}
	return nil
}

// waitForRuns adds what the task waits for under its concurrency rules.
func (i *inspected) waitForRuns(times func(policy.MatchedRule) RunTimes) {
	start, binding := i.Expected, i.Binding
	switch rule := binding.Rule; {
	case i.Paused || binding.Paused() || !i.Waits:
		return
	case start.Known():
	case rule.Algorithm != policy.Concurrency || rule.Limit == 0:
		return // no end of a run changes that
	default:
		start = Estimate{}
	}
	for k, b := range i.leases {
		if !i.places[k].Full(b.Rule.Limit) {
			continue
		}
		wait := times(b).Wait(i.places[k], b.Rule.Limit)
		if !wait.Known() {
			return
		}
		if wait.In > start.In {
			binding = b
		}
		start = start.And(wait)
	}
	i.Expected, i.Binding = start, binding
}
