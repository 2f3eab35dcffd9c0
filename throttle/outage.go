package throttle

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// outage is what a limiter knows while Redis does not decide: since when, and what this process has spent of its shares meanwhile.
//
// Redis may fail for some keys and answer for others (one shard of a cluster is down, one key holds a foreign value), so a share lasts
// until its own rule is decided by Redis again, and the outage until nothing has failed for a moment.
type outage struct {
	logger *slog.Logger
	on     atomic.Bool

	mu     sync.Mutex
	since  time.Time // zero while Redis decides
	latest time.Time // of the failures
	shares map[string]*share
}

// calm is how long nothing may fail before an outage is over.
const calm = time.Second

func newOutage(logger *slog.Logger) *outage {
	return &outage{logger: logger, shares: map[string]*share{}}
}

// began notes that Redis did not decide, and logs the first failure. It holds no lock then: a handler may be slow, or ask the limiter.
func (o *outage) began(err error) {
	o.mu.Lock()
	o.latest = time.Now()
	first := o.since.IsZero()
	if first {
		o.since = o.latest
		o.on.Store(true)
	}
	o.mu.Unlock()
	if first {
		o.logger.Warn("redis unavailable; applying on_redis_error", "error", err)
	}
}

// decided notes that Redis decided under the rules of a plan: their shares end, and the outage if nothing has failed for a moment.
func (o *outage) decided(p *plan) {
	o.mu.Lock()
	for _, b := range p.Rules {
		delete(o.shares, shareKey(p, b))
	}
	lasted := time.Since(o.since)
	over := !o.since.IsZero() && time.Since(o.latest) >= calm
	if over {
		o.since = time.Time{}
		o.on.Store(false)
		clear(o.shares)
	}
	o.mu.Unlock()
	if over {
		o.logger.Info("redis available again; on_redis_error no longer applies", "outage", lasted.Round(time.Millisecond))
	}
}

// withoutRedis decides by the rules' failure policies: closed refuses to decide, open does not count, share counts in this process. A
// closed rule on the path outweighs the others, and the answer always says that it is degraded.
func (l *Limiter) withoutRedis(ctx context.Context, p *plan, req *Request, cause error) (Decision, error) {
	none := Decision{Binding: -1}
	if err := wire.Ended(ctx); err != nil {
		return none, err
	}
	l.outage.began(cause)
	live := l.members.live()
	if l.closed(p, live) {
		return none, wire.Unavailable(ctx, "decide for", req.Scope, cause)
	}
	return l.outage.decide(p, req, live, time.Duration(l.ahead.Load())+l.cfg.StartTolerance), nil
}

// decide grants req from this process's shares, under all of them or none. What Redis granted before may start as late as slack from now.
func (o *outage) decide(p *plan, req *Request, live int64, slack time.Duration) Decision {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, id := time.Now(), NewID()
	if req.ID != "" {
		id = p.attemptID(req.ID)
	}
	d := Decision{Allowed: true, Degraded: true, Binding: -1, At: now, Rules: slices.Clone(p.states)}
	shares, cost := make([]*share, len(p.Rules)), req.price()
	for i, b := range p.Rules {
		if b.Rule.OnRedisError != policy.FailShare {
			continue
		}
		shares[i] = o.share(shareKey(p, b), b.Rule, live, now, slack)
		state := &d.Rules[i]
		state.Limit = shares[i].limit
		state.RetryAfter = shares[i].fit(now, cost.under(p.Rules[i].Rule))
		state.Limited = state.RetryAfter > 0
		if state.RetryAfter > d.RetryAfter {
			d.Allowed, d.RetryAfter, d.Binding = false, state.RetryAfter, i
		}
	}
	for i, s := range shares {
		if s == nil {
			d.Rules[i].Remaining = d.Rules[i].Limit // open: nothing is counted
			continue
		}
		if d.Allowed {
			s.take(now, id, cost.under(p.Rules[i].Rule))
		}
		d.Rules[i].Remaining, d.Rules[i].ResetAfter = s.left(now), s.reset(now)
	}
	if d.Allowed {
		d.Binding = fewestLeft(d.Rules)
		d.Grant = Grant{scope: req.Scope, id: id, plan: p, price: cost, local: true}
	}
	return d
}

// maxShares bounds what an outage remembers. Past it some share is dropped and,
// should it be asked for again, begins anew as fully spent, which is safe.
const maxShares = 10_000

func (o *outage) share(key string, r policy.Rule, live int64, now time.Time, slack time.Duration) *share {
	s := o.shares[key]
	if s == nil {
		if len(o.shares) >= maxShares {
			o.drop()
		}
		s = newShare(r, live, now, slack)
		o.shares[key] = s
	}
	return s
}

// drop forgets a share, one under which nothing runs.
func (o *outage) drop() {
	for key, s := range o.shares {
		if !s.runs() {
			delete(o.shares, key)
			return
		}
	}
}

// hold keeps the places of a grant of this outage until they are given back: its holder is in this process, and ends with it.
func (o *outage) hold(p *plan, g Grant) { o.each(p, func(s *share) { s.hold(g.id) }) }

// giveBack frees the places that a grant of this outage holds; its units are few and stay spent.
func (o *outage) giveBack(p *plan, g Grant) { o.each(p, func(s *share) { s.giveBack(g.id) }) }

// each visits the shares of a plan's concurrency rules.
func (o *outage) each(p *plan, visit func(*share)) {
	if p == nil {
		return // a grant of a stand-in's
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range p.Rules {
		if s := o.shares[shareKey(p, b)]; s != nil && b.Rule.Algorithm == policy.Concurrency {
			visit(s)
		}
	}
}

func shareKey(p *plan, b policy.MatchedRule) string { return wire.StateKey(p.Prefix, b) }

// closed reports whether rules of the plan stop all requests while Redis does not decide.
func (l *Limiter) closed(p *plan, live int64) bool {
	return slices.ContainsFunc(p.Rules, func(b policy.MatchedRule) bool {
		return b.Rule.OnRedisError == policy.FailClosed || b.Rule.OnRedisError == policy.FailShare && live == 0
	})
}
