package throttle

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Shadowed is the answer of a shadow rule to one start that was granted without it.
type Shadowed struct {
	// RuleState is the rule's state. Limited says that it would have delayed the start, and RetryAfter for
	// how long. Without an answer it only identifies the rule.
	RuleState
	// Outcome says whether the rule answered, and what.
	Outcome ShadowOutcome
	// Cost is the start's cost, in the rule's unit.
	Cost int64
}

// ShadowOutcome is the outcome of asking a shadow rule about a start.
type ShadowOutcome string

// Outcomes of asking a shadow rule about a start.
const (
	// ShadowAllowed means that the rule would have admitted the start, and was charged.
	ShadowAllowed ShadowOutcome = "allowed"
	// ShadowDenied means that the rule would have delayed the start.
	ShadowDenied ShadowOutcome = "denied"
	// ShadowDropped means that the rule was not asked, since too many calls to shadow rules were in
	// flight.
	ShadowDropped ShadowOutcome = "dropped"
	// ShadowFailed means that Redis did not answer.
	ShadowFailed ShadowOutcome = "error"
)

// A slow Redis costs the count, not memory: so many questions are on their way at once, and
// so many calls when what was granted is given back or has ended.
const (
	mostShadows    = 256
	mostShadowEnds = 4 * mostShadows
)

// shadows asks shadow rules about the starts of a Limiter. Its own calls go out by a
// runner of their own: those of others never wait for them.
type shadows struct {
	l      *Limiter
	tell   func(Shadowed)
	log    *slog.Logger
	out    atomic.Int64
	failed atomic.Bool
	sums   shadowSums
}

func newShadows(l *Limiter, cfg Config) *shadows {
	beside := &Limiter{
		cfg: Config{Prefix: cfg.Prefix, StartTolerance: cfg.StartTolerance, Timeout: cfg.Timeout}, scopes: l.scopes, clocks: l.clocks, rdb: l.rdb,
		outage: newOutage(slog.New(slog.DiscardHandler)), list: l.list, clock: func() string { return l.clock() },
	}
	beside.sender = newSender(beside)
	s := &shadows{l: beside, tell: cfg.OnShadow, log: cfg.Logger}
	s.sums.log = cfg.Logger
	return s
}

// shadowRule is a shadow rule that a scope meets.
type shadowRule struct {
	of    *plan
	bound policy.MatchedRule
	alone atomic.Pointer[plan] // of the rule alone
}

// plan returns the plan of the rule alone, for a time of the server's clock.
func (r *shadowRule) plan(at time.Time) *plan {
	if p := r.alone.Load(); p != nil && p.Holds(at.UnixMicro()) {
		return p
	}
	p := r.of.limiter.scopes.Alone(r.of.Scope.Scope, r.bound, at).Attached.(*plan) //nolint:forcetypeassert // see newPlan
	p.alone = r
	r.alone.Store(p)
	return p
}

// shadow is what the shadow rules have taken for one start. A nil shadow is none.
type shadow struct {
	of *shadows

	mu     sync.Mutex
	gone   bool        // given back
	held   bool        // a run holds its places
	over   bool        // and has ended
	due    *time.Timer // asks when a start ahead has come
	grants []Grant
	leases []*Lease
}

// evaluateShadows has the shadow rules asked about a start that was granted, in the background, when
// it has come.
func (l *Limiter) evaluateShadows(d *Decision, req *Request, in time.Duration) {
	p := d.under
	d.under = nil
	if p != nil && len(p.shadows) > 0 && d.Allowed && !d.Degraded {
		l.askBeside(p, d, *req, in)
	}
}

