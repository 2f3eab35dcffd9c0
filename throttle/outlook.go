package throttle

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// Forecast is what the next task of a scope meets: the state of its rules, their pace, and the waiters
// before it.
type Forecast struct {
	// At is the Redis server's time.
	At time.Time
	// Waiting is the number of requests in the scope's own queue: the sum of its tasks' costs, or for
	// costs by unit, of their requests.
	Waiting int64
	// Rules has one entry for each rule on the scope's path that applies now, outermost first.
	Rules []RuleForecast
	// PausedFor is how long the API has asked not to be called for the scope any more; 0 if it has not. See
	// UpstreamState.
	PausedFor time.Duration
	// Until is when the set of applying rules changes next, by the server's clock; zero if no rule is
	// limited to certain hours.
	Until time.Time
}

// RuleForecast is the state and the pace of one rule of a Forecast.
type RuleForecast struct {
	// RuleState is what Peek returns for one unit.
	RuleState
	// Units become available every Per while tasks wait for them, with the start tolerance and the margin
	// included. Units is 0 if no clock gives any: for a suspended rule and a concurrency rule.
	Units int64
	Per   time.Duration
	// Rest is the time until the period of a Calendar, or the window of a FixedWindow, ends: Per for a window that opens on
	// use while none is open. Spread says that a Calendar's remaining units are spread over that time. Both mean nothing for
	// other rules.
	Rest   time.Duration
	Spread bool
	// RunTimes is how long runs take under a concurrency rule.
	RunTimes RunTimes
	over     int64 // how many more runs than its limit hold places, after that was lowered
	resets   *resetTimes
	// Own is the number of the rule's units in the scope's own queue: of places, one for each task.
	Own int64
	// Waiting is the number of units in the queues under the rule, and Queues the number of these queues,
	// the scope's own included. Tasks that were granted a start and have not begun are not counted: they
	// are already charged. Under a concurrency rule, a task of another scope counts as many as its requests.
	Waiting, Queues int64
}

// Forecast returns what the next task of a scope meets. It changes nothing. Costs two round trips. Its
// errors are those of Peek.
func (l *Limiter) Forecast(ctx context.Context, scope string) (Forecast, error) {
	out, p, _, err := l.paces(ctx, scope)
	if err != nil || p == nil {
		return out, err
	}
	if err := l.countWaiting(ctx, p, &out); err != nil {
		return Forecast{}, unavailable(ctx, "look at the queues of", scope, err)
	}
	return out, nil
}

// paces is Forecast without what waits. The plan is nil if no rule decides now.
func (l *Limiter) paces(ctx context.Context, scope string) (Forecast, *compiledScope, Decision, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return Forecast{}, nil, Decision{}, err
	}
	d, err := l.peek(ctx, p, Request{Scope: scope, Cost: defaultCost, ID: NewID()})
	if err == nil && p.stale(d.At) {
		if p = l.scopes.refresh(p, d.At); p == nil {
			return Forecast{At: d.At}, nil, d, nil
		}
	}
	if err != nil || len(d.Rules) != len(p.bounds) || len(p.bounds) == 0 {
		at := time.Now()
		if !d.At.IsZero() {
			at = d.At
		}
		return Forecast{At: at, Until: p.changes()}, nil, d, err
	}
	out := Forecast{At: d.At, PausedFor: d.pausedFor(), Until: p.changes(), Rules: make([]RuleForecast, len(d.Rules))}
	for i := range d.Rules {
		r := RuleForecast{RuleState: d.Rules[i]}
		r.Units, r.Per = pace(p.bounds[i], l.cfg.StartTolerance)
		r.ends(p.bounds[i].Rule, d.At)
		out.Rules[i] = r
	}
	return out, p, d, nil
}

// pausedFor is how long a pause by the API's answers lasts, if that is what denies.
func (d *Decision) pausedFor() time.Duration {
	if !d.Paused {
		return 0
	}
	return d.RetryAfter
}

