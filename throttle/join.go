package throttle

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Waiter is a task that joins the queue of a scope.
type Waiter struct {
	Scope    string
	ID       string
	Cost     int64        // 0 for 1
	Costs    policy.Costs // by unit, instead of Cost
	Priority int          // as Turn.Priority
	Lane     string       // as Turn.Lane
	Stride   int          // as Turn.Stride
}

// Check returns the error of Policy.Check, or of CheckCosts if Costs are set, for the waiter; or a
// *ScopeError. It does no I/O.
func (a Waiter) Check(p *policy.Policy) error {
	scope, err := policy.ParseScope(a.Scope)
	if err != nil {
		return err
	}
	if len(a.Costs) > 0 {
		return p.CheckCosts(scope, a.Costs)
	}
	return p.Check(scope, max(a.Cost, defaultCost))
}

// Joined is the result of Join for one Waiter.
type Joined struct {
	// Waits says that it is queued. If it is not, run it at once: its start is near, and no other waiter
	// is before it.
	Waits bool
	// Again says that it was queued before this call.
	Again bool
	// Expected is the estimated time until its start; Never if no clock can tell.
	Expected time.Duration
	// Ahead is the number of waiters of its own scope that are before it; -1 if it is not in its queue.
	Ahead int64
	// Binding is the rule or the pause that it waits for: of all that it meets, the one that is expected to
	// admit it last, as in an Inspection. Decisions of its scope share it; do not change it. Nil if it waits
	// for none, for a pause that an API has asked for, or if that is not known.
	Binding *RuleInfo
	// MaxWait is the shortest max_wait of the rules on its path, 0 for none.
	MaxWait time.Duration
	// Err is set if it can never be granted: a *policy.ScopeError, *policy.UnmatchedError or
	// *policy.CostError, a priority out of bounds or a lane that is too long. It is then not queued.
	Err error
}

// QueueAll is the near argument with which Join queues all waiters, even those that could start now.
const QueueAll time.Duration = -1

// Join puts waiters that are about to be enqueued in their queues, in order. A waiter that its rules
// admit now, and that no other waiter precedes, is charged and may run at once. Any other is queued,
// as if it had asked and been denied. Of each 512 waiters of a provider, at most 16 run at once, and
// further ones start no sooner than near from now: more would not be picked up before their starts
// have passed. The result has one Joined for each waiter.
//
// With QueueAll for near none runs at once. Use it for tasks that are enqueued already: those that
// could start are the first to be dispatched.
//
// A waiter that may run at once is in flight until it asks. lead is the DispatchRequest.Lead of the
// program's calls. Costs one round trip for each 512 waiters of a provider. The error wraps
// ErrUnavailable, or is ctx's; some waiters may be queued nevertheless.
func (w Waitlist) Join(ctx context.Context, asks []Waiter, lead, near time.Duration) ([]Joined, error) {
	out := make([]Joined, len(asks))
	groups := map[string][]int{}
	var order []string
	for i, a := range asks {
		p, err := w.l.scopes.of(a.Scope)
		if err == nil {
			err = a.checkRank()
		}
		if err == nil {
			p, err = w.l.withCost(p, &Request{Cost: max(a.Cost, 0), Costs: a.Costs})
		}
		if err != nil || len(p.bounds) == 0 {
			out[i].Err = err
			continue
		}
		out[i].MaxWait = p.maxWait()
		if _, known := groups[p.scope.Provider()]; !known {
			order = append(order, p.scope.Provider())
		}
		groups[p.scope.Provider()] = append(groups[p.scope.Provider()], i)
	}
	for _, provider := range order {
		if err := w.l.lineUp(ctx, provider, asks, groups[provider], out, lead, near); err != nil {
			return out, unavailable(ctx, "line up for", provider, err)
		}
	}
	return out, nil
}

// joinBatch is how many tasks a call of join places at most: few enough that it keeps the server for some milliseconds
// where each has a tenant of its own. joinCalls is how many such calls go in one round trip, under one Config.Timeout.
const (
	joinBatch = 64
	joinCalls = 8
	// mostDirect is how many tasks of one round trip are left alone.
	mostDirect = 16
)

