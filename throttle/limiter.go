package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/answers"
	"github.com/headway-go/headway/internal/outage"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Limiter decides under one policy, with its state in Redis. Any number of limiters, in any number of processes, share their limits if they
// share the Redis and the names in the policy. It is safe for concurrent use.
//
// Most callers want Limiter.Wait, or package worker, which waits without holding a goroutine.
// Limiter.Allow is for callers that reject work instead of waiting. Limiter.Peek only looks.
type Limiter struct {
	cfg     Config
	scopes  *wire.Scopes
	clocks  *wire.Clocks
	rdb     redis.UniversalClient
	sender  *sender
	outage  *outage.Outage
	reports *answers.Reporter
	members atomic.Int64 // processes that share the limits, as last seen; 0 if none ever was
	lates   lates
	shadows *shadows
	ahead   atomic.Int64  // the furthest start ever asked for
	clock   func() string // what scripts get for the time: "", or a test's own
	list    *waitlist.List
}

// New returns a Limiter that keeps its state in rdb: a single server, Sentinel, Cluster or Ring client. It does no I/O, and the caller
// still has to close rdb. The error names each invalid field of cfg.
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
	l := &Limiter{
		cfg:    cfg,
		clocks: &wire.Clocks{},
		rdb:    rdb,
		outage: outage.New(cfg.Logger),
		clock:  func() string { return "" },
	}
	l.sender = newSender(l)
	l.scopes = wire.NewScopes(policy, wire.Compiler{Base: cfg.Prefix, Tolerance: cfg.StartTolerance}, l.serverTime, l.newPlan)
	l.list = waitlist.New(waitlist.Config{
		Redis: rdb, Scopes: l.scopes, Clocks: l.clocks, Base: cfg.Prefix, Timeout: cfg.Timeout, Logger: cfg.Logger,
		Clock: func() string { return l.clock() }, ID: l.sender.records.client,
	})
	l.reports = l.newReporter()
	l.shadows = &shadows{l: l, sender: newSender(l), tell: cfg.OnShadow, sums: map[ruleAt]*shadowSum{}}
	return l, nil
}

// Waitlist returns the waiters of l's limits, for packages queue and worker. It does no I/O.
func (l *Limiter) Waitlist() *waitlist.List { return l.list }

// Policy returns the policy that the limiter decides under. It does no I/O.
func (l *Limiter) Policy() *policy.Policy {
	policy, _ := l.scopes.Policy()
	return policy
}

// SetPolicy replaces the policy that the limiter decides under. Spent units stay spent under rules of the same name at the same level,
// whatever else of them has changed. A decision in flight may still be made under the previous policy. Package worker applies the new
// policy to waiting tasks at once. It changes this limiter only: package policystore distributes a policy to all processes. It does no I/O;
// it visits each rule, and scopes are compiled again when they are next used. A nil policy changes nothing.
// Source: docs/algorithms.md#changing-a-limit
func (l *Limiter) SetPolicy(policy *policy.Policy) {
	if policy != nil {
		l.scopes.Set(policy)
	}
}

// EarlierPolicies returns the limiter's previous policies, the latest last: 16 at most. It does no I/O.
func (l *Limiter) EarlierPolicies() []*policy.Policy { return l.scopes.Earlier() }

// PolicyChanged returns a channel that the next call of SetPolicy closes.
func (l *Limiter) PolicyChanged() <-chan struct{} {
	_, changed := l.scopes.Policy()
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
	// one round trip. Config.Observer and shadow rules get no such request. With a WaiterID it is an error.
	Costs policy.Costs
	// ID is the attempt id. A request that is repeated with the same Scope and ID within half a minute is not charged again: it is answered
	// with the first grant. 1 to 128 bytes; use a new one for each attempt. Defaults to a random one.
	ID string
	// MaxDelay is how far ahead a start may be granted, at most MaxDelayLimit. The charge counts at that start, and the caller must wait
	// for Decision.Wait. Defaults to 0: the start is now, or the request is denied.
	MaxDelay time.Duration
	// Waiter makes the request one of a task that can wait for a turn; see package worker. It overtakes no task that waits for
	// what its scope shares: it is then denied, with Decision.Joins. Defaults to none.
	Waiter Waiter
	// OnWait is called by Start and Wait before they wait for a granted start, with the time until it. The
	// function it returns is called when that wait is over. Defaults to none.
	OnWait func(ahead time.Duration) (over func())
	// BeforeStart is called by Start once, about a round trip before a granted start comes: it does what must be done before the run may
	// begin. The start waits for it. A start that is late by then is decided again without another call. If Start returns no allowed
	// decision, the caller undoes what was done. Defaults to none.
	BeforeStart func()

	late   lateness // of the start before this one
	missed string   // the grant that a task came too late for, as scripts have it
}

