package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// Config is how a Limiter works. The zero Config is ready to use.
type Config struct {
	// Prefix begins every key, so that several systems can share a Redis: letters,
	// digits, '-', '_' and '.'. Defaults to "hw".
	Prefix string
	// StartTolerance is how late a run may always start after the moment it was granted for: timers
	// wake late and replies take time. It widens every rate rule's window, so that a run that
	// is late by no more is still within its limits; it costs StartTolerance/Per of the limit, and
	// twice that of a token bucket that lets 1000 units through within it. A run that is later
	// than that is decided anew where a rule of its path could be exceeded: a sliding window,
	// another token bucket, a fixed window or a calendar's period that has ended. A
	// concurrency rule minds no later start, nor do those others. All processes that share
	// limits should have the same. A rule whose Per is shorter loses half of its rate or more, and
	// Logger is told of it. At most 1s and at least 1ms, since no timer keeps less;
	// negative means none, and that no start is ever too late. Defaults to 5ms.
	// Source: docs/algorithms.md#late-starts
	StartTolerance time.Duration
	// Timeout bounds one decision, retries included. It is kept as exactly as the
	// client's ContextTimeoutEnabled lets it be; a wait for a free connection of the
	// client's is bounded by its PoolTimeout. Defaults to 3s.
	Timeout time.Duration
	// App is the name of this application, for scopes whose policy names those that may
	// spend from them. Defaults to none, which may spend where nobody is named.
	App string
	// LongestPause bounds what an API can ask for, see Limiter.Report: no pause is longer, but
	// it may be told again. 1s to 31 days. Defaults to 24h.
	LongestPause time.Duration
	// Unbatched sends each decision as a command of its own, at once. Otherwise
	// decisions asked for while one is on the way go out together with the next,
	// those of one provider as one script call: nobody waits for company, and many
	// callers share round trips.
	// Defaults to false.
	Unbatched bool
	// Observer is told of every decision. Defaults to none.
	Observer Observer
	// OnShadow is told what each shadow rule says of each start that was granted. It is
	// called in several goroutines at once, for what was dropped in the caller's, and must
	// not block. Defaults to none.
	OnShadow func(Shadowed)
	// OnSpent is told what is spent: of each request that is allowed and takes anything, of each that is refunded, and what
	// settling corrects. Requests with a waiter id are left to the program that lets them wait, such as package worker; so is a
	// request that is answered with what its own ID was granted before. It is called in the caller's goroutine
	// and must not block. Defaults to none. See usage.Recorder.Record.
	OnSpent func(Spent)
	// Logger gets a line when Redis stops and starts answering, when damaged values of those who
	// wait were dropped, and once a minute, for each
	// shadow rule, one of how many starts it would have made wait, if any. New and SetPolicy write
	// one at level warn, once for each rule, where StartTolerance is longer than a rule's Per.
	// Defaults to none.
	Logger *slog.Logger
}

// Observer is told what a Limiter does. Its methods are called in the caller's
// goroutine and must not block.
type Observer interface {
	// Decided tells of a decision asked of Redis, how long the answer took and
	// its error, if any. d.Rules is set only when err is nil. Of one that Dispatch had granted,
	// Decision.Handed, and of one that was prefetched, nobody was asked, and took is 0.
	Decided(d Decision, took time.Duration, err error)
}

// UpstreamObserver is an Observer that is also told what follows from APIs' answers.
type UpstreamObserver interface {
	// UpstreamSignal tells of something new that an answer has brought about: a "pause", a "cut" of a
	// rule, or a "limit" of the API's own.
	UpstreamSignal(what string)
}

