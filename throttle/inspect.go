package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// QueueStats counts the waiters in a scope and the scopes below it.
type QueueStats struct {
	// At is the Redis server's time.
	At time.Time
	// Waiting is the number of queued waiters. Queues is the number of their queues: one for each scope
	// with waiters.
	Waiting int64
	Queues  int
	// Dispatched is the number of waiters that were granted a start and have not asked yet.
	Dispatched int64
	// NextStart is the estimated time from At until the first waiter starts. It means nothing if there are
	// no waiters.
	NextStart Estimate
	// Binding is the rule that the first waiter waits for, or a pause by the policy. It is zero if there
	// are no waiters, or when Paused.
	Binding policy.MatchedRule
	// Paused says that the first waiter waits for the end of a pause by an API's answer; see
	// UpstreamState.
	Paused bool
}

// WaiterStatus is the state of one waiter.
type WaiterStatus struct {
	// At is the Redis server's time.
	At time.Time
	// Waits says that it is queued. Dispatched says that it was granted a start and has not asked yet.
	// Parked says that it keeps its place while its group is stalled, see DispatchRequest.StalledGroups,
	// or while it costs more than its limits can ever admit. At most one is true. None is true for a
	// waiter that was not denied, that has started, or that is unknown.
	Waits, Dispatched, Parked bool
	// Ahead is the number of waiters of its own scope that are before it.
	Ahead int64
	// Expected is the estimated time from At until its start. It means nothing unless it waits.
	Expected Estimate
	// Binding is the rule that it waits for: the one with the longest wait, given the waiters before it.
	// It is zero unless it waits, or when Paused.
	Binding policy.MatchedRule
	// Paused says that it waits for the end of a pause by an API's answer; see UpstreamState.
	Paused bool
}

// Inspect counts the waiters in a scope and below it, under the rules of the Limiter's policy. It
// changes nothing, but drops damaged data (docs/turns.md#what-is-damaged).
//
// The scope's own queue, and those below it if they are few, are read at one moment. Costs one round
// trip. If other waiters of the provider exist, it costs one more for each 64 queues below the scope
// and for each 1000 of the provider. Each costs one more if it finds tasks that wait for runs to end. The error is a *policy.ScopeError or *policy.UnmatchedError,
// wraps ErrUnavailable, or is ctx's.
func (l *Limiter) Inspect(ctx context.Context, scope string) (QueueStats, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return QueueStats{}, err
	}
	path := scopePath(scope) + "/"
	page, err := l.inspect(ctx, p, []string{scope}, []string{""}, path, "")
	if err != nil {
		return QueueStats{}, unavailable(ctx, "inspect", scope, err)
	}
	out := QueueStats{At: page.at, Dispatched: page.lines[0].released, NextStart: unknowable}
	out.add(page)
	seen := map[string]bool{scope: true}
	for {
		if err := l.inspectBelow(ctx, p, page.fresh(seen), &out); err != nil {
			return QueueStats{}, unavailable(ctx, "inspect", scope, err)
		}
		if page.after == "" {
			return out, nil
		}
		if page, err = l.inspect(ctx, p, nil, nil, path, page.after); err != nil {
			return QueueStats{}, unavailable(ctx, "inspect", scope, err)
		}
	}
}

// inspectBelow adds the lines of scopes.
func (l *Limiter) inspectBelow(ctx context.Context, p *compiledScope, scopes []string, out *QueueStats) error {
	for len(scopes) > 0 {
		some := scopes[:min(inspectedAtOnce, len(scopes))]
		scopes = scopes[len(some):]
		page, err := l.inspect(ctx, p, some, make([]string, len(some)), "", "")
		if err != nil {
			return err
		}
		out.add(page)
	}
	return nil
}

// add counts lines in: whose first is expected soonest comes next. Those of a later call are expected from its time on.
func (i *QueueStats) add(page inspection) {
	later := page.at.Sub(i.At)
	for _, line := range page.lines {
		if line.waiting == 0 {
			continue
		}
		if line.start.Known() {
			line.start = line.start.plus(later)
		}
		i.Waiting, i.Queues = i.Waiting+line.waiting, i.Queues+1
		if line.start.In < i.NextStart.In || !i.NextStart.Known() && i.Binding.Scope.Len() == 0 {
			i.NextStart, i.Binding, i.Paused = line.start, line.binding, line.paused
		}
	}
}

