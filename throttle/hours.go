package throttle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/wallclock"
)

// hours is when rules hold that have the same expression and time zone. It is safe for
// concurrent use.
type hours struct {
	window *wallclock.Window

	mu   sync.Mutex
	last interval // asked for last
}

// interval is a time in which nothing begins or ends, in µs since the epoch. Of plans whose
// rules always hold it is zero.
type interval struct {
	from, until int64
	holds       bool
}

func (s interval) has(at int64) bool { return s.from <= at && at < s.until }

// windows are the hours that have been met, up to a bound.
var windows struct {
	mu    sync.Mutex
	known map[[2]string]*hours
}

// hoursOf returns the hours of a cron expression in a time zone. The error is wallclock's.
func hoursOf(active, timezone string) (*hours, error) {
	windows.mu.Lock()
	defer windows.mu.Unlock()
	key := [2]string{active, timezone}
	if h := windows.known[key]; h != nil {
		return h, nil
	}
	window, err := wallclock.ParseWindow(active, timezone)
	if err != nil {
		return nil, err
	}
	if windows.known == nil || len(windows.known) >= maxCalendars {
		windows.known = map[[2]string]*hours{}
	}
	h := &hours{window: window}
	windows.known[key] = h
	return h, nil
}

// hours returns the rule's own. A Policy has read it before.
func (r Rule) hours() *hours {
	h, err := hoursOf(r.Active, r.Timezone)
	if err != nil {
		panic("throttle: hours that no policy has checked: " + err.Error())
	}
	return h
}

// around returns the stretch of a moment, which begins with its minute at the latest.
func (h *hours) around(at time.Time) interval {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last.has(at.UnixMicro()) {
		return h.last
	}
	until := h.window.Changes(at)
	if until.IsZero() {
		until = at.Add(rare)
	}
	h.last = interval{at.Truncate(time.Minute).UnixMicro(), until.UnixMicro(), h.window.Holds(at)}
	return h.last
}

// inForce takes those rules out that do not hold at a time, and narrows the time for which
// the plan does to that in which the others are the same. Where none is left, one stands
// for them that lets everything pass: those who wait are woken by it, and a reply tells when
// the rules hold again, whatever the process's clock says.
func (p *compiledScope) inForce(bounds []MatchedRule, at time.Time) []MatchedRule {
	if !slices.ContainsFunc(bounds, func(b MatchedRule) bool { return b.Rule.Active != "" }) {
		return bounds
	}
	var left []MatchedRule
	for _, b := range bounds {
		ends := int64(0)
		if b.Rule.Active != "" {
			s := b.Rule.hours().around(at)
			p.during(s)
			if ends = s.until; !s.holds {
				continue
			}
		}
		left, p.ends = append(left, b), append(p.ends, ends)
	}
	if len(left) == 0 {
		left, p.ends = []MatchedRule{{Rule: openRule, Scope: p.scope}}, []int64{0}
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
	if req.WaiterID != "" {
		req.standing = again
	}
	if p.stale(at) {
		p = l.scopes.refresh(p, at)
	}
	req.MaxDelay, req.MaxDelayQueued = 0, 0
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

// RuleHours is a rule that holds in certain hours.
type RuleHours struct {
	MatchedRule
	// Holds says that it holds now, and Changes when that changes.
	Holds   bool
	Changes time.Time
}

// Hours returns the rules of a scope that hold in certain hours, by the clock of Redis as far
// as it is known. It does no I/O. The error is a *ScopeError or *UnmatchedError.
func (l *Limiter) Hours(scope string) (list []RuleHours, err error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return nil, err
	}
	now := l.serverTime(p.provider)
	for _, b := range p.all {
		if b.Rule.Active != "" {
			s := b.Rule.hours().around(now)
			list = append(list, RuleHours{b, s.holds, time.UnixMicro(s.until)})
		}
	}
	return list, nil
}

// NextHoursChange returns when any rule of the policy begins or ends to hold next, and in how
// long that is as far as the clock of the provider's server is known; the zero time where all
// always hold. It is for those who call Dispatch: they then ask for all. It costs next to nothing.
func (l *Limiter) NextHoursChange(provider string) (at time.Time, in time.Duration) {
	all := l.scopes.hours()
	if len(all) == 0 {
		return time.Time{}, Never
	}
	now := l.serverTime(keyspace(l.cfg.Prefix).provider(provider))
	next := all[0].around(now).until
	for _, h := range all[1:] {
		next = min(next, h.around(now).until)
	}
	return time.UnixMicro(next), us(next - now.UnixMicro())
}

// hours are those of the policy's rules.
func (c *scopeCache) hours() []*hours {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.windows
}

// windows are the hours of a policy's rules, each once.
func (p *Policy) windows() (all []*hours) {
	p.has(func(r Rule) bool {
		if r.Active != "" {
			if h := r.hours(); !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
		return false
	})
	return all
}