const (
	defaultPrefix  = "hw"
	defaultPad     = 5 * time.Millisecond
	defaultTimeout = 3 * time.Second
	longestPause   = 24 * time.Hour

	// MaxDelayLimit is the furthest ahead that a start may be granted.
	MaxDelayLimit = time.Minute

	maxIDBytes = 128
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.StartTolerance == 0 {
		c.StartTolerance = defaultPad
	}
	c.StartTolerance = max(c.StartTolerance, 0)
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.LongestPause <= 0 {
		c.LongestPause = longestPause
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Limiter decides under one policy, with its state in Redis. Any number of them,
// in any number of processes, share their limits by sharing Redis and the names
// in the policy. It is safe for concurrent use.
//
// Most callers want [Limiter.Wait], or package worker, which waits without
// holding a goroutine. [Limiter.Allow] is for callers that turn away instead of
// waiting, [Limiter.Peek] for those that only look.
type Limiter struct {
	cfg     Config
	scopes  *scopeCache
	rdb     redis.UniversalClient
	runner  *runner
	nexts   nextSets
	slots   *slots
	outage  *outage
	reports reportCache
	freed   freed
	members memberCount
	shadows *shadows
	hasty   hastyRules
	skews   skews
	ahead   atomic.Int64  // the furthest start ever asked for
	clock   func() string // what scripts get for the time: "", or a test's own
}

// New returns a Limiter that keeps its state in rdb: a single server, Sentinel,
// Cluster or Ring client. It does no I/O and takes no ownership: closing rdb
// stays with the caller. The error names each field of cfg that is wrong.
func New(rdb redis.UniversalClient, policy *policy.Policy, cfg Config) (*Limiter, error) {
	var faults []error
	if rdb == nil {
		faults = append(faults, errors.New("throttle: New needs a Redis client, got nil"))
	}
	if policy == nil {
		faults = append(faults, errors.New("throttle: New needs a policy, got nil; see limitsyaml.Load and policy.PerSecond"))
	}
	cfg = cfg.withDefaults()
	for i := range len(cfg.Prefix) {
		if c := cfg.Prefix[i]; !keepsItsByte(c) || c == '~' || c >= 0x80 {
			faults = append(faults, fmt.Errorf("throttle: Config.Prefix %q holds %q; use letters, digits, '-', '_' and '.'", cfg.Prefix, c))
			break
		}
	}
	if cfg.StartTolerance != 0 && (cfg.StartTolerance < time.Millisecond || cfg.StartTolerance > time.Second) {
		faults = append(faults, fmt.Errorf("throttle: Config.StartTolerance is %s; it is how late timers are: 1ms to 1s, or negative for none", cfg.StartTolerance))
	}
	if cfg.LongestPause < time.Second || cfg.LongestPause > upstream.MaxWait {
		faults = append(faults, fmt.Errorf("throttle: Config.LongestPause is %s; at least 1s and at most %s", cfg.LongestPause, upstream.MaxWait))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	cfg.StartTolerance = cfg.StartTolerance.Truncate(time.Microsecond) // as scripts count
	keys := keyspace(cfg.Prefix)
	l := &Limiter{
		cfg:    cfg,
		scopes: newPlans(policy, keys, cfg.StartTolerance, cfg.App),
		rdb:    rdb,
		runner: newRunner(rdb, cfg.Timeout, cfg.Unbatched),
		slots:  newSlots(),
		outage: newOutage(cfg.Logger),
		clock:  func() string { return "" },
	}
	l.scopes.now = l.serverTime
	l.shadows = newShadows(l, cfg)
	l.hasty.tolerance, l.hasty.logger = cfg.StartTolerance, cfg.Logger
	l.hasty.in(policy)
	return l, nil
}

// Policy returns the policy that the limiter decides under.
func (l *Limiter) Policy() *policy.Policy {
	policy, _ := l.scopes.current()
	return policy
}

// SetPolicy makes the limiter decide under another policy from now on. What has been
// spent stays spent, under rules of the same name at the same level, whatever else of
// them has changed; a decision that is under way may still be made under the policy
// before. Package worker lets those who wait know at once. Other processes keep theirs:
// package policystore carries one to all of them. It costs one look at each rule, and that scopes are
// worked out anew. A nil policy changes nothing.
// Source: docs/algorithms.md#changing-a-limit
func (l *Limiter) SetPolicy(policy *policy.Policy) {
	if policy != nil {
		l.emptyStocks(l.scopes.set(policy), (*stock).close)
		l.hasty.in(policy)
	}
}

// EarlierPolicies returns the policies that the limiter had before this one, the latest last: 16 at
// most. It does no I/O.
func (l *Limiter) EarlierPolicies() []*policy.Policy { return l.scopes.earlier() }

// PolicyChanged returns a channel that is closed when SetPolicy is called the next time.
func (l *Limiter) PolicyChanged() <-chan struct{} {
	_, changed := l.scopes.current()
	return changed
}

// Request asks for units under every rule on a scope's path.
type Request struct {
	// Scope is the path to spend from, such as payments/acme/refunds. Required.
	Scope string
	// Cost is how many units it takes under each rate rule. A concurrency rule
	// always counts one place. Defaults to 1: to take nothing, say so by unit in Costs.
	Cost int64
	// Costs is what it takes by unit, instead of Cost. A rule that counts none of it is
	// left out of the decision. Where all are 0, policy.Costs{policy.Requests: 0}, nothing is taken, no place
	// either, and no limit is in the way: the request is allowed, unless its scope is paused. Decision.Rules
	// then says how all rules stand: Remaining and ResetAfter as they are, Limited and RetryAfter as for one unit. Costs one round
	// trip, and two where one unit would be denied. Config.Observer and shadow rules are not asked. With a
	// WaiterID it is an error: what takes nothing need not wait in line. Defaults to none.
	Costs policy.Costs
	// ID is the attempt id: a request sent again for the same Scope under the same ID within
	// half a minute is not charged again but answered with the first grant. 1 to 128
	// bytes; draw a new one for each attempt. Defaults to a random one.
	ID string
	// MaxDelay is how far ahead a start may be granted, at most MaxDelayLimit: the charge
	// counts at that start, and the caller must wait Decision.Wait. Defaults to 0,
	// now or never.
	MaxDelay time.Duration
	// Turn is what a program says besides whose requests wait in line, see [Waitlist]. Defaults to none: the request is for
	// now and is not remembered.
	Turn Turn
	// OnWait is called by Start and Wait when a granted start is still ahead, with
	// how far; what it returns is called when that wait is over. Defaults to none.
	OnWait func(ahead time.Duration) (over func())

	slot     *slot    // of an ID that the Limiter drew and asks for again
	once     bool     // nobody asks again for the ID, which the Limiter drew
	standing standing // of the waiter
	late     lateness // of the start before this one
	renewed  bool     // it is asked again, since the plan was stale
	missed   int      // how often it was granted a start at which other rules hold
}

// Allow decides whether one unit may be spent from scope now, and takes it if so.
// It is shorthand for Decide with a Request of that scope.
func (l *Limiter) Allow(ctx context.Context, scope string) (Decision, error) {
	return l.Decide(ctx, Request{Scope: scope})
}

// Decide decides whether req may be spent, under all rules on its scope's path,
// and takes it from all of them if so and from none otherwise.
//
// A denial is a Decision, never an error, and changes nothing. An error means
// that nothing was decided: *ScopeError, *UnmatchedError, *AppError or *CostError (which no
// wait will mend), ctx's own error, or one that wraps ErrUnavailable. Units that
// a cancelled call may have taken are given back. Costs one round trip to Redis,
// shared with other callers where it can be; none where its units are charged already, see
// Rule.Prefetch.
func (l *Limiter) Decide(ctx context.Context, req Request) (d Decision, err error) {
	err = l.decideOnly(ctx, req, &d)
	l.evaluateShadows(&d, &req, d.Wait)
	if l.cfg.OnSpent != nil && d.Allowed {
		l.reportSpent(&d, &req)
	}
	return d, err
}

// decideOnly is Decide without shadow rules. It fills a decision that is empty.
func (l *Limiter) decideOnly(ctx context.Context, req Request, d *Decision) error {
	if req.once = req.ID == ""; req.once {
		req.slot = nil
	}
	p, err := l.prepare(&req)
	if err != nil {
		return err
	}
	if err := ended(ctx); err != nil {
		return err
	}
	if len(p.bounds) == 0 {
		d.Allowed, d.Binding, d.under = true, -1, p
		return nil
	}
	if req.takesNothing() {
		*d, err = l.decideNothing(ctx, p, &req)
		return err
	}
	if p.stocks(&req) {
		return l.fromStock(ctx, p, &req, d)
	}
	return l.decide(ctx, p, &req, d)
}

func (l *Limiter) decide(ctx context.Context, p *compiledScope, req *Request, d *Decision) error {
	a := l.attempt(p, req)
	c := a.call()
	reply, err := l.runner.run(ctx, c)
	if err != nil && req.Turn.WaiterID != "" && l.repaired(ctx, p.scope.Provider(), []string{p.scope.String()}, err) {
		reply, err = l.runner.run(ctx, c)
	}
	replied := time.Now()
	took := replied.Sub(a.sent)
	req.slot.answered(a, err)
	if err == nil {
		err = l.answered(ctx, a, reply, replied, d)
		d.leeway = req.late.leeway
		if fresh := l.renewed(p, d); fresh != nil && !req.renewed {
			req.renewed, *d = true, Decision{}
			return l.decide(ctx, fresh, req, d)
		}
		if p.stock != nil && err == nil && !d.Allowed && req.Turn.WaiterID == "" && !req.renewed {
			if gone := p.stock.empty(); len(gone) > 0 { // it may be what the stock holds that is missing
				l.giveBackDraws(gone)
				req.renewed, *d = true, Decision{}
				return l.decide(ctx, p, req, d)
			}
		}
		if p.misses(d) {
			return l.retryInWindow(ctx, p, req, d)
		}
	} else {
		*d, err = l.withoutRedis(ctx, p, req, err)
	}
	if l.cfg.Observer != nil {
		l.cfg.Observer.Decided(*d, took, err)
	}
	return err
}

// answered reads the reply to an attempt, and what it tells of the server.
func (l *Limiter) answered(ctx context.Context, a *attempt, reply []int64, replied time.Time, d *Decision) error {
	p := a.plan
	a.replied = replied
	a.answered()
	l.outage.over(p)
	err := a.answer(ctx, reply, d)
	d.under = p
	l.denied(p, d)
	d.begins = p.clock(&l.skews).begins(a.sent, replied, time.UnixMicro(reply[2]), d.Wait-d.overdue)
	if p.stock != nil && err == nil {
		p.stock.saw(d)
	}
	return err
}

// Peek says what Decide would answer now, and changes nothing. Its errors and
// cost are those of Decide; while Redis cannot answer it is always an error.
func (l *Limiter) Peek(ctx context.Context, req Request) (Decision, error) {
	p, err := l.prepare(&req)
	if err != nil {
		return Decision{}, err
	}
	if req.takesNothing() && len(p.bounds) > 0 {
		return l.peekNothing(ctx, p, &req)
	}
	return l.peek(ctx, p, req)
}

// peek is peekOnce, and once more where the plan was stale.
func (l *Limiter) peek(ctx context.Context, p *compiledScope, req Request) (Decision, error) {
	if len(p.bounds) == 0 {
		return Decision{Allowed: true, Binding: -1}, nil
	}
	d, err := l.peekOnce(ctx, p, req)
	if err == nil && p.stale(d.At) {
		fresh := l.scopes.refresh(p, d.At)
		if fresh == nil { // there were pauses alone, and they have ended
			return Decision{Allowed: true, Binding: -1, At: d.At}, nil
		}
		return l.peekOnce(ctx, fresh, req)
	}
	return d, err
}

func (l *Limiter) peekOnce(ctx context.Context, p *compiledScope, req Request) (Decision, error) {
	c, id := newCall(p.decide, p.keyArgs, 2, 3+2*len(p.bounds), replyHead+replyRule*len(p.bounds)), p.attemptID(&req)
	c.args = p.appendArgs(append(c.args, p.attempt(id), p.upstream, l.clock(), id, "?"+p.path), p.price(&req))
	reply, err := l.runner.run(ctx, c)
	if err != nil {
		return Decision{}, unavailable(ctx, "peek at", req.Scope, err)
	}
	return fromReply(p, reply), nil
}

// prepare fills in what req leaves out and refuses what can never be granted.
func (l *Limiter) prepare(req *Request) (*compiledScope, error) {
	p, err := l.scopes.of(req.Scope)
	if err != nil {
		return nil, err
	}
	if p.refusal != nil && req.standing != rejoins { // which spends nothing
		return nil, p.refusal
	}
	if req.takesNothing() {
		err = req.Costs.CheckUnits()
	} else {
		p, err = l.withCost(p, req)
	}
	if err != nil {
		return nil, err
	}
	if req.ID == "" {
		req.ID = NewID()
	}
	if len(req.ID) > maxIDBytes {
		return nil, fmt.Errorf("throttle: Request.ID is %d bytes long; the most is %d", len(req.ID), maxIDBytes)
	}
	if err := req.checkTicket(); err != nil {
		return nil, err
	}
	req.MaxDelay = p.reach(min(max(req.MaxDelay, 0), MaxDelayLimit), l.serverTime)
	req.MaxDelay = min(req.MaxDelay, MaxDelayLimit-req.late.leeway)
	if reach := int64(req.MaxDelay + req.late.leeway); reach > l.ahead.Load() {
		l.ahead.Store(reach) // of two at once either will do
	}
	return p, nil
}

// withCost returns the plan of the rules that req takes anything of, unless they can never
// admit it.
func (l *Limiter) withCost(p *compiledScope, req *Request) (*compiledScope, error) {
	if len(req.Costs) > 0 {
		if err := p.checkCosts(req.Costs); err != nil {
			return nil, err
		}
		return l.scopes.counted(p, req.Costs), nil
	}
	if req.Cost == 0 {
		req.Cost = defaultCost
	}
	return p, p.check(req.Cost)
}

// NewID draws an attempt id: 96 random bits in 16 letters.
func NewID() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	var id [16]byte
	for i := 0; i < len(id); i += 8 {
		bits := rand.Uint64()
		for j := range 8 {
			id[i+j] = letters[bits&63]
			bits >>= 6
		}
	}
	return string(id[:])
}

// unavailable says that Redis could not do what it was asked. A dead context is
// the context's own error, not an outage.
func unavailable(ctx context.Context, verb, scope string, err error) error {
	if dead := ended(ctx); dead != nil {
		return dead
	}
	return fmt.Errorf("%w: %s %q: %w", ErrUnavailable, verb, scope, err)
}

// ended returns the error of a context that has ended. A deadline that has passed
// counts before the context's own timer has told it: the client, whose
// connections have the same deadline, may be quicker.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
