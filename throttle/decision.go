package throttle

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Never is a wait that no clock ends: a rule with limit 0 admits nothing until the limit is raised. It is longer than any other
// wait, so "RetryAfter <= patience" needs no special case.
const Never = wire.Forever

// Decision is the answer to one request. The zero Decision is a denial.
type Decision struct {
	// Allowed says that the request was granted under every rule. If it is false, nothing was charged under any.
	Allowed bool
	// Wait is the time from now to the granted start, at most Request.MaxDelay. The charge counts at that start. 0 for a denial.
	Wait time.Duration
	// RetryAfter is, for a denial, the time until the request would be allowed if there were no others, rounded up to a
	// microsecond; Never if no clock can tell. For a full concurrency rule it is the time until its first lease expires at the
	// latest. 0 if allowed.
	RetryAfter time.Duration
	// Rules has one entry for each rule on the scope's path, outermost first.
	Rules []RuleState
	// Binding is the index in Rules of the rule that decides: for a denial the rule with the longest wait, otherwise the rule
	// with the fewest units left. -1 if the scope has no rules, or is Paused.
	Binding int
	// Paused says, for a denial, that an API's answer has paused the scope or one above it.
	Paused bool
	// Member is the member of the pool on the scope's path with which the request was granted, or, for a denial, with which it would
	// be granted first. Its rules are the last ones of Rules. Empty without a pool.
	Member string
	// Pool is the place of the pool in the policy, github or tenants/*, which no task names. Empty without a Member.
	Pool string
	// At is the Redis server's time of the decision.
	At time.Time
	// Degraded says that Redis did not answer, and the rules' failure policies decided. Redis has no record of such a grant.
	Degraded bool
	// Handed says that dispatch had granted the start; see Waiter.Granted. Package worker reports whether it was used.
	Handed bool
	// Joins says, for a denial of a request with a Waiter, that the task is to join those that wait. HadTurn says that it goes
	// back to its Place.
	Joins, HadTurn bool
	// Grant is what was taken, for Refund, Settle and Lease. Zero for a denial.
	Grant Grant

	probes   bool          // a denial for a pause that a probe may end at any moment
	overdue  time.Duration // how long ago the start of a repeated attempt was
	replayed bool          // it was granted before
	begins   time.Time     // the start, by this process's clock
	leeway   time.Duration // see lateness
	under    *plan         // by which it was decided
	place    int64         // the place in its queue that a task had, 0 for none
}

// RuleState is the state of one rule in a decision.
type RuleState struct {
	// RuleInfo identifies the rule. It is never nil in what a Limiter returns.
	*RuleInfo
	// Limited says that this rule alone would not have admitted the request now.
	Limited bool
	// Remaining is the number of units left after the decision, rounded down. It can exceed Limit: for a
	// calendar that rolls over, and while an API's answers raise the rule.
	Remaining int64
	// RetryAfter is the time until this rule alone would admit the request: 0 if not Limited, Never if no clock can tell.
	RetryAfter time.Duration
	// ResetAfter is the time until the rule is as if nothing had been taken.
	ResetAfter time.Duration
}

// RuleInfo describes a rule at the scope where it counts. All decisions under the rule share one; do not change it.
type RuleInfo struct {
	// Scope is the level at which the rule counts, Rule its name there, and Pattern its place in the policy: payments/*. Only
	// Pattern is free of names that tasks bring.
	Scope, Rule, Pattern string
	Algorithm            policy.Algorithm
	// Unit is what the rule counts, and what Limit and Remaining are in. Defaults to Requests. Empty for Concurrency, which
	// counts places.
	Unit string
	// Limit is the most units that the rule admits at once: the burst of a token bucket, the limit of any other rule.
	Limit int64
	// MaxWait is the longest that a request waits for the rule, 0 for no bound.
	MaxWait time.Duration
	// Paused says that this entry is no rule: the policy pauses the level. RetryAfter is then the time until the pause ends.
	Paused bool
	// Window is how long the limit takes to come back in full, or, of a calendar, the length of the present period; Never for a
	// concurrency rule and for a limit of 0.
	Window time.Duration
}

