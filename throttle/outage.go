package throttle

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// outage is what a limiter knows while Redis does not answer: since when, and
// what this process has spent of its shares meanwhile.
type outage struct {
	logger *slog.Logger

	mu     sync.Mutex
	since  time.Time // zero while Redis answers
	shares map[string]*share
}

func newOutage(logger *slog.Logger) *outage {
	return &outage{logger: logger}
}

// began notes that Redis did not answer, and tells it once.
func (o *outage) began(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since, o.shares = time.Now(), map[string]*share{}
		o.logger.Warn("redis does not decide; the rules' failure policies do", "error", err)
	}
}

// over notes that Redis answered.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		o.logger.Info("redis decides again", "outage", time.Since(o.since).Round(time.Millisecond))
		o.since, o.shares = time.Time{}, nil
	}
}

// withoutRedis decides by the rules' failure policies: closed refuses to decide,
// open does not count, share counts in this process. A closed rule on the path
// outweighs the others, and the answer always says that it is degraded.
func (l *Limiter) withoutRedis(ctx context.Context, p *plan, req Request, cause error) (Decision, error) {
	none := Decision{Binding: -1}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	l.outage.began(cause)
	live := l.members.live()
	for _, b := range p.bounds {
		if b.Rule.OnRedisError == FailClosed || b.Rule.OnRedisError == FailShare && live == 0 {
			return none, unavailable(ctx, "decide for", req.Scope, cause)
		}
	}
	d := l.outage.decide(p, req, live, time.Now())
	d.Degraded = true
	return d, nil
}

// decide grants req from this process's shares, under all of them or none.
func (o *outage) decide(p *plan, req Request, live int64, now time.Time) Decision {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := Decision{Allowed: true, Binding: -1, At: now, Rules: make([]RuleState, len(p.bounds))}
	shares := make([]*share, len(p.bounds))
	for i, b := range p.bounds {
		d.Rules[i] = RuleState{
			Scope: b.Scope.String(), Rule: b.Rule.Name, Pattern: b.Pattern,
			Algorithm: b.Rule.Algorithm, Limit: b.Rule.Capacity(), Remaining: b.Rule.Capacity(),
		}
		if b.Rule.OnRedisError != FailShare {
			continue
		}
		shares[i] = o.share(p.keys[i], b.Rule, live)
		at := shares[i].fit(now, req.Cost)
		state := &d.Rules[i]
		state.Limit = shares[i].capacity
		state.Limited, state.RetryAfter = at > 0, at
		if at > d.RetryAfter || d.Binding < 0 && at > 0 {
			d.Allowed, d.RetryAfter, d.Binding = false, at, i
		}
	}
	if !d.Allowed {
		return d
	}
	for i, s := range shares {
		if s != nil {
			s.take(now, req.ID, req.Cost)
			d.Rules[i].Remaining = s.left(now)
		}
	}
	d.Binding = fewestLeft(d.Rules)
	d.Grant = Grant{scope: req.Scope, id: req.ID, cost: req.Cost, local: true}
	return d
}

// maxShares bounds what an outage remembers; past it the oldest knowledge is
// dropped and begins anew as fully spent, which is safe.
const maxShares = 10_000

func (o *outage) share(key string, r Rule, live int64) *share {
	if o.since.IsZero() {
		o.since, o.shares = time.Now(), map[string]*share{}
	}
	s := o.shares[key]
	if s == nil {
		if len(o.shares) >= maxShares {
			clear(o.shares)
		}
		s = newShare(r, live, time.Now())
		o.shares[key] = s
	}
	return s
}

// giveBack frees the places that a grant of this outage holds; its units are few
// and stay spent.
func (o *outage) giveBack(p *plan, g Grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range p.leases {
		if s := o.shares[p.keys[i]]; s != nil {
			delete(s.held, g.id)
		}
	}
}
