package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// takesNothing says that a request asks for 0 units, in so many words, and not for a place in line.
func (r *Request) takesNothing() bool { return r.Turn.WaiterID == "" && r.Costs.Zero() }

// decideNothing decides a request that takes nothing by the failure policies of its rules where Redis does not answer.
func (l *Limiter) decideNothing(ctx context.Context, p *compiledScope, req *Request) (Decision, error) {
	d, err := l.peekNothing(ctx, p, req)
	if !errors.Is(err, ErrUnavailable) {
		return d, err
	}
	l.outage.began(err)
	if l.closed(p, l.members.live()) {
		return Decision{Binding: -1}, err
	}
	return Decision{Allowed: true, Degraded: true, Binding: -1, At: time.Now()}, nil
}

// peekNothing says how things stand, as for one unit, to a request that takes none: what stands in the
// way of that stops it only where it is a pause.
func (l *Limiter) peekNothing(ctx context.Context, p *compiledScope, req *Request) (Decision, error) {
	one := *req
	one.Cost, one.Costs = defaultCost, nil
	d, err := l.peek(ctx, p, one)
	if err != nil || d.Allowed {
		return d, err
	}
	if p, err = l.scopes.of(req.Scope); err != nil {
		return Decision{}, err
	}
	paused, err := l.peek(ctx, l.scopes.counted(p, req.Costs), *req)
	if err != nil || !paused.Allowed {
		return paused, err
	}
	d.Allowed, d.RetryAfter, d.Paused, d.Binding = true, 0, false, fewestLeft(d.Rules)
	return d, nil
}

// closed says that rules of the plan stop everybody while Redis does not decide.
func (l *Limiter) closed(p *compiledScope, live int64) bool {
	for _, b := range p.bounds {
		if b.Rule.OnRedisError == policy.FailClosed || b.Rule.OnRedisError == policy.FailShare && live == 0 {
			return true
		}
	}
	return false
}
