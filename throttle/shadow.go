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
	// RuleState is the rule's state: whether it would have delayed the start, and for how long. Without an answer it only
	// identifies the rule.
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
	ShadowAllowed ShadowOutcome = "allowed" // the rule would have admitted the start, and was charged
	ShadowDenied  ShadowOutcome = "denied"  // the rule would have delayed the start
	ShadowDropped ShadowOutcome = "dropped" // the rule was not asked: too many calls to shadow rules were in flight
	ShadowFailed  ShadowOutcome = "error"   // Redis did not answer
)

// The most calls in flight to ask shadow rules, and for their refunds and releases: a slow Redis costs the count, not memory.
const (
	mostShadows    = 256
	mostShadowEnds = 4 * mostShadows
)

// shadows asks the shadow rules of a Limiter about its starts, by a sender of their own, so that no decision waits for them.
type shadows struct {
	l        *Limiter
	sender   *sender
	onShadow func(Shadowed)
	out      atomic.Int64
	failed   atomic.Bool

	mu   sync.Mutex
	sums map[ruleAt]*shadowSum // since the last line of the log
}

// ruleAt is a rule by its place in the policy, which has no name that a task brought.
type ruleAt struct{ pattern, name string }

type shadowSum struct {
	starts, waits int64
	longest       time.Duration
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

	mu    sync.Mutex
	state shadowState
	due   *time.Timer // asks when a start ahead has come
	taken []shadowGrant
}

type shadowGrant struct {
	Grant
	lease *Lease
}

// shadowState is what became of a start. A later state replaces an earlier one, not the other way.
type shadowState int

const (
	shadowHeld     shadowState = iota + 1 // its run holds places
	shadowReleased                        // its run has ended
	shadowRefunded
)

// evaluateShadows asks the shadow rules about a granted start, in the background, when it has come.
func (l *Limiter) evaluateShadows(d *Decision, req *Request, in time.Duration) {
	p := d.under
	if d.under = nil; p != nil && len(p.shadows) > 0 && d.Allowed && !d.Degraded {
		l.askShadows(p, d, *req, in)
	}
}

func (l *Limiter) askShadows(p *plan, d *Decision, req Request, in time.Duration) {
	s := &shadow{of: l.shadows}
	d.Grant.shadow = s
	ask := func() {
		for _, r := range p.shadows {
			own := Request{Scope: req.Scope, Cost: max(req.Cost, defaultCost), Costs: req.Costs}
			if req.ID != "" { // the same for an attempt that is sent again
				sum := sha256.Sum256([]byte(req.ID + "\x00" + req.Scope + "\x00" + wire.RuleName(r.bound)))
				own.ID = base64.RawURLEncoding.EncodeToString(sum[:12])
			}
			if !l.shadows.background(mostShadows, func() { s.ask(r, own) }) {
				l.shadows.answered(r, own, Decision{}, ShadowDropped)
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

// background does something in a goroutine, unless too many are at work.
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
	l := s.of.l
	p := r.plan(l.serverTime(r.of.Prefix))
	if len(p.Rules) == 0 {
		return // it does not apply now
	}
	a, err := l.send(context.Background(), s.of.sender, p, &req, false)
	if err != nil {
		if !s.of.failed.Swap(true) {
			l.cfg.Logger.Warn("cannot evaluate shadow rules; enforced limits are not affected", "error", err)
		}
		s.of.answered(r, req, Decision{}, ShadowFailed)
		return
	}
	s.of.failed.Store(false)
	a.plan.clock.Observe(a.sent, a.replied, time.UnixMicro(a.now))
	var d Decision
	switch a.plan.read(a, &d); {
	case len(d.Rules) == 0:
	case d.Allowed:
		s.of.answered(r, req, d, ShadowAllowed)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken = append(s.taken, shadowGrant{Grant: a.grant()})
		s.follow(&s.taken[len(s.taken)-1])
	default:
		s.of.answered(r, req, d, ShadowDenied)
	}
}

// answered reports what a rule answered.
func (s *shadows) answered(r *shadowRule, req Request, d Decision, outcome ShadowOutcome) {
	b := r.bound
	shadowed := Shadowed{Outcome: outcome, Cost: req.price().under(b.Rule), RuleState: RuleState{RuleInfo: &RuleInfo{
		Scope: b.Scope.String(), Rule: b.Rule.Name, Pattern: b.Pattern, Algorithm: b.Rule.Algorithm,
	}}}
	if len(d.Rules) > 0 {
		shadowed.RuleState = d.Rules[0]
		shadowed.Limited, shadowed.RetryAfter = !d.Allowed, d.RetryAfter
		s.add(shadowed)
	}
	if s.onShadow != nil {
		s.onShadow(shadowed)
	}
}

// to notes what became of the start, and does the same with what the shadow rules have taken.
func (s *shadow) to(state shadowState) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if state <= s.state {
		return
	}
	s.state = state
	if state == shadowRefunded && s.due != nil {
		s.due.Stop()
	}
	for i := range s.taken {
		s.follow(&s.taken[i])
	}
}

// follow does with a grant of a shadow rule what was done with that of the start. Errors do not matter: a place is free when its
// lease expires, and units that are not refunded stay spent. s.mu is held.
func (s *shadow) follow(g *shadowGrant) {
	ctx := context.Background()
	if s.state > 0 && g.lease == nil {
		_, g.lease = s.of.l.Lease(ctx, g.Grant)
	}
	switch s.state {
	case shadowReleased:
		g.lease.end(context.Canceled)
		s.of.background(mostShadowEnds, func() { _ = g.lease.Release(ctx) })
	case shadowRefunded:
		g.lease.end(context.Canceled)
		s.of.background(mostShadowEnds, func() { _ = s.of.l.Refund(ctx, g.Grant) })
	}
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

const (
	shadowLogEvery = time.Minute
	mostShadowSums = 1000
)

// add counts a start for the log, which has a line a minute for each rule that would have delayed starts.
func (s *shadows) add(shadowed Shadowed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, log := ruleAt{shadowed.Pattern, shadowed.Rule}, s.l.cfg.Logger
	sum := s.sums[at]
	if sum == nil {
		if !shadowed.Limited || len(s.sums) >= mostShadowSums || !log.Enabled(context.Background(), slog.LevelInfo) {
			return
		}
		sum = &shadowSum{}
		s.sums[at] = sum
		time.AfterFunc(shadowLogEvery, func() {
			s.mu.Lock()
			delete(s.sums, at)
			s.mu.Unlock()
			longest := sum.longest.String()
			if sum.longest == Never {
				longest = "unknown"
			}
			log.Info("shadow rule would have delayed tasks", "rule", at.pattern+":"+at.name,
				"starts", sum.starts, "would_have_waited", sum.waits, "longest", longest, "within", shadowLogEvery)
		})
	}
	sum.starts++
	if shadowed.Limited {
		sum.waits++
		sum.longest = max(sum.longest, shadowed.RetryAfter)
	}
}
