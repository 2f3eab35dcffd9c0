package outage

import (
	"math"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// share is one process's part of a limit while Redis cannot decide: the limit divided by the live processes last seen, rounded
// down. What was granted before is not known here, so a share begins as if all of it had been spent at the last moment at which a
// grant of Redis can start: the outage itself adds nothing. Redis does not learn what shares have spent.
//
// Each spending counts until it leaves the window, or the lease of its run ends. A token bucket counts its burst in the time in
// which that refills; the burst is at least 1 in each process, since it could admit nothing otherwise.
type share struct {
	rule   policy.Rule
	limit  int64
	window time.Duration
	spent  []spending
}

// spending counts until a time: forever for a place that its holder keeps. Only those of runs have an id.
type spending struct {
	id          string
	first, ends time.Time // of the units that it sums up
	units       int64
}

// shareGrain is into how many spendings a window is divided at most, to bound memory.
const shareGrain = 256

// forever is when a place ends that its holder keeps, and longest the longest window of a share.
var forever = time.Unix(1<<40, 0)

const longest = wire.Forever / 4

// newShare returns the share of a rule that begins at now. A start may be slack later than its grant.
func newShare(r policy.Rule, live int64, now time.Time, slack time.Duration) *share {
	s := &share{rule: r, limit: r.Limit / live, window: r.Per + r.Margin + slack}
	switch {
	case r.Algorithm == policy.Concurrency:
		s.window = r.Lease
	case r.Algorithm == policy.TokenBucket && s.limit > 0:
		burst := max(1, r.Burst/live)
		s.window = time.Duration(min(math.Ceil(float64(s.window)/float64(s.limit)*float64(burst)), float64(longest)))
		s.limit = burst
	}
	last := s.leaves(now.Add(slack))
	s.spent = []spending{{first: last, ends: last, units: s.limit}}
	return s
}

// leaves returns when what is spent at a moment can be spent again. Windows that open on use count as sliding ones, which keep
// the limit wherever a window opens.
func (s *share) leaves(at time.Time) time.Time {
	switch {
	case s.rule.Algorithm == policy.Calendar:
		return s.rule.PeriodsAt(at).To
	case s.rule.Algorithm == policy.FixedWindow && !s.rule.OpensOnUse:
		return time.UnixMicro(at.UnixMicro()).Add(s.rule.Per - time.Duration(at.UnixMicro()%s.rule.Per.Microseconds())*time.Microsecond)
	}
	return at.Add(s.window)
}

// units is what a request takes: a run takes one place.
func (s *share) units(cost int64) int64 {
	if s.rule.Algorithm == policy.Concurrency {
		return 1
	}
	return cost
}

// fit returns how long until the share admits cost: 0 now, wire.Forever if it never will by itself.
func (s *share) fit(now time.Time, cost int64) time.Duration {
	cost = s.units(cost)
	s.spent = slices.DeleteFunc(s.spent, func(sp spending) bool { return !sp.ends.After(now) })
	missing := cost - s.left(now)
	switch {
	case cost > s.limit:
		return wire.Forever
	case missing <= 0:
		return 0
	}
	slices.SortStableFunc(s.spent, func(a, b spending) int { return a.ends.Compare(b.ends) })
	for _, sp := range s.spent {
		if missing -= sp.units; missing <= 0 {
			return untilEnd(sp.ends, now)
		}
	}
	return wire.Forever
}

// untilEnd returns wire.Forever for a place that its holder keeps.
func untilEnd(ends, now time.Time) time.Duration {
	if ends.Equal(forever) {
		return wire.Forever
	}
	return max(0, ends.Sub(now))
}

func (s *share) take(now time.Time, id string, cost int64) {
	sp := spending{ends: s.leaves(now), units: s.units(cost)}
	sp.first = sp.ends
	if s.rule.Algorithm == policy.Concurrency {
		sp.id = id
	} else if n := len(s.spent) - 1; n >= 0 && sp.ends.Sub(s.spent[n].first) <= s.window/shareGrain {
		s.spent[n].ends, s.spent[n].units = sp.ends, s.spent[n].units+sp.units
		return
	}
	s.spent = append(s.spent, sp)
}

// left returns how many units the share admits at once.
func (s *share) left(now time.Time) int64 {
	left := s.limit
	for _, sp := range s.spent {
		if sp.ends.After(now) {
			left -= sp.units
		}
	}
	return max(0, left)
}

// reset returns how long until the share is as if unused.
func (s *share) reset(now time.Time) time.Duration {
	last := now
	for _, sp := range s.spent {
		if sp.ends.After(last) {
			last = sp.ends
		}
	}
	return untilEnd(last, now)
}

// hold keeps the place of a run until it is given back.
func (s *share) hold(id string) {
	for i := range s.spent {
		if s.spent[i].id == id {
			s.spent[i].ends = forever
		}
	}
}

func (s *share) giveBack(id string) {
	s.spent = slices.DeleteFunc(s.spent, func(sp spending) bool { return sp.id == id })
}

// runs reports whether runs have places.
func (s *share) runs() bool {
	return slices.ContainsFunc(s.spent, func(sp spending) bool { return sp.id != "" })
}
