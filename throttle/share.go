package throttle

import "time"

// share is one process's part of a limit while Redis cannot answer: the limit
// divided by the live processes last seen, rounded down. It begins as spent, as
// if the whole share had gone out in the moment that Redis was lost, since what
// went out before is not known here: so the outage itself adds nothing.
type share struct {
	rule     Rule
	limit    int64
	capacity int64

	spent []spending           // sliding and fixed windows, oldest first
	full  time.Time            // token bucket: when it will be full
	held  map[string]time.Time // concurrency: the end of each lease
}

type spending struct {
	at    time.Time
	units int64
}

func newShare(r Rule, live int64, now time.Time) *share {
	s := &share{rule: r, limit: r.Limit / live, held: map[string]time.Time{}}
	s.capacity = s.limit
	switch r.Algorithm {
	case TokenBucket:
		s.capacity = max(1, r.Burst/live)
		s.full = now.Add(s.unit(s.capacity))
	case SlidingWindow, FixedWindow:
		s.spent = []spending{{now, s.limit}}
	case Concurrency:
	}
	return s
}

// unit is how long a token bucket takes to refill n units.
func (s *share) unit(n int64) time.Duration {
	if s.limit == 0 {
		return Unknown
	}
	return time.Duration(float64(s.rule.Per+s.rule.Margin) / float64(s.limit) * float64(n))
}

// fit returns how long until the share admits cost: 0 now, Unknown never by itself.
func (s *share) fit(now time.Time, cost int64) time.Duration {
	if s.limit == 0 || s.rule.Algorithm != Concurrency && cost > s.capacity {
		return Unknown
	}
	s.forget(now)
	switch s.rule.Algorithm {
	case TokenBucket:
		return max(0, s.full.Sub(now)-s.unit(s.capacity-cost))
	case Concurrency:
		return s.fitRun(now)
	case SlidingWindow, FixedWindow:
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
	if int64(len(s.held)) < s.limit {
		return 0
	}
	first := Unknown
	for _, ends := range s.held {
		first = min(first, ends.Sub(now))
	}
	return first
}

// leaves is when what was spent at a moment can be spent again.
func (s *share) leaves(at time.Time) time.Time {
	if s.rule.Algorithm == FixedWindow {
		return at.Truncate(s.rule.Per).Add(s.rule.Per)
	}
	return at.Add(s.rule.Per + s.rule.Margin)
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
	case TokenBucket:
		if s.full.Before(now) {
			s.full = now
		}
		s.full = s.full.Add(s.unit(cost))
	case Concurrency:
		s.held[id] = now.Add(s.rule.Lease)
	case SlidingWindow, FixedWindow:
		s.spent = append(s.spent, spending{now, cost})
	}
}

func (s *share) left(now time.Time) int64 {
	switch s.rule.Algorithm {
	case TokenBucket:
		if s.limit == 0 {
			return 0
		}
		owed := float64(max(0, s.full.Sub(now))) / float64(s.unit(1))
		return max(0, s.capacity-int64(owed+0.999999))
	case Concurrency:
		return max(0, s.limit-int64(len(s.held)))
	case SlidingWindow, FixedWindow:
	}
	left := s.limit
	for _, one := range s.spent {
		left -= one.units
	}
	return max(0, left)
}
