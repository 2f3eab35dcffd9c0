package throttle

import (
	"math"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// share is one process's part of a limit while Redis cannot decide: the limit
// divided by the live processes last seen, rounded down. What this process and
// others were granted before is not known here, so a share begins as if all of
// it had been spent in the last moment that a grant of Redis's can start: the
// outage itself adds nothing.
//
// A token bucket's burst is at least 1 in each process, whatever their number,
// since it could admit nothing otherwise. What shares have spent is not known to
// Redis when it decides again.
type share struct {
	rule     policy.Rule
	limit    int64
	capacity int64
	slack    time.Duration

	spent []spending           // windows and periods, oldest first
	full  time.Time            // token bucket: when it will be full
	held  map[string]time.Time // concurrency: the end of each run's place
	opens time.Time            // concurrency: when every lease in Redis has run out
}

// spending is what was spent within a short while, and counts from its end.
type spending struct {
	from, at time.Time
	units    int64
}

// shareGrain is how many spendings a window is divided into at most: more would
// only cost memory.
const shareGrain = 256

// forever is when a place ends whose holder keeps it, and longest the time that
// a share's bucket takes to fill at most.
var forever = time.Unix(1<<40, 0)

const longest = Never / 4

func newShare(r policy.Rule, live int64, now time.Time, slack time.Duration) *share {
	s := &share{rule: r, limit: r.Limit / live, slack: slack}
	s.capacity = s.limit
	last := now.Add(slack)
	switch r.Algorithm {
	case policy.TokenBucket:
		s.capacity = max(1, min(r.Burst/live, int64(longest/s.unit(1))))
		s.full = last.Add(s.unit(s.capacity))
	case policy.SlidingWindow, policy.FixedWindow, policy.Calendar:
		s.spent = []spending{{last, last, s.limit}}
	case policy.Concurrency:
		s.held, s.opens = map[string]time.Time{}, last.Add(r.Lease)
	}
	return s
}

// window is the length of the rule's window. What is granted here may start as
// late as what Redis grants.
func (s *share) window() time.Duration { return s.rule.Per + wire.Widened(s.rule) + s.slack }

// unit is how long a token bucket takes to refill n units.
func (s *share) unit(n int64) time.Duration {
	if s.limit == 0 {
		return longest
	}
	return time.Duration(math.Ceil(float64(s.window()) / float64(s.limit) * float64(n)))
}

// fit returns how long until the share admits cost: 0 now, Never where it never will by itself.
func (s *share) fit(now time.Time, cost int64) time.Duration {
	if s.limit == 0 || s.rule.Algorithm != policy.Concurrency && cost > s.capacity {
		return Never
	}
	s.forget(now)
	switch s.rule.Algorithm {
	case policy.TokenBucket:
		return max(0, s.full.Sub(now)-s.unit(s.capacity-cost))
	case policy.Concurrency:
		return s.fitRun(now)
	case policy.SlidingWindow, policy.FixedWindow, policy.Calendar:
	}
	over := cost - s.left(now)
	for _, one := range s.spent {
		if over <= 0 {
			break
		}
		if over -= one.units; over <= 0 {
			return s.leaves(one.at).Sub(now)
		}
	}
	return 0
}

func (s *share) fitRun(now time.Time) time.Duration {
	if now.Before(s.opens) {
		return s.opens.Sub(now)
	}
	if int64(len(s.held)) < s.limit {
		return 0
	}
	first := forever
	for _, ends := range s.held {
		if ends.Before(first) {
			first = ends
		}
	}
	return untilEnd(first, now)
}

// untilEnd is Never for a place that its holder keeps.
func untilEnd(ends, now time.Time) time.Duration {
	if ends.Equal(forever) {
		return Never
	}
	return max(0, ends.Sub(now))
}

// aligned reports whether the rule's windows begin where Redis has them begin: at the Unix epoch, or with a
// period. Windows that open on use count as sliding windows here, which keep the limit wherever a window opens.
func (s *share) aligned() bool {
	return s.rule.Algorithm == policy.FixedWindow && !s.rule.OpensOnUse || s.rule.Algorithm == policy.Calendar
}

// leaves is when what was spent at a moment can be spent again.
func (s *share) leaves(at time.Time) time.Time {
	if s.rule.Algorithm == policy.Calendar {
		return s.rule.PeriodsAt(at).To
	}
	if !s.aligned() {
		return at.Add(s.window())
	}
	per := s.rule.Per.Microseconds()
	into := time.Duration(at.UnixMicro()%per)*time.Microsecond + time.Duration(at.Nanosecond()%1000)
	return at.Add(s.rule.Per - into)
}

// together tells whether what is spent now may stand with what was spent last.
func (s *share) together(last spending, now time.Time) bool {
	if s.aligned() {
		return s.leaves(last.at).Equal(s.leaves(now))
	}
	return !now.Before(last.at) && now.Sub(last.from) < s.window()/shareGrain
}

func (s *share) forget(now time.Time) {
	for len(s.spent) > 0 && !s.leaves(s.spent[0].at).After(now) {
		s.spent = s.spent[1:]
	}
	for id, ends := range s.held {
		if !ends.After(now) {
			delete(s.held, id)
		}
	}
}

func (s *share) take(now time.Time, id string, cost int64) {
	switch s.rule.Algorithm {
	case policy.TokenBucket:
		if s.full.Before(now) {
			s.full = now
		}
		s.full = s.full.Add(s.unit(cost))
	case policy.Concurrency:
		s.held[id] = now.Add(s.rule.Lease)
	case policy.SlidingWindow, policy.FixedWindow, policy.Calendar:
		if n := len(s.spent) - 1; n >= 0 && s.together(s.spent[n], now) {
			s.spent[n].at, s.spent[n].units = now, s.spent[n].units+cost
			return
		}
		s.spent = append(s.spent, spending{now, now, cost})
	}
}

func (s *share) left(now time.Time) int64 {
	switch s.rule.Algorithm {
	case policy.TokenBucket:
		if s.limit == 0 {
			return 0
		}
		owed := float64(max(0, s.full.Sub(now))) / float64(s.unit(1))
		return max(0, s.capacity-int64(owed+0.999999))
	case policy.Concurrency:
		if now.Before(s.opens) {
			return 0
		}
		return max(0, s.limit-int64(len(s.held)))
	case policy.SlidingWindow, policy.FixedWindow, policy.Calendar:
	}
	left := s.limit
	for _, one := range s.spent {
		left -= one.units
	}
	return max(0, left)
}

// reset is how long until the share is as if unused.
func (s *share) reset(now time.Time) time.Duration {
	last := s.full
	switch s.rule.Algorithm {
	case policy.TokenBucket:
	case policy.Concurrency:
		last = s.opens
		for _, ends := range s.held {
			if ends.After(last) {
				last = ends
			}
		}
	case policy.SlidingWindow, policy.FixedWindow, policy.Calendar:
		if len(s.spent) == 0 {
			return 0
		}
		last = s.leaves(s.spent[len(s.spent)-1].at)
	}
	return untilEnd(last, now)
}
