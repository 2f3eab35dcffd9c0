package throttle

import (
	"github.com/headway-go/headway/throttle/policy"
	"math"
	"slices"
	"time"
)

// Never is the wait of a decision that no clock can end: a rule whose limit is
// 0 waits until it is raised. Where a place in line is told, so is the wait for a full
// concurrency rule, until a run ends. It is longer than any other wait, so
// "RetryAfter <= patience" needs no special case.
const Never = time.Duration(math.MaxInt64)

// Decision is the answer to one request. The zero Decision is a denial.
type Decision struct {
	// Allowed says that the request was granted, under every rule; otherwise it
	// was under none, and nothing was charged.
	Allowed bool
	// Wait is how long after now the granted start is, at most Request.MaxDelay; the
	// charge counts at that start. 0 for a denial.
	Wait time.Duration
	// RetryAfter is, for a denial, how long until the request would be allowed if
	// nobody else came, rounded up to a microsecond; Never when no clock tells.
	// For a full concurrency rule it is when its first lease ends at the latest.
	// 0 when allowed.
	RetryAfter time.Duration
	// Rules has one entry for each rule on the scope's path, outermost first.
	Rules []RuleState
	// Binding is the index in Rules of the rule that decides: on denial the one
	// that asks for the longest wait, otherwise the one with the fewest units
	// left. -1 when the scope has no rules, or is Paused.
	Binding int
	// Paused says, for a denial, that the API has told to stay away from the scope, or
	// from one above it, and that it is not over: no rule binds before that. Binding is -1.
	Paused bool
	// At is the Redis server's time of the decision.
	At time.Time
	// Degraded says that Redis did not answer and the rules' failure policies
	// decided. Such a grant is not in Redis.
	Degraded bool
	// Handed says that Dispatch had granted it, see Turn.Granted: once the run begins that is to be told by
	// Waitlist.ReportClaimed. Where it doesn't begin the grant is still in flight.
	Handed bool
	// Prefetched says that this process had charged its units before they were asked for, see Rule.Prefetch: no call
	// was made. At is when they were charged, and Rules is what Redis said then, less what was handed out since.
	Prefetched bool
	// Position is what it says to one who asked with a ticket.
	Position QueuePosition
	// Grant is what was taken, for Refund and Hold. Zero for a denial.
	Grant Grant

	overdue  time.Duration  // how long ago the start of a repeated attempt was
	replayed bool           // it was granted before
	begins   time.Time      // the start, by this process's clock
	leeway   time.Duration  // see lateness
	under    *compiledScope // by which it was decided
}

// RuleState is what one rule says in a decision.
type RuleState struct {
	// RuleInfo is which rule it is. Never nil in what a Limiter returns.
	*RuleInfo
	// Limited says that this rule alone would not have admitted the request now.
	Limited bool
	// Remaining is how many units are left after the decision, rounded down. It may be more
	// than Limit: of a calendar that rolls over, and where an API's answers raise the rule.
	Remaining int64
	// RetryAfter is how long until this rule alone would admit the request, 0 when
	// not Limited, Never when no clock tells.
	RetryAfter time.Duration
	// ResetAfter is how long until the rule is as if nothing had been taken.
	ResetAfter time.Duration
}

// RuleInfo is a rule where it counts. All decisions under it share one, which is not to be
// changed.
type RuleInfo struct {
	// Scope is the level at which the rule counts, Rule its name there, and
	// Pattern where the policy has it: payments/*:tenant. Only Pattern is free of
	// names that tasks bring.
	Scope, Rule, Pattern string
	Algorithm            policy.Algorithm
	// Unit is what the rule counts, Requests unless it says otherwise: Limit and
	// Remaining are of it. Empty for Concurrency, which counts places.
	Unit string
	// Limit is the most units that the rule admits at once: the burst of a token
	// bucket, the limit of any other rule.
	Limit int64
	// MaxWait is the longest that anybody waits for the rule, 0 where it has no bound.
	MaxWait time.Duration
	// Paused says that it is no rule of the policy's: the level is paused. RetryAfter is
	// then until the pause ends, and MaxWait the shortest of the rules that it keeps.
	Paused bool

	window time.Duration // how long the limit takes to come back in full
}

// Tuple is the answer in five whole numbers that many limiters give: whether the
// caller is limited (1 or 0), the limit, what remains of it, after how many
// seconds to try again (-1 when not limited) and after how many the limit is
// whole again. Seconds are rounded up, so that no caller comes back too early.
type Tuple [5]int64

