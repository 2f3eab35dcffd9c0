package throttle

import (
	"context"
	"github.com/headway-go/headway/throttle/policy"
	"slices"
	"time"
)

// interval is a time in which nothing begins or ends, in µs since the epoch. Of plans whose
// rules always hold it is zero.
type interval struct {
	from, until int64
	holds       bool
}

func (s interval) has(at int64) bool { return s.from <= at && at < s.until }

// inForce takes those rules out that do not hold at a time, and narrows the time for which
// the plan does to that in which the others are the same. Where none is left, one stands
// for them that lets everything pass: those who wait are woken by it, and a reply tells when
// the rules hold again, whatever the process's clock says.
func (p *compiledScope) inForce(bounds []policy.MatchedRule, at time.Time) []policy.MatchedRule {
	if !slices.ContainsFunc(bounds, func(b policy.MatchedRule) bool { return b.Rule.Active != nil }) {
		return bounds
	}
	var left []policy.MatchedRule
	for _, b := range bounds {
		ends := int64(0)
		if b.Rule.Active != nil {
			s := intervalOf(b.Rule, at)
			p.during(s)
			if ends = s.until; !s.holds {
				continue
			}
		}
		left, p.ends = append(left, b), append(p.ends, ends)
	}
	if len(left) == 0 {
		left, p.ends = []policy.MatchedRule{{Rule: openRule, Scope: p.scope}}, []int64{0}
	}
	return left
}

func (p *compiledScope) during(s interval) {
	if p.hours.until == 0 {
		p.hours = s
	}
	p.hours.from, p.hours.until = max(p.hours.from, s.from), min(p.hours.until, s.until)
	p.within(calendarWindow{from: s.from, to: s.until})
}

// shown takes the rule off a decision that stands for none.
func (p *compiledScope) shown(d *Decision) {
	if p.open {
		d.Rules, d.Binding = nil, -1
	}
}

// reach is how far ahead a start can be granted by the plan.
func (p *compiledScope) reach(ahead time.Duration, now func(provider string) time.Time) time.Duration {
	if p.hours.until == 0 {
		return ahead
	}
	return max(0, min(ahead, us(p.hours.until-1-now(p.provider).UnixMicro())))
}

// misses says that a start was granted for a time at which other rules hold than those that
// it was charged under. One that an attempt was granted before they did is none.
func (p *compiledScope) misses(d *Decision) bool {
	if !d.Allowed || p.hours.until == 0 {
		return false
	}
	start := d.At.Add(d.Wait - d.overdue).UnixMicro()
	return start >= p.hours.until || start < p.hours.from && d.overdue == 0
}

// maxMissed is how often in a row a start is decided anew that its rules' hours miss.
const maxMissed = 4

// retryInWindow gives a grant back that the plan misses, and decides by the rules of that time.
// One whose turn had come keeps it.
func (l *Limiter) retryInWindow(ctx context.Context, p *compiledScope, req *Request, d *Decision) error {
	grant, at := d.Grant, d.At
	*d = Decision{Binding: -1}
	if err := l.Refund(ctx, grant); err != nil {
		return err
	}
	req.ID, req.slot, req.once = NewID(), nil, true
	if req.missed++; req.missed > maxMissed {
		d.RetryAfter, d.At = max(l.cfg.StartTolerance, time.Millisecond), at
		return nil
	}
	if req.Turn.WaiterID != "" {
		req.standing = again
	}
	if p.stale(at) {
		p = l.scopes.refresh(p, at)
	}
	req.MaxDelay, req.Turn.MaxDelayQueued = 0, 0
	*d = Decision{}
	return l.decide(ctx, p, req, d)
}

// changes is when other rules hold than those of the plan; the zero time where they always do.
func (p *compiledScope) changes() time.Time {
	if p.hours.until == 0 {
		return time.Time{}
	}
	return time.UnixMicro(p.hours.until)
}

// clip bounds the waits of a denial: a rule holds nobody up when its hours are over.
func (p *compiledScope) clip(d *Decision) {
	if d.Allowed || !p.hours.has(d.At.UnixMicro()) {
		return
	}
	now := d.At.UnixMicro()
	least := us(p.hours.until - now)
	for i := range d.Rules {
		if r := &d.Rules[i]; p.ends[i] != 0 {
			r.RetryAfter = min(r.RetryAfter, us(p.ends[i]-now))
		} else {
			least = max(least, r.RetryAfter)
		}
	}
	if !d.Paused {
		d.RetryAfter = min(d.RetryAfter, least)
	}
}

// RuleHours is a rule that applies in certain hours.
type RuleHours struct {
	policy.MatchedRule
	// Holds says that it applies now. Changes is when that changes.
	Holds   bool
	Changes time.Time
}

// Hours returns the rules of a scope that apply in certain hours only, and whether they apply now, by
// Redis's clock as far as it is known. It does no I/O. The error is a *policy.ScopeError or
// *policy.UnmatchedError.
func (l *Limiter) Hours(scope string) (list []RuleHours, err error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return nil, err
	}
	now := l.serverTime(p.provider)
	for _, b := range p.all {
		if b.Rule.Active != nil {
			active, _, until := b.Rule.ActiveAt(now)
			list = append(list, RuleHours{b, active, until})
		}
	}
	return list, nil
}

// NextHoursChange returns when a rule of the policy begins or ends to apply next, by the clock of the
// provider's server, and the time until then as far as that clock is known. The time is zero if all
// rules always apply. A program that calls Dispatch then checks all waiters. It does no I/O.
func (w Waitlist) NextHoursChange(provider string) (at time.Time, in time.Duration) {
	policy, _ := w.l.scopes.current()
	now := w.l.serverTime(keyspace(w.l.cfg.Prefix).provider(provider))
	next := policy.NextActiveChange(now)
	if next.IsZero() {
		return time.Time{}, Never
	}
	return next, next.Sub(now)
}

// intervalOf returns the interval of a moment in which a rule with Active holds, or does not.
func intervalOf(r policy.Rule, at time.Time) interval {
	active, from, until := r.ActiveAt(at)
	return interval{from.UnixMicro(), until.UnixMicro(), active}
}