// RuleInfoOf describes a rule that was matched. Its Window is that of no calendar, whose periods differ. It does no I/O.
func RuleInfoOf(b policy.MatchedRule) *RuleInfo {
	return &RuleInfo{
		Scope: b.Scope.String(), Rule: b.Rule.Name, Pattern: b.Pattern, Algorithm: b.Rule.Algorithm, Unit: b.Rule.Unit,
		Limit: b.Rule.Capacity(), Window: window(b.Rule), MaxWait: b.Rule.MaxWait, Paused: b.Paused(),
	}
}

// Tuple is a decision as five whole numbers, as many limiters give it: limited (1 or 0), the limit, the units that remain,
// seconds until a retry (-1 if not limited), and seconds until the limit is whole again. Seconds are rounded up, so that no
// caller comes back too early.
type Tuple [5]int64

// Tuple returns the rule's own five numbers.
func (r RuleState) Tuple() Tuple {
	five := Tuple{0, r.Limit, r.Remaining, -1, seconds(r.ResetAfter)}
	if r.Limited {
		five[0], five[3] = 1, seconds(r.RetryAfter)
	}
	return five
}

// Tuple returns the binding rule's own five numbers, never a mix of several rules. Only whether the caller is limited, and for
// how long, is that of the whole decision. For a scope without rules it is {0, 0, 0, -1, 0}: not limited, and no limit.
func (d Decision) Tuple() Tuple {
	r, _ := d.BindingRule()
	r.Limited, r.RetryAfter = !d.Allowed, d.RetryAfter
	return r.Tuple()
}

// Place returns the place in its line that the task had, 0 for the front; see package worker.
func (d Decision) Place() int64 { return d.place }

// BindingRule returns the state of the rule that decides, and false if there is none. It does no I/O.
func (d Decision) BindingRule() (RuleState, bool) {
	if d.Binding < 0 || d.Binding >= len(d.Rules) {
		return RuleState{RuleInfo: new(RuleInfo)}, false
	}
	return d.Rules[d.Binding], true
}

// Rule returns the state of a rule, by its level and name in limits.yaml. The level is that of the scope, payments/acme, or of
// the policy, payments/*; for an empty level it is the innermost rule of that name. ok is false if the decision has no such rule:
// the path has none, it does not apply at this hour, or it counts a unit that costs nothing. It does no I/O.
func (d Decision) Rule(level, name string) (state RuleState, ok bool) {
	for i := len(d.Rules) - 1; i >= 0; i-- {
		if r := d.Rules[i]; r.Rule == name && (level == "" || level == r.Scope || level == r.Pattern) {
			return r, true
		}
	}
	return RuleState{RuleInfo: new(RuleInfo)}, false
}

// seconds rounds up, and keeps Never the longest.
func seconds(d time.Duration) int64 {
	if d == Never {
		return math.MaxInt64
	}
	return int64(d/time.Second) + min(1, int64(d%time.Second))
}

// read fills a decision that is empty: it is too large to be handed on again and again.
func (p *plan) read(a *ask, d *Decision) {
	d.At, d.Binding = time.UnixMicro(a.now), -1
	if p.Member != nil {
		d.Member, d.Pool = p.Member.Name, p.pool
	}
	p.readRules(a, d)
	status, start := a.answer.Status, us(a.answer.Start-a.now)
	if len(p.Paused) > 0 && a.price.costs.Zero() { // scripts ask no rule about a cost of 0, and a pause of the policy is one
		status = wire.Denied
	}
	switch status {
	case wire.Allowed, wire.Replayed, wire.Claimed:
		d.Allowed, d.replayed = true, a.answer.Status == wire.Replayed
		d.Wait, d.overdue = max(0, start), max(0, -start)
		d.Binding = fewestLeft(d.Rules)
	case wire.MustJoin, wire.MustBack:
		d.Joins = true
		fallthrough
	default:
		if a.answer.Status == wire.MustBack {
			d.place, d.HadTurn, start = a.answer.Start, true, Never
		}
		d.RetryAfter = wait(start)
		p.readDenial(a, d)
	}
}

