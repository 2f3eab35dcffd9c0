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

// WakeRequest asks for those of a provider whose turn is near.
type WakeRequest struct {
	// Provider is the first name of the scopes. Required.
	Provider string
	// Lead is how long before its start one is released at the latest, and Spread how
	// much earlier it may be, so that one call serves several.
	Lead, Spread time.Duration
	// Most is how many to release at most.
	Most int
	// More is how many more to release of those whose start has come already, and who
	// need not wait for it.
	More int
	// All looks at every round whatever it waits for: limits may have changed.
	All bool
	// Gone, NotYet and Running say what became of those released before: there is no
	// such task; there is none yet and it is to be tried again; it runs already.
	Gone, NotYet, Running []Place
}

// Woken is what Wake answers.
type Woken struct {
	// Released are those whose turn it is, in order. Each has its start when it asks
	// with its ticket, and loses its turn when it has not asked after 3 s.
	Released []Place
	// Waiting says that somebody waits, and Next in how long to call Wake again.
	Waiting bool
	Next    time.Duration
	// Out is how many that this Limiter has released, these included, have not asked
	// yet.
	Out int
}

// Wake releases those who wait and whose turn is near, in the order of their turns.
// Any number of processes may call it: each turn is given once. It charges nothing.
// Costs one round trip, and another where scopes come up that this Limiter has not
// met lately. The error wraps ErrUnavailable, or is ctx's.
func (l *Limiter) Wake(ctx context.Context, req WakeRequest) (Woken, error) {
	scopes := l.lines.of(req.Provider)
	scopes.met(req.scopes(), nil)
	var out Woken
	for range maxWakeCalls {
		reply, err := l.wake(ctx, req, scopes)
		if err != nil {
			return out, unavailable(ctx, "wake those who wait for", req.Provider, err)
		}
		out.Released = append(out.Released, reply.released...)
		out.Out = int(reply.out)
		out.Waiting, out.Next = reply.next > 0, max(0, time.Duration(reply.next-reply.now)*time.Microsecond)
		scopes.met(reply.near, reply.missing)
		if len(reply.missing) == 0 {
			break
		}
		left := max(0, req.Most+req.More-len(reply.released))
		req.More = min(req.More, left)
		req.Most = left - req.More
		req.Gone, req.NotYet, req.Running, req.All = nil, nil, nil, false
	}
	return out, nil
}

// scopes are those of the news.
func (r WakeRequest) scopes() (scopes []string) {
	for _, p := range slices.Concat(r.Gone, r.NotYet, r.Running) {
		scopes = append(scopes, p.Scope)
	}
	return scopes
}

const (
	// maxWakeCalls bounds the round trips of one Wake: scopes that still come up are
	// for the next.
	maxWakeCalls = 4
	// maxLines is how many scopes a call brings along: those met last.
	maxLines  = 64
	nearRules = 16
)

type wakeReply struct {
	now, next int64
	out       int64
	released  []Place
	missing   []string
	near      []string
}

func appendNews(args []any, what string, list []Place) []any {
	for _, p := range list {
		args = append(args, what, scopePath(p.Scope), p.ticket())
	}
	return args
}

func (l *Limiter) wake(ctx context.Context, req WakeRequest, scopes *scopeSet) (wakeReply, error) {
	prefix := keyspace(l.cfg.Prefix).provider(req.Provider)
	all := 0
	if req.All {
		all = 1
	}
	known, near := scopes.known()
	t := l.table(known)
	args := []any{
		l.clock(), l.slots.client + NewID(), req.Lead.Microseconds(), req.Spread.Microseconds(), max(0, req.Most), all, max(0, req.More), near,
	}
	args = t.appendArgs(args)
	// In this order: who is gone is not put back, whatever else is said of it.
	args = appendNews(args, "f", req.Gone)
	args = appendNews(args, "a", req.NotYet)
	args = appendNews(args, "r", req.Running)
	reply, err := l.lists(ctx, lua.Wake.For(t.kinds()), t.keys(prefix), args)
	if err != nil {
		return wakeReply{}, err
	}
	return readWake(req.Provider, reply)
}

