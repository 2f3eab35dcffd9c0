package throttle

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
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

// runsKey returns where Redis keeps the run times of a concurrency rule; provider is the prefix of its keys.
func runsKey(provider string, b policy.MatchedRule) string {
	return provider + "!runs" + scopePath(b.Pattern) + ":" + escape(b.Rule.Name)
}

// readRunTimes parses what Redis keeps: see lua/include/core/run_times.lua. What is damaged is as good as nothing.
func readRunTimes(v any) RunTimes {
	var runs, mean, deviation int64
	if n, err := fmt.Sscanf(text(v), "%d %d %d", &runs, &mean, &deviation); err != nil || n != 3 || runs < 0 || mean < 0 || deviation < 0 {
		return RunTimes{}
	}
	return RunTimes{runs, us(mean), us(deviation)}
}

// readRuns returns what stands under keys of run times. Costs one round trip.
func (l *Limiter) readRuns(ctx context.Context, keys []string) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	var values *redis.SliceCmd
	err := redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		values = pipe.MGet(ctx, keys...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return values.Val(), nil
}

// addRunTimes puts in when those will start who wait for runs to end. Costs a round trip if there are any.
func (l *Limiter) addRunTimes(ctx context.Context, t *table, lines []inspected) error {
	var keys []string
	at := map[string]int{}
	for i, line := range lines {
		for k, runs := range line.ends {
			if b := t.plans[i].lease(k); runs > 0 {
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
	values, err := l.readRuns(ctx, keys)
	if err != nil {
		return err
	}
	for i := range lines {
		p := t.plans[i]
		lines[i].waitForRuns(p, func(b policy.MatchedRule) RunTimes { return readRunTimes(values[at[runsKey(p.provider, b)]]) })
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
	for k, runs := range i.ends {
		if runs == 0 {
			continue
		}
		b := p.lease(k)
		wait := times(b).ends(runs, b.Rule.Limit)
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