// countWaiting reads what waits below the levels of a scope's rules, and how long their runs take: see
// lua/include/fairshare/tree.lua. Those in flight are charged already.
func (l *Limiter) countWaiting(ctx context.Context, p *compiledScope, out *Forecast) error {
	leaf := scopePath(p.scope.String()) + "/"
	fields := []string{"n" + leaf}
	for _, key := range p.keys {
		level, _, _ := strings.Cut(key[len(p.provider):], ":")
		fields = append(fields, "n"+level)
	}
	var sums *redis.SliceCmd
	var runs runsReply
	var tasks *redis.IntCmd
	err := l.Waitlist().read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		sums = pipe.HMGet(ctx, metaKey(p.provider), fields...)
		if len(p.leases) > 0 {
			runs, tasks = p.askRuns(ctx, pipe, out.At), pipe.ZCard(ctx, text(p.queue[0]))
		}
	})
	if err != nil {
		return err
	}
	own := readNodeSum(sums.Val()[0])
	out.Waiting = own.units
	for i := range out.Rules {
		all, unit := readNodeSum(sums.Val()[1+i]), p.states[i].Unit
		out.Rules[i].Waiting, out.Rules[i].Queues, out.Rules[i].Own = all.of(unit), all.kids, own.of(unit)
	}
	for _, i := range p.leases { // each task takes one place
		r := &out.Rules[i]
		r.Waiting, r.Own = max(0, r.Waiting-r.Own)+tasks.Val(), tasks.Val()
	}
	out.setRuns(p, runs)
	return nil
}

// nodeSum is how many children of a node have tasks, how many requests wait below it, and what those that cost by
// unit take of others; "*" has how many of the requests are theirs.
type nodeSum struct {
	kids, units int64
	byUnit      map[string]int64
}

func readNodeSum(record any) nodeSum {
	line, _, _ := strings.Cut(text(record), "\n")
	parts := strings.Split(line, " ")
	const numbers = 5 // tag, time, children, empty children, requests
	if len(parts) < numbers {
		return nodeSum{}
	}
	n := nodeSum{kids: sum(parts[2]), units: sum(parts[4]), byUnit: map[string]int64{}}
	for _, part := range parts[numbers:] {
		unit, units, _ := strings.Cut(part, "=")
		n.byUnit[unit] = sum(units)
	}
	return n
}

// of is what waits of a unit: a task that costs a number takes it of each.
func (n nodeSum) of(unit string) int64 {
	if unit == "" || unit == policy.Requests {
		return n.units
	}
	return max(0, n.units-n.byUnit["*"]+n.byUnit[unit])
}

// sum reads a number of units or lines; none is 0.
func sum(v any) int64 {
	n, _ := strconv.ParseInt(text(v), 10, 64)
	return max(0, n)
}

// Period returns how long it is from Forecast.At until the n-th period after the one at hand begins, Never for one that is further away than a
// Duration can say: months and days differ in length. It is without meaning but of a Calendar, and for n below 1. Not safe for concurrent
// use. It looks each of the first 10,000 periods up once, and takes later ones to be as long as the last of those.
func (r *RuleForecast) Period(n int64) time.Duration {
	if r.resets != nil {
		return r.resets.begin(n)
	}
	if r.Per > 0 && n-1 > int64((Never-r.Rest)/r.Per) {
		return Never
	}
	return r.Rest + time.Duration(n-1)*r.Per
}

// ends says when the rule's window or period ends.
func (r *RuleForecast) ends(rule policy.Rule, at time.Time) {
	if r.onUse(rule); rule.Algorithm == policy.FixedWindow && r.Rest == 0 && r.Per > 0 {
		r.Rest = r.Per - time.Duration(at.UnixNano()%int64(r.Per))
		return
	}
	if rule.Algorithm != policy.Calendar || rule.Limit == 0 {
		return
	}
	of := periodsOf(rule, at)
	r.Units, r.Per, r.Spread = rule.Limit, us(of.next-of.to), rule.Spread
	r.Rest = us(of.to - at.UnixMicro())
	r.resets = &resetTimes{of: rule.Resets, at: at}
}

// onUse sets how long a window that opens on use still lasts.
func (r *RuleForecast) onUse(rule policy.Rule) {
	if !rule.OpensOnUse || rule.Limit == 0 {
		return
	}
	r.Rest = r.Per // it opens with the next unit
	if r.ResetAfter > 0 {
		r.Rest = min(r.Rest, r.ResetAfter)
	}
}

// pace returns how many units a rule admits in how long while tasks wait for it.
func pace(b policy.MatchedRule, pad time.Duration) (units int64, per time.Duration) {
	kind, n := ruleParams(b.Rule, pad, mostMillionths(b))
	if b.Rule.Limit == 0 {
		return 0, 0
	}
	switch kind {
	case 'T':
		return n[0], us(n[1])
	case 'S':
		if n[2] == 0 {
			return n[0], us(n[1]) // a window that opens on use
		}
		cells := max(1, (n[1]+n[2]-1)/n[2]) // a unit leaves at the end of its cell
		return n[0], time.Duration(cells*n[2]) * time.Microsecond
	default:
		return 0, 0
	}
}
