package figures

import (
	"math"
	"time"
)

// Lateness returns, for each of the starts, which are in order, how long its unit had been free. Only starts can be seen, not the
// moments at which units were granted; so each grant is taken to have been as late as the starts allow. What is returned is then
// the least that explains them: a start that comes a whole interval too late is that late, once; one that comes on the schedule
// of those after it is not late at all. The rule must have been kept.
//
// The first unit counts from its own start, and so do the others that a bucket
// or window had when the backlog began to be worked off.
func (r Rule) Lateness(starts []time.Duration) []time.Duration {
	grants := r.latest(starts)
	late := make([]time.Duration, len(starts))
	begin := r.first()
	free := time.Duration(math.MinInt64) // at times(0), of the unit for the start at hand
	for i, start := range starts {
		since := starts[0]
		if from := i - begin; from >= 0 {
			if r.Bucket {
				free = max(free, grants[from]-r.times(int64(from)))
				since = max(since, free+r.times(int64(from+1)))
			} else {
				since = max(since, grants[from]+r.Per)
			}
		}
		late[i] = max(0, start-since)
	}
	return late
}

// first returns how many starts after another the one comes that the rule may
// make wait for it: a start has its interval or window after the burst or limit.
func (r Rule) first() int {
	if r.Bucket {
		return int(r.Burst)
	}
	return int(r.Limit)
}

// latest returns the latest moments at which the starts can have been granted:
// none later than its start, and no two closer than the rule admits.
func (r Rule) latest(starts []time.Duration) []time.Duration {
	grants := make([]time.Duration, len(starts))
	gap := r.first()
	bound := time.Duration(math.MaxInt64) // at times(0), of the grants that come gap later or more
	for i := len(starts) - 1; i >= 0; i-- {
		grants[i] = starts[i]
		if i+gap >= len(starts) {
			continue
		}
		if !r.Bucket {
			grants[i] = min(grants[i], grants[i+gap]-r.Per)
			continue
		}
		bound = min(bound, starts[i+gap]-r.times(int64(i+1)))
		grants[i] = min(grants[i], bound+r.times(int64(i)))
	}
	return grants
}
