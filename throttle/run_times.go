package throttle

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// RunTimes is how long runs under a concurrency rule take. Redis keeps it by where the policy has the rule, so that
// scopes which share a rule of "*" share it, too. It is zero if no run has ended for a day.
type RunTimes struct {
	// Runs is how many runs it stands for, 100 at most. Once it stands for 100, each later run takes a
	// hundredth of it.
	Runs int64
	// Mean and Deviation are the mean and the standard deviation of the time from a run's start to its end.
	Mean, Deviation time.Duration
}

// Estimate is when something is expected to happen, from now: about In, and in 19 of 20 cases between From and To. All three are
// equal unless runs have to end before. They are Never if no clock can tell.
type Estimate struct{ In, From, To time.Duration }

// Known reports whether a clock can tell.
func (e Estimate) Known() bool { return e.In != Never }

// unknowable is what no clock can tell.
var unknowable = Estimate{Never, Never, Never}

// exactly returns the estimate of a moment that is known; Never is.
func exactly(d time.Duration) Estimate { return Estimate{d, d, d} }

// plus returns the estimate from an earlier moment on.
func (e Estimate) plus(d time.Duration) Estimate { return Estimate{e.In + d, e.From + d, e.To + d} }

// and returns when both have happened.
func (e Estimate) and(o Estimate) Estimate {
	return Estimate{max(e.In, o.In), max(e.From, o.From), max(e.To, o.To)}
}

// wide is how many standard deviations a range reaches: times of runs are often skewed, so that two are too few for 19 of 20.
const wide = 2.4

// ends returns when so many runs will have ended, while every place that comes free is taken again. It returns unknowable if
// nothing is known of runs. docs/algorithms.md#run-times has the proof.
func (r RunTimes) ends(runs, places int64) Estimate {
	if runs <= 0 {
		return Estimate{}
	}
	if r.Runs == 0 || places == 0 {
		return unknowable
	}
	mean, n, k, seen := float64(r.Mean), float64(runs), float64(places), float64(r.Runs)
	// The deviation of few runs is no more certain than their mean.
	variance := float64(r.Deviation)*float64(r.Deviation) + mean*mean/seen
	rounds := math.Ceil(n / k) // how many runs of the place where most end
	spread := wide * math.Sqrt(variance*(n/(k*k)+rounds*rounds/seen))
	from, to := max(0, (rounds-1)*mean-spread), rounds*mean+spread
	in := (n - 1) * mean / k
	if mean > 0 {
		in += (mean*mean + variance) / (2 * mean * k) // what is left of a run at hand, on average
	}
	if to > math.MaxInt64/2 {
		return unknowable
	}
	return Estimate{time.Duration(min(max(in, from), to)), time.Duration(from), time.Duration(to)}
}

// placeQueue is what a task that waits for a place under a concurrency rule waits for: how many tasks take one up to and including it, and
// how many runs hold one, which may be more than the rule's limit after that was lowered.
type placeQueue struct{ tasks, held int64 }

// full reports whether runs have to end before the task gets its place.
func (p placeQueue) full(limit int64) bool { return p.tasks > limit-p.held }

// wait returns when the task gets its place. docs/algorithms.md#run-times has the proof.
func (r RunTimes) wait(p placeQueue, limit int64) Estimate {
	over := p.held - limit
	if over <= 0 {
		return r.ends(p.tasks+over, limit)
	}
	e, one := r.ends(p.tasks, limit), r.ends(1, 1)
	if !e.Known() || !one.Known() {
		return unknowable
	}
	// Before those ends, runs end whose places are not taken again: a part of those at hand, which all end within a run.
	part := 2 * float64(over) / float64(p.held)
	return Estimate{e.In + time.Duration(part*float64(one.In)), e.From, e.To + one.To}
}

// runsKey returns where Redis keeps the run times of a concurrency rule; provider is the prefix of its keys.
func runsKey(provider string, b policy.MatchedRule) string {
	return provider + "!runs" + scopePath(b.Pattern) + ":" + escape(b.Rule.Name)
}

// readRunTimes parses what Redis keeps: see lua/include/core/run_times.lua. What is damaged is as good as nothing.
func readRunTimes(v any) RunTimes {
	var runs, mean, deviation int64
	_, err := fmt.Sscanf(text(v), "%d %d %d", &runs, &mean, &deviation)
	if err != nil || min(runs, mean, deviation) < 0 || max(mean, deviation) > Never.Microseconds() {
		return RunTimes{}
	}
	return RunTimes{runs, us(mean), us(deviation)}
}

// runsReply is what is read of the concurrency rules of a plan.
type runsReply struct {
	times *redis.SliceCmd
	held  []*redis.IntCmd
}

// askRuns asks for the run times of the plan's concurrency rules and for the runs that hold places at a time. It needs some.
func (p *compiledScope) askRuns(ctx context.Context, pipe redis.Pipeliner, at time.Time) (r runsReply) {
	r.times = pipe.MGet(ctx, p.runKeys()...)
	for _, i := range p.leases {
		r.held = append(r.held, pipe.ZCount(ctx, p.keys[i], "("+strconv.FormatInt(at.UnixMicro(), 10), "+inf"))
	}
	return r
}

// setRuns takes over what askRuns asked for.
func (f *Forecast) setRuns(p *compiledScope, r runsReply) {
	for k, i := range p.leases {
		one := &f.Rules[i]
		one.RunTimes, one.over = readRunTimes(r.times.Val()[k]), max(0, r.held[k].Val()-one.Limit)
	}
}

// addRunTimes puts in when those will start who wait for runs to end. Costs a round trip if there are any.
func (l *Limiter) addRunTimes(ctx context.Context, t *table, lines []inspected) error {
	var keys []string
	at := map[string]int{}
	for i, line := range lines {
		for k, of := range line.places {
			if b := t.plans[i].lease(k); of.full(b.Rule.Limit) {
				key := runsKey(t.plans[i].provider, b)
				if _, asked := at[key]; !asked {
					at[key], keys = len(keys), append(keys, key)
				}
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	var values *redis.SliceCmd
	err := l.Waitlist().read(ctx, func(ctx context.Context, pipe redis.Pipeliner) { values = pipe.MGet(ctx, keys...) })
	if err != nil {
		return err
	}
	for i := range lines {
		p := t.plans[i]
		lines[i].waitForRuns(p, func(b policy.MatchedRule) RunTimes { return readRunTimes(values.Val()[at[runsKey(p.provider, b)]]) })
	}
	return nil
}

// waitForRuns adds what a line waits for under its concurrency rules.
func (i *inspected) waitForRuns(p *compiledScope, times func(policy.MatchedRule) RunTimes) {
	start, binding := i.start, i.binding
	switch full := binding.Rule; {
	case i.paused || binding.Paused():
		return
	case start.Known():
	case full.Algorithm != policy.Concurrency || full.Limit == 0:
		return // no end of a run changes that
	default:
		start = Estimate{}
	}
	for k, of := range i.places {
		b := p.lease(k)
		if !of.full(b.Rule.Limit) {
			continue
		}
		wait := times(b).wait(of, b.Rule.Limit)
		if !wait.Known() {
			return
		}
		if wait.In > start.In {
			binding = b
		}
		start = start.and(wait)
	}
	i.start, i.binding = start, binding
}
