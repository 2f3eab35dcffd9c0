package inspect

import (
	"fmt"
	"math"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// RunTimes is how long runs under a concurrency rule take. It is zero if no run has ended for a day.
type RunTimes struct {
	Runs            int64         // that it stands for, 100 at most: then each later run takes a hundredth of it
	Mean, Deviation time.Duration // of the time from a run's start to its end
}

// Estimate is when something is expected to happen, from now: about In, and in 19 of 20 cases between From and To. All three are
// equal unless runs have to end before. They are the longest duration if it is unknown.
type Estimate struct{ In, From, To time.Duration }

// Unknown is the estimate of a moment that cannot be estimated.
var Unknown = Estimate{wire.Forever, wire.Forever, wire.Forever}

// Exactly returns the estimate of a moment that is known.
func Exactly(d time.Duration) Estimate { return Estimate{d, d, d} }

// Known reports whether the moment could be estimated.
func (e Estimate) Known() bool { return e.In != wire.Forever }

// Plus returns a known estimate from an earlier moment on.
func (e Estimate) Plus(d time.Duration) Estimate { return Estimate{e.In + d, e.From + d, e.To + d} }

// And returns when both have happened.
func (e Estimate) And(o Estimate) Estimate {
	return Estimate{max(e.In, o.In), max(e.From, o.From), max(e.To, o.To)}
}

// wide is how many standard deviations a range reaches: times of runs are often skewed, so that two are too few for 19 of 20.
const wide = 2.4

// Ends returns when so many runs will have ended, while every place that comes free is taken again. It is Unknown if nothing is
// known of runs. docs/algorithms.md#run-times has the proof.
func (r RunTimes) Ends(runs, places int64) Estimate {
	if runs <= 0 {
		return Estimate{}
	}
	if r.Runs == 0 || places == 0 {
		return Unknown
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
		return Unknown
	}
	return Estimate{time.Duration(min(max(in, from), to)), time.Duration(from), time.Duration(to)}
}

// PlaceQueue is what a task waits for that waits for a place under a concurrency rule: how many tasks take one up to and
// including it, and how many runs hold one. Those may be more than the rule's limit after that was lowered.
type PlaceQueue struct{ Tasks, Held int64 }

// Full reports whether runs have to end before the task gets its place.
func (p PlaceQueue) Full(limit int64) bool { return p.Tasks > limit-p.Held }

// Wait returns when the task gets its place. docs/algorithms.md#run-times has the proof.
func (r RunTimes) Wait(p PlaceQueue, limit int64) Estimate {
	over := p.Held - limit
	if over <= 0 {
		return r.Ends(p.Tasks+over, limit)
	}
	e, run := r.Ends(p.Tasks, limit), r.Ends(1, 1)
	if !e.Known() || !run.Known() {
		return Unknown
	}
	// Before those ends, runs end whose places are not taken again: a part of those at hand, which all end within a run.
	part := 2 * float64(over) / float64(p.Held)
	return Estimate{e.In + time.Duration(part*float64(run.In)), e.From, e.To + run.To}
}

// RunTimesKey returns where Redis keeps the run times of a concurrency rule; prefix is that of its provider's keys.
func RunTimesKey(prefix string, b policy.MatchedRule) string { return prefix + "t:" + wire.RuleName(b) }

// ReadRunTimes reads what Redis keeps there: see lua/include/run_times.lua. What is damaged is as good as nothing.
func ReadRunTimes(v any) RunTimes {
	text, _ := v.(string)
	var runs, mean, deviation int64
	_, err := fmt.Sscanf(text, "%d %d %d", &runs, &mean, &deviation)
	if err != nil || min(runs, mean, deviation) < 0 || max(mean, deviation) > wire.Forever.Microseconds() {
		return RunTimes{}
	}
	return RunTimes{runs, wire.Wait(mean), wire.Wait(deviation)}
}
