package throttle

import (
	"context"
	"errors"
	"fmt"
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

// Limiter decides under one policy, with its state in Redis. Limiters in any number of processes share their limits if they share
// the Redis and the names in the policy. It is safe for concurrent use.
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
	tiers   *tiers // nil without Config.TierOf
}

// New returns a Limiter that keeps its state in rdb: a single server, Sentinel, Cluster or Ring client. It does no I/O, and the
// caller still has to close rdb. The error names each invalid field of cfg.
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
	l.tiers = newTiers(l)
	l.scopes = wire.NewScopes(l.withTiers(policy), wire.Compiler{Base: cfg.Prefix, Tolerance: cfg.StartTolerance}, l.serverTime, l.newPlan)
	if l.tiers != nil {
		l.scopes.Touch = l.tiers.touch
	}
	l.list = waitlist.New(waitlist.Config{
		Redis: rdb, Scopes: l.scopes, Clocks: l.clocks, Base: cfg.Prefix, Timeout: cfg.Timeout, Logger: cfg.Logger,
		Clock: func() string { return l.clock() }, ID: l.sender.records.client,
	})
	l.reports = l.newReporter()
	l.shadows = &shadows{l: l, sender: newSender(l), onShadow: cfg.OnShadow, sums: map[ruleAt]*shadowSum{}}
	return l, nil
}

// Waitlist returns the waiters of l's limits, for packages queue and worker. It does no I/O.
func (l *Limiter) Waitlist() *waitlist.List { return l.list }

// Policy returns the policy that the limiter decides under. It does no I/O.
func (l *Limiter) Policy() *policy.Policy {
	policy, _ := l.scopes.Policy()
	return policy
}

// SetPolicy replaces the policy that the limiter decides under. Spent units stay spent under rules of the same name at the same
// level, whatever else of them has changed. A decision in flight may still be made under the previous policy; waiting tasks
// follow the new one at once. It changes this limiter only: package policystore distributes a policy to all processes. It does no
// I/O. A nil policy changes nothing. Source: docs/algorithms.md#changing-a-limit
func (l *Limiter) SetPolicy(policy *policy.Policy) {
	if policy != nil {
		l.scopes.Set(l.withTiers(policy))
	}
}

// withTiers returns a policy with the tiers of names, if it has any.
func (l *Limiter) withTiers(p *policy.Policy) *policy.Policy {
	if l.tiers == nil || !p.Tiered() {
		return p
	}
	return p.WithTiers(l.tiers.tier)
}

// EarlierPolicies returns the limiter's previous policies, the latest last: 16 at most. It does no I/O.
func (l *Limiter) EarlierPolicies() []*policy.Policy { return l.scopes.Earlier() }

// PolicyChanged returns a channel that the next call of SetPolicy closes.
func (l *Limiter) PolicyChanged() <-chan struct{} {
	_, changed := l.scopes.Policy()
	return changed
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
	if p.free() {
		d.Allowed, d.Binding, d.under = true, -1, p
		return nil
	}
	return l.decide(ctx, p, req, d)
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
	if p.free() {
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

// prepare fills in what req leaves out and refuses what can never be granted.
func (l *Limiter) prepare(req *Request) (*plan, error) {
	p, err := l.plan(req.Scope)
	if err != nil {
		return nil, err
	}
	if p.refusal != nil {
		return nil, p.refusal
	}
	if req.Cost == 0 && len(req.Costs) == 0 {
		req.Cost = defaultCost
	}
	if err := p.check(req); err != nil {
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

// plan returns the plan of a scope. The error is a *policy.ScopeError or *policy.UnmatchedError.
func (l *Limiter) plan(scope string) (*plan, error) {
	s, err := l.scopes.Of(scope)
	if err != nil {
		return nil, err
	}
	return s.Attached.(*plan), nil //nolint:forcetypeassert // see newPlan
}

// check caps a cost by unit, and refuses one that no wait could admit.
func (p *plan) check(req *Request) error {
	switch {
	case req.takesNothing():
		return req.Costs.CheckUnits()
	case len(req.Costs) > 0:
		if err := req.Costs.Check(); err != nil {
			return err
		}
		req.Costs = p.Capped(req.Costs)
	case req.Cost < 1:
		return &policy.CostError{Scope: p.Scope.Scope, Cost: req.Cost}
	case req.Cost <= p.Most:
		return nil
	}
	return p.Check(req.price().under)
}

// boundDelay bounds how far ahead a start is asked for, and notes the furthest.
func (l *Limiter) boundDelay(req *Request) {
	req.MaxDelay = min(max(req.MaxDelay, 0), MaxDelayLimit-req.late.leeway)
	if reach := int64(req.MaxDelay + req.late.leeway); reach > l.ahead.Load() {
		l.ahead.Store(reach) // of two at once either will do
	}
}

// ask returns the attempt for a request.
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

// planTries is how often a request is sent while each reply says that the rules of another time apply.
const planTries = 3

// send has a request decided, and decided again if the rules of another time apply. It returns a nil ask if the scope has no
// rules any more.
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

// decide has Redis decide a request, or the rules' failure policies.
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

// answered reads the answer to an attempt. A grant to a caller that has gone is refunded.
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

// orphan refunds what was granted to a caller that has gone. If that fails, the units come back by the clock.
func (l *Limiter) orphan(a *ask) {
	if a.answer.Status == wire.Allowed || a.answer.Status == wire.Claimed {
		_ = l.Refund(context.Background(), a.grant())
	}
}

// serverTime is ServerNow for the prefix of a provider's keys.
func (l *Limiter) serverTime(prefix string) time.Time {
	if text := l.clock(); text != "" { // a test's own
		now, _ := strconv.ParseInt(text, 10, 64)
		return time.UnixMicro(now)
	}
	return l.clocks.Of(prefix).ToServer(time.Now())
}