func (l *Limiter) askBeside(p *plan, d *Decision, req Request, in time.Duration) {
	s := &shadow{of: l.shadows}
	d.Grant.shadow = s
	if req.Cost == 0 {
		req.Cost = defaultCost
	}
	ask := func() {
		for _, r := range p.shadows {
			own := Request{Scope: req.Scope, Cost: req.Cost, Costs: req.Costs}
			if req.ID != "" {
				own.ID = shadowID(req, r)
			}
			if !l.shadows.background(mostShadows, func() { s.ask(r, own) }) {
				l.shadows.heard(r, own, Decision{}, ShadowDropped)
			}
		}
	}
	if in <= 0 {
		ask()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.AfterFunc(in, ask)
}

// shadowID is the attempt id of a rule: the same for an attempt that is sent again.
func shadowID(req Request, r *shadowRule) string {
	sum := sha256.Sum256([]byte(req.ID + "\x00" + req.Scope + "\x00" + r.bound.Scope.String() + "\x00" + r.bound.Rule.Name))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// background does something beside, unless so much is being done.
func (s *shadows) background(most int64, do func()) bool {
	if s.out.Add(1) > most {
		s.out.Add(-1)
		return false
	}
	go func() {
		defer s.out.Add(-1)
		do()
	}()
	return true
}

func (s *shadow) ask(r *shadowRule, req Request) {
	d, err := s.of.decide(r, req)
	switch {
	case err != nil:
		if !s.of.failed.Swap(true) {
			s.of.log.Warn("cannot evaluate shadow rules; enforced limits are not affected", "error", err)
		}
		s.of.heard(r, req, d, ShadowFailed)
		return
	case d.Allowed:
		s.of.heard(r, req, d, ShadowAllowed)
		s.took(d.Grant)
	case len(d.Rules) > 0:
		s.of.heard(r, req, d, ShadowDenied)
	}
	s.of.failed.Store(false)
}

// decide asks a rule, and again if its plan was that of another time.
func (s *shadows) decide(r *shadowRule, req Request) (d Decision, err error) {
	at := s.l.serverTime(r.of.Prefix)
	for range planTries {
		p := r.plan(at)
		if len(p.Rules) == 0 {
			return Decision{}, nil // it does not apply now
		}
		a := p.ask(&req)
		if err := s.l.sender.decide(context.Background(), a); err != nil {
			return Decision{}, err
		}
		p.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
		if a.answer.Status != wire.Outdated {
			if p.read(a, &d); d.Allowed {
				d.Grant = a.grant()
			}
			return d, nil
		}
		at = time.UnixMicro(a.now)
	}
	return Decision{}, errReply
}

// heard counts what a rule said.
func (s *shadows) heard(r *shadowRule, req Request, d Decision, outcome ShadowOutcome) {
	b := r.bound
	cost := req.price().under(b.Rule)
	told := Shadowed{Outcome: outcome, Cost: cost, RuleState: RuleState{RuleInfo: &RuleInfo{
		Scope: b.Scope.String(), Rule: b.Rule.Name, Pattern: b.Pattern, Algorithm: b.Rule.Algorithm,
	}}}
	if len(d.Rules) > 0 {
		told.RuleState = d.Rules[0]
		told.Limited, told.RetryAfter = !d.Allowed, d.RetryAfter
		s.sums.add(told)
	}
	if s.tell != nil {
		s.tell(told)
	}
}

// took notes a grant of a shadow rule's. It may come when the real one is over.
func (s *shadow) took(g Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		s.of.undo(g)
	case s.over:
		_, lease := s.of.l.Lease(context.Background(), g)
		s.of.free(lease)
	default:
		s.grants = append(s.grants, g)
		if s.held {
			s.lease(g)
		}
	}
}

// lease keeps the place of a concurrency rule. It does not matter to the run whether it is
// lost. s.mu is held.
func (s *shadow) lease(g Grant) {
	_, lease := s.of.l.Lease(context.Background(), g)
	s.leases = append(s.leases, lease)
}

func (s *shadows) undo(g Grant) {
	s.background(mostShadowEnds, func() { _ = s.l.Refund(context.Background(), g) }) // or it stays spent, which harms nobody
}

// free frees a place; one that could not be freed is free when its lease ends.
func (s *shadows) free(lease *Lease) {
	if lease.limiter == nil {
		return
	}
	lease.end(context.Canceled)
	s.background(mostShadowEnds, func() { _ = lease.Release(context.Background()) })
}

// hold keeps the places while a run lasts.
func (s *shadow) hold() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held || s.gone || s.over {
		return
	}
	s.held = true
	for _, g := range s.grants {
		s.lease(g)
	}
}

// release frees the places of a run that has ended.
func (s *shadow) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.freeAll()
}

// giveBack gives back what was taken, and what will have been.
func (s *shadow) giveBack() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	s.gone = true
	if s.due != nil {
		s.due.Stop()
	}
	s.freeAll()
	for _, g := range s.grants {
		s.of.undo(g)
	}
}

func (s *shadow) freeAll() {
	for _, lease := range s.leases {
		s.of.free(lease)
	}
	s.leases = nil
}

// PeekShadows returns the state of each shadow rule of a scope, for one unit now. It changes nothing.
// Its errors are those of Peek. Costs one round trip for each shadow rule.
func (l *Limiter) PeekShadows(ctx context.Context, scope string) ([]RuleState, error) {
	p, err := l.plan(scope)
	if err != nil {
		return nil, err
	}
	var states []RuleState
	for _, r := range p.shadows {
		own := r.plan(l.serverTime(p.Prefix))
		if len(own.Rules) == 0 {
			continue // it does not apply now
		}
		d, _, err := l.peek(ctx, own, &Request{Scope: scope, Cost: defaultCost})
		if err != nil {
			return nil, err
		}
		states = append(states, d.Rules...)
	}
	return states, nil
}

// shadowSums tells, at most once a minute for each rule, how many starts it would have
// made wait.
type shadowSums struct {
	log *slog.Logger

	mu    sync.Mutex
	rules map[ruleAt]*shadowSum
}

// ruleAt is a rule by where the policy has it, which holds no name that a task brought.
type ruleAt struct{ pattern, name string }

type shadowSum struct {
	starts, waits int64
	longest       time.Duration
}

const (
	shadowLogEvery = time.Minute
	mostShadowSums = 1000
)

// add begins to count with the first start that would have waited.
func (s *shadowSums) add(one Shadowed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := ruleAt{one.Pattern, one.Rule}
	sum := s.rules[at]
	if sum == nil {
		if !one.Limited || len(s.rules) >= mostShadowSums || !s.log.Enabled(context.Background(), slog.LevelInfo) {
			return
		}
		if s.rules == nil {
			s.rules = map[ruleAt]*shadowSum{}
		}
		sum = &shadowSum{}
		s.rules[at] = sum
		time.AfterFunc(shadowLogEvery, func() { s.flush(at) })
	}
	sum.starts++
	if one.Limited {
		sum.waits++
		sum.longest = max(sum.longest, one.RetryAfter)
	}
}

func (s *shadowSums) flush(at ruleAt) {
	s.mu.Lock()
	sum := s.rules[at]
	delete(s.rules, at)
	s.mu.Unlock()
	longest := sum.longest.String()
	if sum.longest == Never {
		longest = "no clock tells"
	}
	s.log.Info("shadow rule would have delayed tasks", "rule", at.pattern+":"+at.name,
		"starts", sum.starts, "would_have_waited", sum.waits, "longest", longest, "within", shadowLogEvery)
}