// InspectWaiter returns the state of a waiter, by its scope, id and cost. It changes nothing. Its
// errors are those of Inspect. Costs one round trip, one more if tasks of its scope wait for runs to
// end, and one more if it is not found.
func (w Waitlist) InspectWaiter(ctx context.Context, ask Waiter) (WaiterStatus, error) {
	p, err := w.l.scopes.of(ask.Scope)
	if err != nil {
		return WaiterStatus{}, err
	}
	if ask.ID == "" {
		return WaiterStatus{}, fmt.Errorf("throttle: InspectWaiter of %q needs a waiter id", ask.Scope)
	}
	ticket := ask.Ref().ticket()
	page, err := w.l.inspect(ctx, p, []string{ask.Scope}, []string{ticket}, "", "")
	if err != nil {
		return WaiterStatus{}, unavailable(ctx, "inspect a ticket of", ask.Scope, err)
	}
	line := page.lines[0]
	s := WaiterStatus{At: page.at, Waits: line.ahead >= 0, Dispatched: line.out}
	if s.Waits {
		s.Dispatched, s.Ahead, s.Expected, s.Binding, s.Paused = false, line.ahead, line.start, line.binding, line.paused
	} else if !s.Dispatched {
		s.Parked, err = w.l.parked(ctx, p.scope, ask.Ref())
	}
	return s, err
}

// parked tells whether one is parked.
func (l *Limiter) parked(ctx context.Context, scope policy.Scope, p WaiterRef) (bool, error) {
	read := func() error {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
		return l.rdb.ZScore(ctx, parkedKey(keyspace(l.cfg.Prefix).provider(scope.Provider())), parkedMember(p)).Err()
	}
	err := read()
	if err != nil && l.repaired(ctx, scope.Provider(), nil, err) {
		err = read()
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, unavailable(ctx, "look for a parked ticket of", p.Scope, err)
	}
	return err == nil, nil
}

// IsQueued reports whether a waiter is queued, is parked, or was granted a start and has not asked
// yet, whatever the present policy says of its scope. Costs one round trip. The error is a
// *policy.ScopeError, wraps ErrUnavailable, or is ctx's.
func (w Waitlist) IsQueued(ctx context.Context, ask Waiter) (bool, error) {
	waits, released, err := w.l.stands(ctx, ask.Ref())
	return waits || released, err
}

// Standing is IsQueued, and says which of the two: queued or parked, or granted a start.
func (w Waitlist) Standing(ctx context.Context, waiter WaiterRef) (queued, granted bool, err error) {
	return w.l.stands(ctx, waiter)
}

// stands tells whether one has a place in line, and whether it was released and has not come.
func (l *Limiter) stands(ctx context.Context, p WaiterRef) (waits, released bool, err error) {
	scope, err := policy.ParseScope(p.Scope)
	if err != nil {
		return false, false, err
	}
	keys := keyspace(l.cfg.Prefix)
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	var line *redis.FloatCmd
	var out *redis.BoolCmd
	var parked *redis.FloatCmd
	err = redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		line = pipe.ZScore(ctx, keys.queue(scope), p.ticket())
		out = pipe.HExists(ctx, flightKey(keys.provider(scope.Provider())), scopePath(p.Scope)+"\x00"+p.ticket())
		parked = pipe.ZScore(ctx, parkedKey(keys.provider(scope.Provider())), parkedMember(p))
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, false, unavailable(ctx, "look for a ticket of", p.Scope, err)
	}
	return line.Err() == nil || parked.Err() == nil, out.Val(), nil
}

// Restore puts a waiter that was granted a start back at the front of its queue, if it came to an
// application that may not spend from its scope. It changes nothing for a waiter that was not granted
// a start. Nothing is charged. Costs one round trip, and another for a waiter that was granted a
// start. The error is that of IsQueued or Decide.
func (w Waitlist) Restore(ctx context.Context, req Request) (restored bool, err error) {
	_, released, err := w.l.stands(ctx, req.place())
	if err != nil || !released {
		return false, err
	}
	d, err := w.l.Waitlist().RequeueFront(ctx, req)
	return d.Position.Waits, err
}

// inspection is a reply of lua/inspect.lua.
type inspection struct {
	at    time.Time
	lines []inspected
	below []string // scopes
	after string   // to go on after; empty at the end
}

type inspected struct {
	waiting, released, ahead int64
	out                      bool
	start                    Estimate
	places                   []placeQueue // under each of its concurrency rules; none if the start is unknown
	binding                  policy.MatchedRule
	paused                   bool
}

const (
	inspectLine = 6 // numbers of each line in a reply
	inspectPage = 1000
	// inspectedAtOnce is of how many queues one call tells.
	inspectedAtOnce = 64
)

