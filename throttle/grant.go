package throttle

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Grant is what an allowed decision took. It can be stored, copied, and refunded once. The zero Grant took nothing.
type Grant struct {
	scope  string
	id     string // as Redis knows it: the name under which it holds places
	plan   *plan  // under which it was granted; nil for one that took nothing
	price  price
	start  int64   // by the server's clock, µs
	places []int64 // where each rule put its units
	kept   string  // the key under which SaveGrant has it
	known  *known  // what was settled of it; nil for one that can't be
	shadow *shadow // what shadow rules took beside it, if there are any
	spent  *spentGrant
	from   time.Time     // when the leases began to run, at the latest
	leeway time.Duration // how much later than start it was charged
	probe  bool          // it goes first after a guessed pause
	local  bool          // taken from this process's share during an outage
}

// NewGrant returns a grant that took nothing, for test doubles of a Limiter. To refund or lease it does nothing.
func NewGrant(scope, id string) Grant { return Grant{scope: scope, id: id, local: true} }

// ID returns the attempt id under which it was granted.
func (g Grant) ID() string {
	if g.plan == nil {
		return g.id
	}
	return wire.Unescape(strings.TrimSuffix(g.id, g.plan.mark))
}

// Member returns the member of a pool that was granted, "" for none. The call that the grant is for is to be made with that member's key.
func (g Grant) Member() string {
	if g.plan == nil || g.plan.Member == nil {
		return ""
	}
	return g.plan.Member.Name
}

// AnswerScope returns the scope for which an answer to the grant's call is to be reported: that of the member, so that the answer stays
// with it, or without a pool the scope of the grant.
func (g Grant) AnswerScope() string { return cmp.Or(g.MemberScope(), g.scope) }

// MemberScope returns the scope of the member that was granted, github/@alice; "" for none.
func (g Grant) MemberScope() string {
	if member := g.Member(); member != "" {
		return policy.MemberScope(g.plan.Pool.Level, member).String()
	}
	return ""
}

// LeaseTime returns for how long it holds its places under concurrency rules unless they are renewed: the shortest of them; 0
// without such a place.
func (g Grant) LeaseTime() time.Duration {
	if g.plan == nil {
		return 0
	}
	shortest, _, some := g.leases()
	if !some {
		return 0
	}
	return g.renewed(shortest)
}

// Charged returns how many units the grant took from a rule at first, before any settlement.
func (g Grant) Charged(r *RuleInfo) int64 {
	return g.price.under(policy.Rule{Algorithm: r.Algorithm, Unit: r.Unit})
}

// Zero reports whether the grant took nothing.
func (g Grant) Zero() bool { return g.id == "" }

// Refund gives a grant back: a run that did not happen spends nothing. Window rules get exactly the grant's units back, at the
// grant's time. A token bucket gets at most what it would hold if the units had not been taken, which may be less. Places of
// concurrency rules are freed. What comes back can be spent at once. A rule that is gone, or whose algorithm has changed
// meanwhile, gets no units back.
//
// A second Refund within a minute does nothing. The error wraps ErrUnavailable if Redis could not be reached; the units then stay
// spent, which is safe. It runs even if ctx has ended: it has its own time-out. Costs one round trip, two for a grant from
// LoadGrant.
func (l *Limiter) Refund(ctx context.Context, g Grant) error {
	err := l.giveBack(ctx, g, true)
	if err == nil {
		g.spent.refund()
	}
	return err
}