func readWake(provider string, reply []any) (out wakeReply, err error) {
	lists := make([][]any, 4)
	if len(reply) != len(lists) {
		return out, errReply
	}
	for i := range lists {
		list, ok := reply[i].([]any)
		if !ok {
			return out, errReply
		}
		lists[i] = list
	}
	times, released := lists[0], lists[1]
	if len(times) != 3 || len(released)%2 != 0 {
		return out, errReply
	}
	out.now, _ = times[0].(int64)
	out.next, _ = times[1].(int64)
	out.out, _ = times[2].(int64)
	for i := 0; i < len(released); i += 2 {
		out.released = append(out.released, readPlace(scopeOf(provider, released[i]), text(released[i+1])))
	}
	for _, s := range lists[2] {
		out.missing = append(out.missing, scopeOf(provider, s))
	}
	for _, s := range lists[3] {
		out.near = append(out.near, scopeOf(provider, s))
	}
	return out, nil
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

// Ask is one who is to be given a place.
type Ask struct {
	Scope    string
	Ticket   string
	Cost     int64 // 0 for 1
	Priority int
}

// Placed is what LineUp says of one Ask.
type Placed struct {
	// Waits says that it stands in line now. Otherwise it is to be run at once: its
	// start is near, and nobody is before it.
	Waits bool
	// Expected is when its start may be expected from now, Unknown where no clock
	// tells.
	Expected time.Duration
	// Err is set when it can never be granted: *ScopeError, *UnmatchedError or
	// *CostError. It has no place then.
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
			err = p.check(max(a.Cost, defaultCost))
		}
		if err != nil || len(p.bounds) == 0 {
			out[i].Err = err
			continue
		}
		if _, known := groups[p.scope.Provider()]; !known {
			order = append(order, p.scope.Provider())
		}
		groups[p.scope.Provider()] = append(groups[p.scope.Provider()], i)
	}
	for _, provider := range order {
		if err := l.lineUp(ctx, provider, asks, groups[provider], out, lead, near); err != nil {
			return out, unavailable(ctx, "line up for", provider, err)
		}
	}
	return out, nil
}

func (l *Limiter) lineUp(ctx context.Context, provider string, asks []Ask, group []int, out []Placed, lead, near time.Duration) error {
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
	for _, i := range group {
		a := asks[i]
		args = append(args, number[a.Scope], Place{Ticket: a.Ticket, cost: a.Cost}.ticket(), a.Priority)
	}
	reply, err := l.lists(ctx, lua.LineUp.For(t.kinds()), t.keys(keyspace(l.cfg.Prefix).provider(provider)), args)
	if err != nil {
		return err
	}
	if len(reply) != 1+2*len(group) {
		return errReply
	}
	waits := false
	for k, i := range group {
		placed, _ := reply[1+2*k].(int64)
		expected, _ := reply[2+2*k].(int64)
		out[i].Waits, out[i].Expected = placed == 1, wait(expected)
		waits = waits || placed == 1
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
	list, err := l.rdb.ZRangeByScoreWithScores(ctx, keyspace(l.cfg.Prefix).turns(), &redis.ZRangeBy{
		Min: strconv.FormatInt(since, 10), Max: "+inf",
	}).Result()
	if err != nil {
		return nil, unavailable(ctx, "ask who waits of", l.cfg.Prefix, err)
	}
	turns := make(map[string]time.Time, len(list))
	for _, z := range list {
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
	return cmd.Result()
}

// table is several scopes and the rules that they meet, each once.
type table struct {
	lines   []any // keys
	paths   []any // each the numbers of its rules
	rules   []any
	ruleKey []any
	number  map[string]int
	present map[byte]bool
}

// table looks scopes up. One that the policy has no rules for cannot be woken
// here; scripts are told so by the path "-".
func (l *Limiter) table(scopes []string) *table {
	t := &table{number: map[string]int{}, present: map[byte]bool{}}
	for _, scope := range scopes {
		p, err := l.plans.of(scope)
		if err != nil || len(p.bounds) == 0 {
			s, err := ParseScope(scope)
			if err == nil {
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
		}
		for i := range len(p.kinds) {
			t.present[p.kinds[i]] = true
		}
		t.lines, t.paths = append(t.lines, p.turns[0]), append(t.paths, path[1:])
	}
	return t
}

func (t *table) kinds() string { return kindsOf(t.present) }

func (t *table) keys(provider string) []any {
	return slices.Concat(t.ruleKey, shared(provider), t.lines)
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

// scopeSet is the scopes that a call brings along.
type scopeSet struct {
	mu   sync.Mutex
	list []string // the one met last at the end
	near int      // of how many rules to ask which scopes are next
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