// lineUp gives places to those of asks that group names, all of one provider.
func (l *Limiter) lineUp(ctx context.Context, provider string, asks []Waiter, group []int, out []Joined, lead, near time.Duration) error {
	waits := false
	for some := range slices.Chunk(group, joinBatch*joinCalls) {
		var calls []*joinCall
		direct := mostDirect
		if near == QueueAll {
			direct = 0
		}
		for batch := range slices.Chunk(some, joinBatch) {
			calls = append(calls, l.newJoin(asks, batch, lead, near, direct))
			direct = 0
		}
		if err := l.joinAll(ctx, provider, asks, calls); err != nil {
			return err
		}
		for _, c := range calls {
			waits = c.read(asks, out) || waits
		}
	}
	if waits {
		return l.announce(ctx, provider)
	}
	return nil
}

// The reply of join has two numbers, and four more for each task.
const (
	joinHead = 2
	joinTask = 4
)

// joinCall is one call of join.
type joinCall struct {
	group  []int // its tasks, as indexes of asks
	scopes []string
	number map[string]int // of each scope, from 1
	table  *table
	head   []any // the arguments before the table, and
	tasks  []any // behind it
	reply  []any
}

func (l *Limiter) newJoin(asks []Waiter, group []int, lead, near time.Duration, direct int) *joinCall {
	c := &joinCall{group: group, number: map[string]int{}}
	for _, i := range group {
		if _, known := c.number[asks[i].Scope]; !known {
			c.scopes = append(c.scopes, asks[i].Scope)
			c.number[asks[i].Scope] = len(c.scopes)
		}
	}
	c.bring(l, asks)
	for _, p := range c.table.plans {
		if p != nil {
			near = p.reach(near, l.serverTime) // by then other rules may hold
		}
	}
	c.head = []any{l.clock(), l.slots.client + NewID(), lead.Microseconds(), max(near, 0).Microseconds(), direct}
	return c
}

// bring brings the rules along that hold now.
func (c *joinCall) bring(l *Limiter, asks []Waiter) {
	c.table, c.tasks = l.table(c.scopes), nil
	for _, i := range c.group {
		a := asks[i]
		priority := a.Priority
		if p := c.table.plans[c.number[a.Scope]-1]; p != nil {
			priority = p.effective(priority)
		}
		c.tasks = append(c.tasks, c.number[a.Scope], a.Ref().ticket(), string(appendRank(nil, priority, a.Lane, a.Stride)))
	}
}

// joinAll sends calls, and once more those that met a damaged value, or came when other rules held.
func (l *Limiter) joinAll(ctx context.Context, provider string, asks []Waiter, calls []*joinCall) error {
	for first := true; len(calls) > 0; first = false {
		damaged, err := l.sendJoins(ctx, provider, calls)
		if err != nil && (!first || !l.repaired(ctx, provider, scopesOf(damaged), err)) {
			return err
		}
		var stale []*joinCall
		for _, c := range calls {
			if first && c.stale() {
				c.bring(l, asks)
				stale = append(stale, c)
			}
		}
		calls = append(damaged, stale...)
	}
	return nil
}

// sendJoins sends calls in one round trip, and returns those that failed, as damaged values have scripts fail, and
// the first error. Tasks of one scope get their places in the order of the calls.
func (l *Limiter) sendJoins(ctx context.Context, provider string, calls []*joinCall) (failed []*joinCall, err error) {
	prefix, asked := keyspace(l.cfg.Prefix).provider(provider), time.Now()
	kinds, arguments := map[byte]bool{}, make([][]any, len(calls))
	for i, c := range calls {
		maps.Copy(kinds, c.table.present)
		arguments[i] = slices.Concat([]any{len(c.table.keys(prefix))}, c.table.keys(prefix), c.table.appendArgs(c.head), c.tasks)
	}
	// They all run the same script: a server that does not know it has run none of them.
	for i, cmd := range l.manyLists(ctx, lua.Join.For(kindsOf(kinds)), arguments) {
		c, fault := calls[i], cmd.Err()
		if c.reply = cmd.Val(); fault == nil && len(c.reply) != joinHead+joinTask*len(c.group) {
			fault = errReply
		}
		if fault != nil {
			c.reply, failed, err = nil, append(failed, c), cmp.Or(err, fault)
			continue
		}
		l.told(prefix, asked, c.now(), c.scopes)
	}
	return failed, err
}

