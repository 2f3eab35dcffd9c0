package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// Limiter decides under one policy, with its state in Redis. Any number of limiters, in any number of
// processes, share their limits if they share the Redis and the names in the policy. It is safe for
// concurrent use.
//
// Most callers want Limiter.Wait, or package worker, which waits without holding a goroutine.
// Limiter.Allow is for callers that reject work instead of waiting. Limiter.Peek only looks.
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

// New returns a Limiter that keeps its state in rdb: a single server, Sentinel, Cluster or Ring
// client. It does no I/O, and the caller still has to close rdb. The error names each invalid field of
// cfg.
func New(rdb redis.UniversalClient, policy *policy.Policy, cfg Config) (*Limiter, error) {
	var faults []error
	if rdb == nil {
		faults = append(faults, errors.New("throttle: New needs a Redis client, got nil"))
	}
	if policy == nil {
		faults = append(faults, errors.New("throttle: New needs a policy, got nil; see limitsyaml.Load and policy.PerSecond"))
	}
	cfg = cfg.withDefaults()
	faults = append(faults, cfg.faults()...)
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

// Policy returns the policy that the limiter decides under. It does no I/O.
func (l *Limiter) Policy() *policy.Policy {
	policy, _ := l.scopes.current()
	return policy
}

// SetPolicy replaces the policy that the limiter decides under. Spent units stay spent under rules of
// the same name at the same level, whatever else of them has changed. A decision in flight may still
// be made under the previous policy. Package worker applies the new policy to waiting tasks at once.
// It changes this limiter only: package policystore distributes a policy to all processes. It does no
// I/O; it visits each rule, and scopes are compiled again when they are next used. A nil policy
// changes nothing.
// Source: docs/algorithms.md#changing-a-limit
func (l *Limiter) SetPolicy(policy *policy.Policy) {
	if policy != nil {
		l.emptyStocks(l.scopes.set(policy), (*stock).close)
		l.hasty.in(policy)
	}
}

// EarlierPolicies returns the limiter's previous policies, the latest last: 16 at most. It does no
// I/O.
func (l *Limiter) EarlierPolicies() []*policy.Policy { return l.scopes.earlier() }

// PolicyChanged returns a channel that the next call of SetPolicy closes.
func (l *Limiter) PolicyChanged() <-chan struct{} {
	_, changed := l.scopes.current()
	return changed
}

// Request asks for units under every rule on a scope's path.
type Request struct {
	// Scope is the path to spend from, such as payments/acme/refunds. Required.
	Scope string
	// Cost is the number of units that the request takes under each rate rule. A concurrency rule always
	// counts one place. Defaults to 1; to take nothing, use Costs.
	Cost int64
	// Costs is the request's cost by unit, instead of Cost. A rule that counts none of these units is left
	// out of the decision. Defaults to none.
	//
	// If all are 0, as in policy.Costs{policy.Requests: 0}, nothing is taken, no place either, and no
	// limit applies: the request is allowed unless its scope is paused. Decision.Rules then has the state
	// of all rules: Remaining and ResetAfter as they are, Limited and RetryAfter as for one unit. Costs
	// one round trip, and two if one unit would be denied. Config.Observer and shadow rules get no such
	// request. With a WaiterID it is an error.
	Costs policy.Costs
	// ID is the attempt id. A request that is repeated with the same Scope and ID within half a minute is
	// not charged again: it is answered with the first grant. 1 to 128 bytes; use a new one for each
	// attempt. Defaults to a random one.
	ID string
	// MaxDelay is how far ahead a start may be granted, at most MaxDelayLimit. The charge counts at that
	// start, and the caller must wait for Decision.Wait. Defaults to 0: the start is now, or the request
	// is denied.
	MaxDelay time.Duration
	// Turn lets the request wait in a queue, see [Waitlist]. Defaults to none: a denied request is not
	// remembered.
	Turn Turn
	// OnWait is called by Start and Wait before they wait for a granted start, with the time until it. The
	// function it returns is called when that wait is over. Defaults to none.
	OnWait func(ahead time.Duration) (over func())
	// BeforeStart is called by Start once, about a round trip before a granted start comes: it does what
	// must be done before the run may begin. The start waits for it. A start that is late by then is decided
	// again without another call. If Start returns no allowed decision, the caller undoes what was done.
	// Defaults to none.
	BeforeStart func()

	slot     *slot    // of an ID that the Limiter drew and asks for again
	once     bool     // nobody asks again for the ID, which the Limiter drew
	standing standing // of the waiter
	late     lateness // of the start before this one
	renewed  bool     // it is asked again, since the plan was stale
	missed   int      // how often it was granted a start at which other rules hold
}

// Allow takes one unit from scope if all rules admit it now. It is Decide with a Request of that
// scope.
func (l *Limiter) Allow(ctx context.Context, scope string) (Decision, error) {
	return l.Decide(ctx, Request{Scope: scope})
}

// Decide takes req's cost under all rules on its scope's path if all of them admit it, and otherwise
// takes nothing.
//
// A denial is a Decision, never an error, and changes nothing. An error means that nothing was
// decided: *policy.ScopeError, *policy.UnmatchedError, *policy.AppError or *policy.CostError, which no
// wait will mend; ctx's own error; or one that wraps ErrUnavailable. Units that a cancelled call may
// have taken are given back. Costs one round trip, shared with other callers where possible, or none
// if the units are prefetched, see policy.Rule.Prefetch.
func (l *Limiter) Decide(ctx context.Context, req Request) (d Decision, err error) {
	err = l.decideOnly(ctx, req, &d)
	if d.under != nil && len(d.under.shadows) > 0 {
		l.evaluateShadows(&d, &req, d.Wait)
	}
	d.under = nil
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
	switch {
	case p.plain() && len(req.Costs) == 0:
	case len(p.bounds) == 0:
		d.Allowed, d.Binding, d.under = true, -1, p
		return nil
	case req.takesNothing():
		*d, err = l.decideNothing(ctx, p, &req)
		return err
	case p.stocks(&req):
		return l.fromStock(ctx, p, &req, d)
	}
	return l.decide(ctx, p, &req, d)
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
	if len(req.Costs) > 0 && req.takesNothing() {
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
	if req.Turn != (Turn{}) {
		if err := req.checkTicket(); err != nil {
			return nil, err
		}
	}
	if req.MaxDelay != 0 || req.late.leeway != 0 {
		l.boundDelay(p, req)
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

// boundDelay has a start be asked for no further ahead than one may be, and notes how far that was.
func (l *Limiter) boundDelay(p *compiledScope, req *Request) {
	req.MaxDelay = p.reach(min(max(req.MaxDelay, 0), MaxDelayLimit), l.serverTime)
	req.MaxDelay = min(req.MaxDelay, MaxDelayLimit-req.late.leeway)
	if reach := int64(req.MaxDelay + req.late.leeway); reach > l.ahead.Load() {
		l.ahead.Store(reach) // of two at once either will do
	}
}

// decide sends the attempt that a request is by now, and makes the decision of what becomes of it.
func (l *Limiter) decide(ctx context.Context, p *compiledScope, req *Request, d *Decision) error {
	a := l.attempt(p, req)
	c := a.call()
	reply, err := l.runner.run(ctx, c)
	if err != nil && req.Turn.WaiterID != "" && l.repaired(ctx, p.scope.Provider(), []string{p.scope.String()}, err) {
		reply, err = l.runner.run(ctx, c)
	}
	replied := time.Now()
	req.slot.answered(a, err)
	if err == nil {
		err = l.answered(ctx, a, reply, replied, d)
		d.leeway = req.late.leeway
		if !p.plain() {
			if again, err := l.decideAgain(ctx, p, req, d, err == nil); again {
				return err
			}
		}
	} else {
		*d, err = l.withoutRedis(ctx, p, req, err)
	}
	l.observe(ctx, d, replied.Sub(a.sent), err)
	return err
}

// observe reports a decision to the Observer, if there is one.
func (l *Limiter) observe(ctx context.Context, d *Decision, took time.Duration, err error) {
	if l.cfg.Observer != nil {
		l.cfg.Observer.Decided(ctx, *d, took, err)
	}
}

// answered reads the reply to an attempt, and what it tells of the server.
func (l *Limiter) answered(ctx context.Context, a *attempt, reply []int64, replied time.Time, d *Decision) error {
	p := a.plan
	a.replied = replied
	a.answered()
	if l.outage.on.Load() {
		l.outage.over(p)
	}
	err := a.answer(ctx, reply, d)
	d.under = p
	if d.Paused {
		l.deniedByPause(p)
	}
	d.begins = p.clock(&l.skews).begins(a.sent, replied, time.UnixMicro(reply[2]), d.Wait-d.overdue)
	if d.Grant.probe {
		l.reports.probe(p, d.begins)
	}
	if p.stock != nil && err == nil {
		p.stock.saw(d)
	}
	return err
}

// decideAgain decides once more what was decided under the rules of another time, or denied though the stock of this process
// has units. It says whether that was so.
func (l *Limiter) decideAgain(ctx context.Context, p *compiledScope, req *Request, d *Decision, read bool) (again bool, err error) {
	if fresh := l.renewed(p, d); fresh != nil && !req.renewed {
		req.renewed, *d = true, Decision{}
		return true, l.decide(ctx, fresh, req, d)
	}
	if p.stock != nil && read && !d.Allowed && req.Turn.WaiterID == "" && !req.renewed {
		if gone := p.stock.empty(); len(gone) > 0 { // it may be what the stock holds that is missing
			l.giveBackDraws(gone)
			req.renewed, *d = true, Decision{}
			return true, l.decide(ctx, p, req, d)
		}
	}
	if p.misses(d) {
		return true, l.retryInWindow(ctx, p, req, d)
	}
	return false, nil
}

// Peek returns what Decide would answer now, and changes nothing. Its errors and cost are those of
// Decide, but it always returns an error while Redis is unavailable.
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

// NewID returns a random attempt id: 96 bits in 16 letters.
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