// Tuple returns the rule's own five numbers.
func (r RuleState) Tuple() Tuple {
	five := Tuple{0, r.Limit, r.Remaining, -1, seconds(r.ResetAfter)}
	if r.Limited {
		five[0], five[3] = 1, seconds(r.RetryAfter)
	}
	return five
}

// Tuple returns the binding rule's own five numbers, never a mix of several rules.
// Whether the caller is limited, and for how long, is the whole decision's: a
// grant ahead is not limited, and where rules must agree on a moment that none of
// them asked for alone, it is that moment. A scope without rules is not limited
// and has no limit: {0, 0, 0, -1, 0}.
func (d Decision) Tuple() Tuple {
	five := Tuple{0, 0, 0, -1, 0}
	if r, ok := d.BindingRule(); ok {
		five = r.Tuple()
	}
	five[0], five[3] = 0, -1
	if !d.Allowed {
		five[0], five[3] = 1, seconds(d.RetryAfter)
	}
	return five
}

// BindingRule returns the state of the rule that decides, if there is one.
func (d Decision) BindingRule() (RuleState, bool) {
	if d.Binding < 0 || d.Binding >= len(d.Rules) {
		return RuleState{RuleInfo: new(RuleInfo)}, false
	}
	return d.Rules[d.Binding], true
}

// Rule returns what a rule says, by the level and the name that it has in limits.yaml: the level as the
// scope has it, payments/acme, or as the policy does, payments/*. An empty level stands for all of them: of
// rules with the same name it is the innermost one that answers. ok is false where no such rule was asked:
// there is none on the path, it does not hold at this hour, or it counts a unit that costs nothing. It does
// no I/O.
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
	whole := int64(d / time.Second)
	if d%time.Second > 0 {
		whole++
	}
	return whole
}

// The reply of decide and peek has five numbers, and five more for each rule; see
// lua/decide.lua.
const (
	replyHead = 5
	replyRule = 5
	shortRule = 3
)

// lengthened writes out the short reply to a request that is granted from now on. One
// more number at its end is when to look for those who wait.
func lengthened(short []int64, rules int) []int64 {
	full := make([]int64, replyHead+replyRule*rules, replyHead+replyRule*rules+turnReply)
	full[0], full[2] = 1, short[0]
	for i := range rules {
		r, s := full[replyHead+replyRule*i:], short[1+shortRule*i:]
		r[1], r[3], r[4] = s[0], s[1], s[2]
	}
	if look := short[1+shortRule*rules:]; len(look) > 0 {
		full = append(full, -1, 0, look[0])
	}
	return full
}

// fromReply reads the reply of decide and peek.
func fromReply(p *compiledScope, reply []int64) (d Decision) {
	p.read(reply, &d)
	return d
}

// read fills a decision that is empty: it is too large to be handed on again and again.
func (p *compiledScope) read(reply []int64, d *Decision) {
	d.Allowed, d.At, d.Binding = reply[0] == 1, time.UnixMicro(reply[2]), int(reply[4])-1
	d.Rules, d.Position = slices.Clone(p.states), noTurn
	if d.Allowed {
		d.replayed = reply[1] == 1
		start := time.Duration(reply[3]) * time.Microsecond
		d.Wait, d.overdue = max(0, start), max(0, -start)
	} else {
		d.RetryAfter = wait(reply[3])
	}
	for i := range d.Rules {
		state, r := &d.Rules[i], reply[replyHead+replyRule*i:]
		state.Limited, state.Remaining, state.RetryAfter, state.ResetAfter = r[0] == 1, r[1], wait(r[2]), wait(r[3])
	}
	if turn := reply[replyHead+replyRule*len(d.Rules):]; len(turn) >= turnReply {
		d.Position = readTurn(turn)
	}
	if d.Allowed {
		d.Binding = fewestLeft(d.Rules)
	} else if d.Binding >= len(d.Rules) {
		d.Binding, d.Paused = -1, true
	}
	if !p.plain() {
		p.clip(d)
		p.heedPauses(d, max(0, us(-1-reply[3])))
		p.shown(d)
	}
}

// wait reads a time of a reply: whole microseconds, -1 for what no clock tells.
func wait(us int64) time.Duration {
	if us < 0 || us > int64(Never/time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
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
