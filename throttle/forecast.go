package throttle

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// RunTimes is how long runs under a concurrency rule take.
type RunTimes = inspect.RunTimes

// Estimate is when something is expected to happen.
type Estimate = inspect.Estimate

// Forecast is what the next task of a scope meets: the state of its rules, their pace, and the tasks that wait before it.
type Forecast struct {
	// At is the Redis server's time.
	At time.Time
	// Waiting is the number of tasks in the scope's own lines.
	Waiting int64
	// Rules has one entry for each rule on the scope's path that applies now, outermost first.
	Rules []RuleForecast
	// Pool is the level of the pool on the scope's path, empty for none: a task also waits for one of its members. See
	// Limiter.Members.
	Pool string
	// PoolWaiting is the number of tasks that wait at that level and below it, and PoolQueues how many lines take turns there. Pace
	// does not read them.
	PoolWaiting, PoolQueues int64
	// PoolOverflow is the OverflowAfter of that pool.
	PoolOverflow time.Duration
	// PausedFor is how long the API has asked not to be called for the scope any more; 0 if it has not. See UpstreamState.
	PausedFor time.Duration
	// Until is when the set of applying rules changes next, by the server's clock; zero if no rule is limited to certain hours.
	Until time.Time
}

// RuleForecast is the state and the pace of one rule of a Forecast.
type RuleForecast struct {
	// RuleState is what Peek returns for one unit.
	RuleState
	// Units become available every Per while tasks wait for them, with the start tolerance and the margin included. Units is 0
	// for a suspended rule and a concurrency rule.
	Units int64
	Per   time.Duration
	// Rest is the time until the period of a Calendar, or the window of a FixedWindow, ends: Per for a window that opens on use
	// while none is open. Spread says that a Calendar's remaining units are spread over that time.
	Rest   time.Duration
	Spread bool
	// RunTimes is how long runs take under a concurrency rule.
	RunTimes RunTimes
	over     int64           // how many more runs than its limit hold places, after that was lowered
	resets   policy.Schedule // of a calendar
	at       time.Time
	periods  []time.Duration // from at until later periods begin, as far as they were asked for
	// Waiting is the number of tasks that wait under the rule, whatever they cost, and Own how many of them are the scope's own.
	// Tasks that were granted a start are not counted: they are charged already.
	Waiting, Own int64
	// Queues is how many lines take turns for the rule's units, the scope's own included: those that no other rule holds up.
	Queues int64
}

// Forecast returns what the next task of a scope meets. It changes nothing. It costs four round trips, and one more if runs hold
// places. Its errors are those of Peek.
func (l *Limiter) Forecast(ctx context.Context, scope string) (Forecast, error) {
	out, err := l.Pace(ctx, scope)
	if err != nil || len(out.Rules) == 0 && out.Pool == "" {
		return out, err
	}
	provider, _, _ := strings.Cut(scope, "/")
	levels := []string{scope}
	for _, r := range out.Rules {
		levels = append(levels, r.Scope)
	}
	if out.Pool != "" {
		levels = append(levels, out.Pool)
	}
	waiting, err := inspect.Of(l.list).WaitingIn(ctx, provider, levels...)
	if err != nil {
		return Forecast{}, err
	}
	out.Waiting = waiting[0].Own
	if last := waiting[len(waiting)-1]; out.Pool != "" {
		out.PoolWaiting, out.PoolQueues = last.Tasks, last.Children
	}
	for i := range out.Rules {
		w := waiting[1+i]
		out.Rules[i].Waiting, out.Rules[i].Queues, out.Rules[i].Own = w.Tasks, w.Children, out.Waiting
	}
	return out, nil
}

// Pace is Forecast without what waits. It costs one round trip, and one more if runs hold places.
func (l *Limiter) Pace(ctx context.Context, scope string) (out Forecast, err error) {
	p, err := l.plan(scope)
	if err != nil {
		return out, err
	}
	d, p, err := l.peek(ctx, p, &Request{Scope: scope, Cost: defaultCost})
	if err != nil {
		return out, err
	}
	if out.At = d.At; d.At.IsZero() { // it has no rules
		out.At = l.serverTime(p.Prefix)
	}
	if d.Paused {
		out.PausedFor = d.RetryAfter
	}
	if ends := p.Changes(); ends != wire.Never {
		out.Until = time.UnixMicro(ends)
	}
	out.Rules = l.forecasts(p, &d)
	if p.Pool != nil {
		out.Pool, out.PoolOverflow = p.Pool.Level.String(), p.Pool.Overflow
	}
	if p.Member != nil { // those of the path alone
		out.Rules = out.Rules[:len(p.Rules)-len(p.Member.Rules)]
	}
	if slices.ContainsFunc(out.Rules, func(r RuleForecast) bool { return r.Algorithm == policy.Concurrency }) {
		err = l.addRuns(ctx, p, &out)
	}
	return out, err
}

