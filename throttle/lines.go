package throttle

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
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
// Nothing is charged. The lead is that of WakeRequest, and a start is near when it
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
	args := t.appendArgs([]any{l.clock(), lead.Microseconds(), near.Microseconds()})
	of := len(args)
	for _, i := range group {
		a := asks[i]
		priority := a.Priority
		if p := t.plans[number[a.Scope]-1]; p != nil {
			priority = p.effective(priority)
		}
		args = append(args, number[a.Scope], a.Place().ticket(), string(appendRank(nil, priority, a.Lane, a.Stride)))
	}
	prefix, asked := keyspace(l.cfg.Prefix).provider(provider), time.Now()
	var reply []any
	var err error
	if l.grants {
		reply, err = l.joinScript(ctx, provider, scopes, t, lead, near, args[of:])
	} else {
		reply, err = l.mending(ctx, provider, lua.LineUp.For(t.kinds()), t, t.keys(prefix), args)
	}
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
// call Wake for it too. Costs one round trip.
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

func text(v any) string {
	s, _ := v.(string)
	return s
}

// scopePath is what keys have of a scope after its provider, and scopeOf the scope.
func scopePath(scope string) string {
	_, rest, nested := strings.Cut(scope, "/")
	if !nested {
		return ""
	}
	path := ""
	for name := range strings.SplitSeq(rest, "/") {
		path += "/" + escape(name)
	}
	return path
}

func scopeOf(provider string, path any) string { return provider + unescape(text(path)) }

// lists runs a script whose reply is not of numbers alone.
func (l *Limiter) lists(ctx context.Context, script *lua.Script, keys, args []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	all := append(append([]any{"evalsha", script.SHA, len(keys)}, keys...), args...)
	cmd := redis.NewSliceCmd(ctx, all...)
	if err := l.rdb.Process(ctx, cmd); unknownScript(err) {
		all[0], all[1] = "eval", script.Source
		cmd = redis.NewSliceCmd(ctx, all...)
		_ = l.rdb.Process(ctx, cmd) // the command has its error
	}
	follow(ctx, l.rdb, cmd.Err())
	return cmd.Result()
}

// table is several scopes and the rules that they meet, each once.
type table struct {
	plans   []*plan // nil for a scope without rules
	lines   []any   // keys
	paths   []any   // each the numbers of its rules
	rules   []any
	ruleKey []any
	number  map[string]int
	present map[byte]bool
}

// table looks scopes up. One that the policy has no rules for, and does not allow either,
// cannot be woken here; scripts are told so by the path "-".
func (l *Limiter) table(scopes []string) *table {
	t := &table{number: map[string]int{}, present: map[byte]bool{}}
	for _, scope := range scopes {
		p, err := l.plans.of(scope)
		if err == nil && len(p.bounds) == 0 {
			p = p.opened(keyspace(l.cfg.Prefix))
		}
		if err != nil {
			s, err := ParseScope(scope)
			if err == nil {
				t.plans = append(t.plans, nil)
				t.lines, t.paths = append(t.lines, keyspace(l.cfg.Prefix).line(s)), append(t.paths, "-")
			}
			continue
		}
		path := ""
		for i, key := range p.keys {
			if t.number[key] == 0 {
				t.ruleKey, t.rules = append(t.ruleKey, p.keyArgs[i]), append(t.rules, p.rules[i])
				t.number[key] = len(t.rules)
			}
			path += "," + strconv.Itoa(t.number[key])
			if p.weights[i] != noWeight {
				path += "*" + p.weights[i]
			}
		}
		for i := range len(p.kinds) {
			t.present[p.kinds[i]] = true
		}
		t.plans = append(t.plans, p)
		t.lines, t.paths = append(t.lines, p.turns[0]), append(t.paths, path[1:])
	}
	return t
}

// leave marks the scopes that the application may not spend from, and those that leaves names: a
// look sees to all of them, and releases nobody there.
func (t *table) leave(leaves func(scope string) bool) {
	for i, p := range t.plans {
		if p != nil && (p.refusal != nil || leaves != nil && leaves(p.scope.String())) {
			t.paths[i] = "!" + text(t.paths[i])
		}
	}
}

func (t *table) kinds() string { return kindsOf(t.present) }

func (t *table) keys(provider string) []any {
	return slices.Concat(t.ruleKey, shared(provider), t.lines, []any{parkedKey(provider)})
}

func (t *table) appendArgs(args []any) []any {
	return slices.Concat(args, []any{len(t.rules)}, t.rules, t.paths)
}

// scopeSets keeps, by provider, which scopes have been met lately.
type scopeSets struct {
	mu     sync.Mutex
	byName map[string]*scopeSet
}

func (s *scopeSets) of(provider string) *scopeSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.byName[provider]
	if set == nil {
		if s.byName == nil || len(s.byName) >= maxPlans {
			s.byName = map[string]*scopeSet{}
		}
		set = &scopeSet{near: nearRules}
		s.byName[provider] = set
	}
	return set
}

// scopeSet is the scopes that a call brings along, and what the last look told.
type scopeSet struct {
	mu    sync.Mutex
	list  []string  // the one met last at the end
	near  int       // of how many rules to ask which scopes are next
	next  int64     // the first round that is due, by the server's clock
	until time.Time // when that has come, or should be looked into anyway
	parks bool      // somebody is parked
	vain  time.Time // when something was last mended in vain
}

// glances is how long after a look glances will do.
const glances = 5 * time.Second

// looked notes what a look told of those who wait.
func (s *scopeSet) looked(next int64, told Woken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.until, s.parks = next, time.Now().Add(min(told.Next, glances)), told.Parked
}

// quiet returns what the last look told to be next, until when it is yet to come, and whether
// somebody was parked.
func (s *scopeSet) quiet() (next int64, until time.Time, parks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next, s.until, s.parks
}

// known returns the scopes, and of how many rules to ask for more.
func (s *scopeSet) known() (scopes []string, near int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list), s.near
}

// met adds scopes. Those that were missing make the next call ask which are next.
func (s *scopeSet) met(scopes, missing []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range slices.Concat(scopes, missing) {
		if i := slices.Index(s.list, scope); i >= 0 {
			s.list = slices.Delete(s.list, i, i+1)
		}
		s.list = append(s.list, scope)
	}
	if over := len(s.list) - maxLines; over > 0 {
		s.list = slices.Delete(s.list, 0, over)
	}
	s.near = 0
	if len(missing) > 0 {
		s.near = nearRules
	}
}
