package throttle

import (
	"context"
	"time"

	"github.com/headway-go/headway/internal/wire"
)

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