// forecasts returns the state and the pace of the rules of a decision about one unit.
func (l *Limiter) forecasts(p *plan, d *Decision) (list []RuleForecast) {
	for i, state := range d.Rules {
		r := RuleForecast{RuleState: state}
		r.Units, r.Per = pace(p.Rules[i], l.cfg.StartTolerance)
		r.ends(p.Rules[i].Rule, d.At)
		list = append(list, r)
	}
	return list
}

// RuleHours is a rule that applies in certain hours.
type RuleHours struct {
	policy.MatchedRule
	Holds   bool      // it applies now
	Changes time.Time // when that changes
}

// Hours returns the rules of a scope that apply in certain hours only, and whether they apply now, by Redis's clock as far as it
// is known. It does no I/O. The error is a *policy.ScopeError or *policy.UnmatchedError.
func (l *Limiter) Hours(scope string) (list []RuleHours, err error) {
	p, err := l.plan(scope)
	if err != nil {
		return nil, err
	}
	now := l.serverTime(p.Prefix)
	for _, b := range p.All {
		if b.Rule.Active != nil {
			active, _, until := b.Rule.ActiveAt(now)
			list = append(list, RuleHours{b, active, until})
		}
	}
	return list, nil
}

// addRuns adds how long runs under the concurrency rules take, and how many hold places beyond a limit. It costs one round trip.
func (l *Limiter) addRuns(ctx context.Context, p *plan, out *Forecast) error {
	times, held := make([]*redis.StringCmd, len(p.Rules)), make([]*redis.IntCmd, len(p.Rules))
	err := wire.Send(ctx, l.rdb, l.cfg.Timeout, func(ctx context.Context) error {
		return redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
			for i, b := range p.Rules[:len(out.Rules)] {
				if b.Rule.Algorithm == policy.Concurrency {
					times[i] = pipe.Get(ctx, inspect.RunTimesKey(p.Prefix, b))
					held[i] = pipe.ZCount(ctx, wire.StateKey(p.Prefix, b), "("+strconv.FormatInt(out.At.UnixMicro(), 10), "+inf")
				}
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, redis.Nil) { // no run has ended
		return wire.Unavailable(ctx, "read the run times of", p.Scope.Scope.String(), err)
	}
	for i := range out.Rules {
		if times[i] != nil {
			r := &out.Rules[i]
			r.RunTimes, r.over = inspect.ReadRunTimes(times[i].Val()), max(0, held[i].Val()-r.Limit)
		}
	}
	return nil
}

// begins returns the time from Forecast.At until the n-th period after the present one begins, n at least 1; Never for one that is
// further away than a Duration can hold. Periods after the first 10,000 count as long as the last of those.
func (r *RuleForecast) begins(n int64) time.Duration {
	if r.resets == nil {
		return later(r.Rest, r.Per, n-1)
	}
	for int64(len(r.periods)) < min(n, maxPeriods) {
		from := r.at
		if some := len(r.periods); some > 0 {
			from = from.Add(r.periods[some-1])
		}
		next := r.resets.Next(from)
		if next.IsZero() {
			return Never
		}
		r.periods = append(r.periods, next.Sub(r.at))
	}
	if n <= maxPeriods {
		return r.periods[n-1]
	}
	last := r.periods[maxPeriods-1]
	return later(last, last-r.periods[maxPeriods-2], n-maxPeriods)
}

// maxPeriods is how many periods are looked up.
const maxPeriods = 10_000

// later returns first plus n periods, Never if a Duration cannot hold that.
func later(first, period time.Duration, n int64) time.Duration {
	if period > 0 && n > int64((Never-first)/period) {
		return Never
	}
	return first + time.Duration(n)*period
}

// ends says when the rule's window or period ends.
func (r *RuleForecast) ends(rule policy.Rule, at time.Time) {
	switch {
	case rule.Limit == 0:
	case rule.Algorithm == policy.Calendar:
		of := rule.PeriodsAt(at)
		r.Units, r.Per, r.Spread = rule.Limit, of.Next.Sub(of.To), rule.Spread
		r.Rest, r.resets, r.at = of.To.Sub(at), rule.Resets, at
	case rule.OpensOnUse:
		r.Rest = r.Per // it opens with the next unit
		if r.ResetAfter > 0 {
			r.Rest = min(r.Rest, r.ResetAfter)
		}
	case rule.Algorithm == policy.FixedWindow && r.Per > 0:
		r.Rest = r.Per - time.Duration(at.UnixNano()%int64(r.Per))
	}
}
