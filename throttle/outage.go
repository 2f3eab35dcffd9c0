package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/outage"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

// withoutRedis decides by the rules' failure policies: closed refuses to decide, open does not count, share counts in this
// process. A closed rule on the path outweighs the others, and the answer always says that it is degraded.
func (l *Limiter) withoutRedis(ctx context.Context, p *plan, req *Request, cause error) (Decision, error) {
	none := Decision{Binding: -1}
	if err := wire.Ended(ctx); err != nil {
		return none, err
	}
	l.outage.Failed(cause)
	live := l.members.Load()
	if outage.Closed(p.Scope, live) {
		return none, wire.Unavailable(ctx, "decide for", req.Scope, cause)
	}
	now, id, cost := time.Now(), NewID(), req.price()
	if req.ID != "" {
		id = p.attemptID(req.ID)
	}
	states, allowed := l.outage.Decide(outage.Request{
		Scope: p.Scope, ID: id, Cost: cost.under, Live: live, Slack: time.Duration(l.ahead.Load()) + l.cfg.StartTolerance,
	}, now)
	d := Decision{Allowed: allowed, Degraded: true, Binding: -1, At: now, Rules: slices.Clone(p.states)}
	for i, s := range states {
		state := &d.Rules[i]
		if state.Remaining = state.Limit; s.Open {
			continue
		}
		info := *state.RuleInfo // all decisions under the rule share it
		info.Limit, state.RuleInfo = s.Limit, &info
		state.Remaining, state.RetryAfter, state.ResetAfter, state.Limited = s.Left, s.RetryIn, s.ResetsIn, s.RetryIn > 0
		if s.RetryIn > d.RetryAfter {
			d.RetryAfter, d.Binding = s.RetryIn, i
		}
	}
	if allowed {
		d.Binding = fewestLeft(d.Rules)
		d.Grant = Grant{scope: req.Scope, id: id, plan: p, price: cost, local: true}
	}
	return d, nil
}

const (
	memberStay = 15 * time.Second
	memberBeat = 5 * time.Second
)

// Heartbeat counts this process among those that share the limits, until ctx ends. When Redis is unavailable, a rule whose
// failure policy is share divides its limit by the number of these processes; without Heartbeat it is closed. Heartbeat blocks:
// run it in a goroutine. It retries after errors, and the last count stays. Costs one round trip every five seconds.
func (l *Limiter) Heartbeat(ctx context.Context) {
	id := NewID()
	ticker := time.NewTicker(memberBeat)
	defer ticker.Stop()
	for {
		if live, err := l.countMembers(ctx, id, memberStay); err == nil {
			l.members.Store(max(1, live))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			l.members.Store(0)                                       // this process is counted no more: it has no share
			_, _ = l.countMembers(context.WithoutCancel(ctx), id, 0) // if it fails, the stay runs out
			return
		}
	}
}

// countMembers counts this process for as long as stay, and returns how many there are.
func (l *Limiter) countMembers(ctx context.Context, id string, stay time.Duration) (int64, error) {
	var reply any
	err := wire.Send(ctx, l.rdb, l.cfg.Timeout, func(ctx context.Context) (err error) {
		reply, err = wire.RunKeys(ctx, l.rdb, lua.Heartbeat, []string{l.cfg.Prefix + ":members"}, l.clock(), id, stay.Microseconds())
		return err
	})
	if err != nil {
		return 0, err
	}
	list, _ := reply.([]any)
	if len(list) != 1 {
		return 0, wire.ErrReply
	}
	live, _ := list[0].(int64)
	return live, nil
}