// giveBack wakes the tasks that wait for what has come free, or not if its caller takes it again.
func (l *Limiter) giveBack(ctx context.Context, g Grant, wakes bool) error {
	g.shadow.to(shadowRefunded)
	if g.Zero() {
		return nil
	}
	if g.local {
		l.freeLocal(g)
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, _, err := l.report(ctx, g, "unused", 0, nil, wakes)
	if err != nil {
		return wire.Unavailable(ctx, "give back to", g.scope, err)
	}
	if g.kept != "" {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
		if err := l.rdb.Del(ctx, g.kept).Err(); err != nil {
			return wire.Unavailable(ctx, "drop a grant of", g.scope, err)
		}
	}
	return nil
}

// freeLocal frees the places that a grant of an outage holds in this process.
func (l *Limiter) freeLocal(g Grant) {
	if g.plan != nil { // else it is one of NewGrant
		l.outage.GiveBack(g.plan.Scope, g.id)
	}
}

// report reports what became of a grant, under the rules that apply now; "kept" under those of the grant, whose leases the run
// has. spent is by unit, for "spent". It returns the plan of those rules and what each of them did; nil if the grant had come
// back before, or its scope has no rules any more.
func (l *Limiter) report(ctx context.Context, g Grant, what string, number int64, spent func(policy.Rule) (int64, bool), wakes bool) (
	*plan, []wire.Settled, error,
) {
	p, err := l.planOf(g)
	if what == "kept" {
		p, err = g.plan, nil
	}
	if err != nil {
		return nil, nil, nil //nolint:nilerr // a scope that no rule counts any more
	}
	for range planTries {
		asked := time.Now()
		reply, err := wire.Call(ctx, l.rdb, l.cfg.Timeout, lua.Settle, p.Prefix, wire.SettleArgs(l.clock(), l.reportOf(p, g, what, number, spent))...)
		if err != nil {
			return nil, nil, err
		}
		now, waits, settled, err := wire.ReadSettles(reply, len(p.Rules))
		if err != nil {
			return nil, nil, err
		}
		p.clock.Observe(asked, time.Now(), time.UnixMicro(now))
		if waits && wakes {
			l.list.Wake(p.Scope.Scope.Provider())
		}
		if settled[0].Status != wire.Outdated {
			return p, settled[0].Rules, nil
		}
		if p, err = p.fresh(now); err != nil {
			return nil, nil, nil //nolint:nilerr // as above
		}
	}
	return nil, nil, wire.ErrReply
}

// reportOf returns the report of a grant to settle.lua, under the rules of a plan.
func (l *Limiter) reportOf(p *plan, g Grant, what string, number int64, spent func(policy.Rule) (int64, bool)) wire.Report {
	return wire.Report{
		Lease: g.id, What: what, Number: number, Text: p.Text, Charged: g.charged(p, spent),
		Grant: wire.GrantText(g.start, 0, p.Shape, g.placesIn(p), p.Path, g.costText(), p.memberKey()),
	}
}

// planOf returns the plan of a grant's scope by now, with its member if that is still there.
func (l *Limiter) planOf(g Grant) (*plan, error) {
	if g.plan != nil && g.plan.alone != nil {
		return g.plan.alone.plan(l.serverTime(g.plan.Prefix)), nil
	}
	p, err := l.plan(g.scope)
	if err != nil || g.plan == nil {
		return p, err
	}
	return p.with(p.Pool.Member(g.plan.memberKey())), nil
}

// costText is the cost of a grant as scripts have it in a grant.
func (g Grant) costText() string {
	if text := g.price.text(); text != "" {
		return text
	}
	return strconv.FormatInt(g.price.each, 10)
}

// placesIn returns where the grant's units are, by the rules of a plan: 0 for a rule that did not count then, or counted otherwise.
func (g Grant) placesIn(p *plan) []int64 {
	if p == g.plan && !g.known.any() {
		return g.places
	}
	places := make([]int64, len(p.Rules))
	for i, b := range p.Rules {
		if _, settled := g.known.of(b); settled {
			continue // the record knows it, as long as any can come back
		}
		if j := slices.IndexFunc(g.plan.Rules, func(o policy.MatchedRule) bool { return countsAs(b, o) }); j >= 0 && j < len(g.places) {
			places[i] = g.places[j]
		}
	}
	return places
}

// countsAs reports whether units of a rule are at the same places under another one: it has the same name at the same level,
// its algorithm, its unit and, if its windows are fixed, their length.
func countsAs(a, b policy.MatchedRule) bool {
	return a.Scope == b.Scope && a.Rule.Name == b.Rule.Name && a.Rule.Algorithm == b.Rule.Algorithm && a.Rule.Unit == b.Rule.Unit &&
		(a.Rule.Algorithm != policy.FixedWindow || a.Rule.Per == b.Rule.Per && a.Rule.OpensOnUse == b.Rule.OpensOnUse)
}