func scopesOf(calls []*joinCall) (scopes []string) {
	for _, c := range calls {
		scopes = append(scopes, c.scopes...)
	}
	return scopes
}

// now is the clock of the call.
func (c *joinCall) now() time.Time {
	now, _ := c.reply[0].(int64)
	return time.UnixMicro(now)
}

// stale says that the call was answered when others of its rules held.
func (c *joinCall) stale() bool {
	return c.reply != nil && slices.ContainsFunc(c.table.plans, func(p *compiledScope) bool { return p != nil && p.stale(c.now()) })
}

// read takes the answers over, and says whether any of its tasks waits.
func (c *joinCall) read(asks []Waiter, out []Joined) (waits bool) {
	for k, i := range c.group {
		var n [joinTask]int64
		for j := range n {
			n[j], _ = c.reply[joinHead+joinTask*k+j].(int64)
		}
		one := &out[i]
		one.Waits, one.Again, one.Expected, one.Ahead = n[0] > 0, n[0] == 2, wait(n[1]), n[2]
		waits = waits || one.Waits
		p := c.table.plans[c.number[asks[i].Scope]-1]
		switch {
		case !one.Waits || p == nil:
		case len(p.pauses) > 0:
			var pause int
			pause, one.Expected = p.longestPause(c.now())
			one.Binding = p.states[pause].RuleInfo
		default:
			one.Expected = p.realStart(-1, c.now(), one.Expected)
			one.Binding = p.ruleInfo(n[3])
		}
	}
	return waits
}

// ruleInfo describes a rule of the plan by its number in a reply: nil for 0, for a pause that an API has asked for, and for openRule.
func (p *compiledScope) ruleInfo(number int64) *RuleInfo {
	if number < 1 || number > int64(len(p.bounds)) || p.open {
		return nil
	}
	return p.states[number-1].RuleInfo
}

// ActiveProviders returns the providers with waiters, now or within a day, that processes have
// announced by PublishActive or Join since the given time, each with the time of its last
// announcement, by the announcing process's clock. Costs one round trip. The error wraps
// ErrUnavailable, or is ctx's.
func (w Waitlist) ActiveProviders(ctx context.Context, since time.Time) (map[string]time.Time, error) {
	if day := time.Now().Add(-announced); since.Before(day) {
		since = day
	}
	var list *redis.ZSliceCmd
	err := redisread.FromMaster(ctx, w.l.rdb, func(pipe redis.Pipeliner) error {
		list = pipe.ZRangeByScoreWithScores(ctx, keyspace(w.l.cfg.Prefix).turns(), &redis.ZRangeBy{
			Min: strconv.FormatInt(since.UnixMicro(), 10), Max: "+inf",
		})
		return nil
	})
	if err != nil {
		return nil, unavailable(ctx, "ask who waits of", w.l.cfg.Prefix, err)
	}
	turns := make(map[string]time.Time, len(list.Val()))
	for _, z := range list.Val() {
		provider, _ := z.Member.(string)
		turns[provider] = time.UnixMicro(int64(z.Score))
	}
	return turns, nil
}

// PublishActive announces to other processes that tasks wait for a provider, so that they call
// Dispatch for it too. Costs one round trip. The error wraps ErrUnavailable, or is ctx's.
func (w Waitlist) PublishActive(ctx context.Context, provider string) error {
	if err := w.l.announce(ctx, provider); err != nil {
		return unavailable(ctx, "announce", provider, err)
	}
	return nil
}

// announced is how long an announcement stands.
const announced = 24 * time.Hour

func (l *Limiter) announce(ctx context.Context, provider string) error {
	key := keyspace(l.cfg.Prefix).turns()
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().UnixMicro()), Member: provider})
		pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(time.Now().Add(-announced).UnixMicro(), 10))
		pipe.PExpire(ctx, key, announced)
		return nil
	})
	return err
}