// Waiter is a task that can wait.
type Waiter struct {
	// Queue is its asynq queue and ID its id there, at most 1024 bytes.
	Queue, ID string
	// MaxDelay is Request.MaxDelay for a task that was not granted a start before. At most that.
	MaxDelay time.Duration
	// Granted is what it was granted by dispatch. Start uses it without asking Redis if the run can begin in time, and returns it
	// with Decision.Handed. Defaults to none.
	Granted *waitlist.Granted
}

// Check returns the error of Policy.Check, or of CheckCosts if Costs are set, for the request; or a *ScopeError. It does no I/O.
func (r Request) Check(p *policy.Policy) error {
	scope, err := policy.ParseScope(r.Scope)
	if err != nil {
		return err
	}
	if len(r.Costs) > 0 {
		return p.CheckCosts(scope, r.Costs)
	}
	return p.Check(scope, max(r.Cost, defaultCost))
}

// Allow takes one unit from scope if all rules admit it now. It is Decide with a Request of that scope.
func (l *Limiter) Allow(ctx context.Context, scope string) (Decision, error) {
	return l.Decide(ctx, Request{Scope: scope})
}

// Decide takes req's cost under all rules on its scope's path if all of them admit it, and otherwise takes nothing.
//
// A denial is a Decision, never an error, and changes nothing. An error means that nothing was decided: *policy.ScopeError,
// *policy.UnmatchedError, *policy.AppError or *policy.CostError, which no wait will mend; ctx's own error; or one that wraps
// ErrUnavailable. Units that a cancelled call may have taken are given back. Costs one round trip, shared with other callers where
// possible.
func (l *Limiter) Decide(ctx context.Context, req Request) (d Decision, err error) {
	err = l.decideOnly(ctx, &req, &d)
	l.evaluateShadows(&d, &req, d.Wait)
	if l.cfg.OnSpent != nil && d.Allowed {
		l.reportSpent(&d, &req)
	}
	return d, err
}

// decideOnly is Decide without shadow rules. It fills a decision that is empty.
func (l *Limiter) decideOnly(ctx context.Context, req *Request, d *Decision) error {
	p, err := l.prepare(req)
	if err != nil {
		return err
	}
	if err := wire.Ended(ctx); err != nil {
		return err
	}
	if len(p.All) == len(p.Shadows) {
		d.Allowed, d.Binding, d.under = true, -1, p
		return nil
	}
	return l.decide(ctx, p, req, d)
}

// prepare fills in what req leaves out and refuses what can never be granted.
func (l *Limiter) prepare(req *Request) (*plan, error) {
	p, err := l.plan(req.Scope)
	if err != nil {
		return nil, err
	}
	if p.refusal != nil {
		return nil, p.refusal
	}
	switch {
	case len(req.Costs) > 0:
		err = p.checkCosts(req.Costs)
		if req.takesNothing() {
			err = req.Costs.CheckUnits()
		}
	case req.Cost == 0:
		req.Cost = defaultCost
		fallthrough
	default:
		err = p.check(req.Cost)
	}
	if err != nil {
		return nil, err
	}
	if len(req.ID) > maxIDBytes {
		return nil, fmt.Errorf("throttle: Request.ID is %d bytes long; the most is %d", len(req.ID), maxIDBytes)
	}
	if len(req.Waiter.ID) > maxWaiterBytes {
		return nil, fmt.Errorf("throttle: Request.Waiter.ID is %d bytes long; the most is %d", len(req.Waiter.ID), maxWaiterBytes)
	}
	if req.MaxDelay != 0 || req.late.leeway != 0 {
		l.boundDelay(req)
	}
	return p, nil
}

// takesNothing reports whether a request asks for 0 units, in so many words.
func (r *Request) takesNothing() bool { return r.Waiter.ID == "" && r.Costs.Zero() }

func (r *Request) price() price { return price{each: r.Cost, costs: r.Costs} }

// boundDelay bounds how far ahead a start is asked for, and notes how far that was.
func (l *Limiter) boundDelay(req *Request) {
	req.MaxDelay = min(max(req.MaxDelay, 0), MaxDelayLimit-req.late.leeway)
	if reach := int64(req.MaxDelay + req.late.leeway); reach > l.ahead.Load() {
		l.ahead.Store(reach) // of two at once either will do
	}
}

