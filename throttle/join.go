package throttle

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Ask is one who is to be given a place.
type Ask struct {
	Scope    string
	Ticket   string
	Cost     int64  // 0 for 1
	Costs    Costs  // by unit, instead of Cost
	Priority int    // as Request.Priority
	Lane     string // as Request.Lane
	Stride   int    // as Request.Stride
}

// Check is Policy.Check, or CheckCosts, for one who asks. The error may also be a *ScopeError.
func (a Ask) Check(p *Policy) error {
	scope, err := ParseScope(a.Scope)
	if err != nil {
		return err
	}
	if len(a.Costs) > 0 {
		return p.CheckCosts(scope, a.Costs)
	}
	return p.Check(scope, max(a.Cost, defaultCost))
}

// Placed is what LineUp says of one Ask.
type Placed struct {
	// Waits says that it stands in line now. Otherwise it is to be run at once: its
	// start is near, and nobody is before it.
	Waits bool
	// Expected is when its start may be expected from now, Unknown where no clock
	// tells.
	Expected time.Duration
	// MaxWait is the shortest max_wait of the rules on its path, 0 where none has one.
	MaxWait time.Duration
	// Err is set when it can never be granted: *ScopeError, *UnmatchedError or
	// *CostError, its priority is out of bounds or its lane is too long. It has no place then.
	Err error
}

// LineUp gives places to those who are about to be enqueued, in their order: where
// their rules have units for them now it leaves them alone, and puts them in line
// otherwise, as if they had asked and been denied. The answer has one Placed for each.
//
// Those who may run at once are charged, and in flight until they come. The lead is that of DispatchRequest, and a start is near when it
// is at most so far away. Costs one round trip for each provider. The error wraps
// ErrUnavailable, or is ctx's; some may then stand in line nevertheless.
func (l *Limiter) LineUp(ctx context.Context, asks []Ask, lead, near time.Duration) ([]Placed, error) {
	out := make([]Placed, len(asks))
	groups := map[string][]int{}
	var order []string
	for i, a := range asks {
		p, err := l.plans.of(a.Scope)
		if err == nil {
			err = a.checkRank()
		}
		if err == nil {
			p, err = l.priced(p, &Request{Cost: max(a.Cost, 0), Costs: a.Costs})
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
		if err := l.lineUp(ctx, provider, asks, groups[provider], out, lead, near, false); err != nil {
			return out, unavailable(ctx, "line up for", provider, err)
		}
	}
	return out, nil
}

func (l *Limiter) lineUp(ctx context.Context, provider string, asks []Ask, group []int, out []Placed, lead, near time.Duration, again bool) error {
	var scopes []string
	number := map[string]int{}
	for _, i := range group {
		if _, known := number[asks[i].Scope]; !known {
			scopes = append(scopes, asks[i].Scope)
			number[asks[i].Scope] = len(scopes)
		}
	}
	t := l.table(scopes)
	var args []any
	for _, i := range group {
		a := asks[i]
		priority := a.Priority
		if p := t.plans[number[a.Scope]-1]; p != nil {
			priority = p.effective(priority)
		}
		args = append(args, number[a.Scope], a.Place().ticket(), string(appendRank(nil, priority, a.Lane, a.Stride)))
	}
	prefix, asked := keyspace(l.cfg.Prefix).provider(provider), time.Now()
	reply, err := l.joinScript(ctx, provider, scopes, t, lead, near, args)
	if err != nil {
		return err
	}
	if len(reply) != 1+2*len(group) {
		return errReply
	}
	now, _ := reply[0].(int64)
	if l.told(prefix, asked, time.UnixMicro(now), scopes) && !again {
		return l.lineUp(ctx, provider, asks, group, out, lead, near, true)
	}
	waits := false
	for k, i := range group {
		a := asks[i]
		placed, _ := reply[1+2*k].(int64)
		expected, _ := reply[2+2*k].(int64)
		out[i].Waits, out[i].Expected = placed == 1, wait(expected)
		waits = waits || placed == 1
		if p := t.plans[number[a.Scope]-1]; placed == 1 && p != nil && len(p.pauses) > 0 {
			_, out[i].Expected = p.paused(time.UnixMicro(now))
		}
	}
	if waits {
		return l.announce(ctx, provider)
	}
	return nil
}

// Turns tells the providers that tasks wait for, or have waited for within a day,
// as far as processes have said so with Announce or LineUp, and when it was said
// last. Costs one round trip.
func (l *Limiter) Turns(ctx context.Context) (map[string]time.Time, error) {
	since := time.Now().Add(-announced).UnixMilli()
	var list *redis.ZSliceCmd
	err := ReadFromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		list = pipe.ZRangeByScoreWithScores(ctx, keyspace(l.cfg.Prefix).turns(), &redis.ZRangeBy{
			Min: strconv.FormatInt(since, 10), Max: "+inf",
		})
		return nil
	})
	if err != nil {
		return nil, unavailable(ctx, "ask who waits of", l.cfg.Prefix, err)
	}
	turns := make(map[string]time.Time, len(list.Val()))
	for _, z := range list.Val() {
		provider, _ := z.Member.(string)
		turns[provider] = time.UnixMilli(int64(z.Score))
	}
	return turns, nil
}

// Announce lets other processes know that tasks wait for a provider, so that they
// call Dispatch for it too. Costs one round trip.
func (l *Limiter) Announce(ctx context.Context, provider string) error {
	if err := l.announce(ctx, provider); err != nil {
		return unavailable(ctx, "announce", provider, err)
	}
	return nil
}

// announced is how long an announcement stands.
const announced = 24 * time.Hour

func (l *Limiter) announce(ctx context.Context, provider string) error {
	key := keyspace(l.cfg.Prefix).turns()
	_, err := l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().UnixMilli()), Member: provider})
		pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(time.Now().Add(-announced).UnixMilli(), 10))
		pipe.PExpire(ctx, key, announced)
		return nil
	})
	return err
}

// joinScript sends a call of join: the group's tasks, each with the number of its scope.
func (l *Limiter) joinScript(ctx context.Context, provider string, scopes []string, t *table, lead, near time.Duration, tasks []any) ([]any, error) {
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	args := t.appendArgs([]any{l.clock(), l.slots.client + NewID(), lead.Microseconds(), near.Microseconds()})
	args = append(args, tasks...)
	reply, err := l.lists(ctx, lua.Join.For(t.kinds()), t.keys(prefix), args)
	if err != nil && l.repaired(ctx, provider, scopes, err) {
		reply, err = l.lists(ctx, lua.Join.For(t.kinds()), t.keys(prefix), args)
	}
	if err == nil && len(reply) != 2+2*len(tasks)/3 {
		err = errReply
	}
	if err != nil {
		return nil, err
	}
	return append(reply[:1:1], reply[2:]...), nil
}