// inspectOnce asks for lines and a ticket in each, "" for the first, and for the scopes
// under a path, if there is one, that have a queue, after a member of the heap.
func (l *Limiter) inspectOnce(ctx context.Context, p *compiledScope, scopes, tickets []string, under, after string) (inspection, error) {
	t := l.table(scopes)
	pauses := t.liftPauses()
	args := make([]any, 0, 5+len(t.rules)+3*len(scopes))
	args = append(args, l.clock(), len(t.rules), under, after, inspectPage)
	args = append(append(args, t.rules...), t.paths...)
	for _, ticket := range tickets {
		args = append(args, ticket)
	}
	args = append(args, pauses...)
	keys := slices.Concat(t.ruleKey, []any{p.queue[2], p.queue[3], p.queue[4], p.upstream}, t.queues)
	reply, err := l.lists(ctx, lua.Inspect.For(t.kinds()), keys, args)
	if err != nil && l.repaired(ctx, p.scope.Provider(), scopes, err) {
		reply, err = l.lists(ctx, lua.Inspect.For(t.kinds()), keys, args)
	}
	if err != nil {
		return inspection{}, err
	}
	out, err := t.readInspection(p.scope.Provider(), reply)
	if err != nil {
		return out, err
	}
	return out, l.addRunTimes(ctx, t, out.lines)
}

// inspect is inspectOnce, and once more where plans were stale.
func (l *Limiter) inspect(ctx context.Context, p *compiledScope, scopes, tickets []string, under, after string) (inspection, error) {
	asked := time.Now()
	out, err := l.inspectOnce(ctx, p, scopes, tickets, under, after)
	if err == nil && l.told(p.provider, asked, out.at, scopes) {
		return l.inspectOnce(ctx, p, scopes, tickets, under, after)
	}
	return out, err
}

func (t *table) readInspection(provider string, reply []any) (out inspection, err error) {
	if len(reply) != 4 {
		return out, errReply
	}
	numbers, ok := reply[0].([]any)
	names, named := reply[1].([]any)
	held, listed := reply[3].([]any)
	if !ok || !named || !listed || len(held) != len(t.plans) || len(numbers) != 1+inspectLine*len(t.plans) {
		return out, errReply
	}
	number := func(i int) int64 {
		n, _ := numbers[i].(int64)
		return n
	}
	out.at, out.after = time.UnixMicro(number(0)), text(reply[2])
	for i, p := range t.plans {
		at := 1 + inspectLine*i
		line := inspected{
			waiting: number(at), released: number(at + 1), ahead: number(at + 2), out: number(at+3) == 1,
			start: exactly(wait(number(at + 4))),
		}
		if p != nil {
			line.heed(p, int(number(at+5)), out.at)
		}
		if p != nil {
			line.places = p.readPlaces(held[i])
		}
		out.lines = append(out.lines, line)
	}
	for _, path := range names {
		out.below = append(out.below, scopeOf(provider, path))
	}
	return out, nil
}

// readPlaces reads what a task waits for under each concurrency rule.
func (p *compiledScope) readPlaces(reply any) (list []placeQueue) {
	all, _ := reply.([]any)
	if len(all) != 2*len(p.leases) {
		return nil
	}
	for two := range slices.Chunk(all, 2) {
		tasks, _ := two[0].(int64)
		held, _ := two[1].(int64)
		list = append(list, placeQueue{tasks, held})
	}
	return list
}

// heed takes over which rule of the plan binds, by its number in the path without pauses. While the limits pause the scope, the pause
// that lasts longest is what its tasks wait for, and the rules then say how long after its end.
func (i *inspected) heed(p *compiledScope, number int, at time.Time) {
	rules := p.unpaused()
	i.paused = number > len(rules)
	if number > 0 && !i.paused && p.bounds[rules[number-1]].Rule != openRule {
		i.binding = p.bounds[rules[number-1]]
		i.start = exactly(p.realStart(rules[number-1], at, i.start.In))
	}
	if len(p.pauses) == 0 || i.ahead < 0 {
		return
	}
	of := i.binding.Rule
	pause, left := p.paused(at)
	i.binding, i.paused = pause, false
	switch {
	case left == Never:
		i.start = unknowable
	case !i.start.Known() && of.Algorithm == policy.Concurrency && of.Limit > 0: // runs end meanwhile
		i.start = exactly(left)
	}
}

// fresh are the scopes of a page that have not been seen: a node may have moved
// from one page to the next.
func (i inspection) fresh(seen map[string]bool) (scopes []string) {
	for _, scope := range i.below {
		if !seen[scope] {
			seen[scope] = true
			scopes = append(scopes, scope)
		}
	}
	return scopes
}