// grant is what an attempt was granted.
func (a *ask) grant() Grant {
	g := Grant{
		scope: a.plan.Scope.Scope.String(), id: a.lease, plan: a.plan, price: a.price, start: a.answer.Start, known: &known{}, probe: a.answer.Probe,
		places: make([]int64, len(a.answer.Rules)), from: a.sent.Add(us(a.answer.Start - a.now)),
	}
	if a.Waiter != "" {
		g.id = a.Waiter + "@" + strconv.FormatInt(g.start, 10)
	}
	for i, r := range a.answer.Rules {
		g.places[i] = r.Place
	}
	return g
}

// readRules fills in the states of the rules that the attempt takes anything of.
func (p *plan) readRules(a *ask, d *Decision) {
	d.Rules = slices.Clone(p.states)
	for i, r := range a.answer.Rules {
		state := &d.Rules[i]
		state.Limited, state.Remaining = r.Retry > 0, r.Left
		state.RetryAfter, state.ResetAfter = wait(us(r.Retry)), wait(us(r.Reset))
	}
	if len(a.price.costs) > 0 && !a.price.costs.Zero() {
		kept := d.Rules[:0]
		for i, b := range p.Rules {
			if a.price.under(b.Rule) > 0 {
				kept = append(kept, d.Rules[i])
			}
		}
		d.Rules = kept
	}
}

// readDenial finds out what a denial waits for. Scripts do not know when the policy's own pauses end, nor the hours of rules.
func (p *plan) readDenial(a *ask, d *Decision) {
	if by := a.answer.Binding - 1; by >= len(p.Rules) {
		d.Paused, d.probes = true, by > len(p.Rules)
	} else if by >= 0 {
		b := p.Rules[by]
		d.Binding = slices.IndexFunc(d.Rules, func(r RuleState) bool { return r.Scope == b.Scope.String() && r.Rule == b.Rule.Name })
	}
	if p.Until == wire.Never && len(p.Paused) == 0 {
		return
	}
	longest, ends := time.Duration(0), false
	for i := range d.Rules {
		r := &d.Rules[i]
		b := p.Rules[slices.IndexFunc(p.Rules, func(b policy.MatchedRule) bool { return b.Scope.String() == r.Scope && b.Rule.Name == r.Rule })]
		if b.Paused() {
			r.RetryAfter, ends = pauseLeft(b, d.At), true
		} else if b.Rule.Active != nil { // it holds nothing up when its hours are over
			_, _, until := b.Rule.ActiveAt(d.At)
			r.RetryAfter, ends = min(r.RetryAfter, until.Sub(d.At)), true
		}
		if r.RetryAfter > longest {
			longest = r.RetryAfter
			if len(p.Paused) > 0 && !d.Paused {
				d.Binding = i
			}
		}
	}
	if !d.Paused && ends { // else the scripts know when all admit it
		d.RetryAfter = longest
	}
}

// pauseLeft is how long a pause of the policy lasts from a moment on, Never where no clock ends it.
func pauseLeft(b policy.MatchedRule, at time.Time) time.Duration {
	if b.Until.IsZero() {
		return Never
	}
	return max(time.Microsecond, b.Until.Sub(at))
}

// wait reads a time of a reply, Never if no clock can tell.
func wait(d time.Duration) time.Duration {
	if d < 0 || d >= us(1<<52) {
		return Never
	}
	return d
}
func fewestLeft(rules []RuleState) int {
	least := -1
	for i := range rules {
		if least < 0 || rules[i].Remaining < rules[least].Remaining {
			least = i
		}
	}
	return least
}