// ask is the attempt that a request is by now.
func (p *plan) ask(req *Request) *ask {
	a := &ask{plan: p, Attempt: wire.Attempt{
		Scope: p.Path, Text: p.Text, Ahead: req.MaxDelay.Microseconds(), From: req.late.from.Microseconds(), Leeway: req.late.leeway.Microseconds(),
		Cost: req.Cost, Costs: req.price().text(), Peek: req.takesNothing(),
	}, price: req.price()}
	if len(req.Costs) > 0 {
		a.Cost = 0
	}
	switch {
	case req.Waiter.ID != "":
		a.Waiter, a.Missed = wire.Waiter(req.Waiter.Queue, req.Waiter.ID), req.missed
		if req.late == (lateness{}) && req.missed == "" {
			a.Ahead = min(a.Ahead, req.Waiter.MaxDelay.Microseconds())
		}
	case req.ID != "":
		a.ID = p.attemptID(req.ID)
	}
	return a
}

// maxWaiterBytes bounds the id of a waiter or a kept grant.
const maxWaiterBytes = 1024

// planTries is how often a request is decided anew since the rules of another time apply.
const planTries = 3

// send has the attempt decided that a request is by now, and decided anew if the rules of another time apply. A nil ask says that the
// scope has no rules any more.
func (l *Limiter) send(ctx context.Context, by *sender, p *plan, req *Request, peek bool) (a *ask, err error) {
	for range planTries {
		a = p.ask(req)
		if peek {
			a.Peek, a.Waiter, a.ID = true, "", ""
		}
		if err = by.decide(ctx, a); err != nil || a.answer.Status != wire.Outdated {
			return a, err
		}
		p.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
		if p, err = p.fresh(a.now); err != nil {
			return nil, err
		}
	}
	return a, fmt.Errorf("rules change while they are asked: %w", wire.ErrReply)
}

// decide has a request decided.
func (l *Limiter) decide(ctx context.Context, p *plan, req *Request, d *Decision) error {
	a, err := l.send(ctx, l.sender, p, req, false)
	if a == nil {
		return err
	}
	if p = a.plan; err != nil {
		*d, err = l.withoutRedis(ctx, p, req, err)
	} else {
		err = l.answered(ctx, a, d)
		d.leeway, d.Grant.leeway = req.late.leeway, req.late.leeway
	}
	l.observe(ctx, d, a.replied.Sub(a.sent), err)
	return err
}

// observe reports a decision to the Observer, if there is one.
func (l *Limiter) observe(ctx context.Context, d *Decision, took time.Duration, err error) {
	if l.cfg.Observer != nil {
		l.cfg.Observer.Decided(ctx, *d, max(0, took), err)
	}
}

// answered reads the answer to an attempt, and what it tells of the server. A grant to a caller that has gone goes back.
func (l *Limiter) answered(ctx context.Context, a *ask, d *Decision) error {
	p := a.plan
	if l.outage.On() {
		l.outage.Decided(p.Scope)
	}
	if dead := wire.Ended(ctx); dead != nil {
		go l.orphan(a)
		d.Binding = -1
		return dead
	}
	p.read(a, d)
	d.under = p
	p.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
	d.begins = p.clock.ToLocal(time.UnixMicro(a.now).Add(d.Wait - d.overdue))
	if d.Allowed && !a.Peek {
		d.Grant = a.grant()
	}
	if d.Paused {
		l.reports.Denied(p.Scope)
	}
	if d.Grant.probe {
		l.reports.Probe(p.Scope, d.begins)
	}
	return nil
}

// orphan gives back what was granted to a caller that has gone. If that fails, units come back by the clock.
func (l *Limiter) orphan(a *ask) {
	switch a.answer.Status {
	case wire.Allowed, wire.Claimed:
		_ = l.Refund(context.Background(), a.grant())
	}
}

// Peek returns what Decide would answer now, and changes nothing. Its errors and cost are those of
// Decide, but it always returns an error while Redis is unavailable.
func (l *Limiter) Peek(ctx context.Context, req Request) (d Decision, err error) {
	p, err := l.prepare(&req)
	if err != nil {
		return Decision{}, err
	}
	d, _, err = l.peek(ctx, p, &req)
	return d, err
}

// peek is Peek, and returns the plan that has answered.
func (l *Limiter) peek(ctx context.Context, p *plan, req *Request) (d Decision, _ *plan, err error) {
	if len(p.All) == len(p.Shadows) {
		return Decision{Allowed: true, Binding: -1}, p, nil
	}
	a, err := l.send(ctx, l.sender, p, req, true)
	switch {
	case a == nil:
		return d, p, err
	case err != nil:
		return d, p, wire.Unavailable(ctx, "peek at", req.Scope, err)
	}
	p = a.plan
	p.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
	p.read(a, &d)
	return d, p, nil
}

// serverTime is what the clock of a provider's server shows, as far as its replies have told. It is late by the shortest delay of
// a reply. prefix is that of the provider's keys.
func (l *Limiter) serverTime(prefix string) time.Time {
	if text := l.clock(); text != "" { // a test's own
		now, _ := strconv.ParseInt(text, 10, 64)
		return time.UnixMicro(now)
	}
	return l.clocks.Of(prefix).ToServer(time.Now())
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
