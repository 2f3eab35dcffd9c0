package throttle

import (
	"sync"
	"sync/atomic"
	"time"
)

// clockOffset tells when a moment of a Redis server's clock has come on this process's.
//
// A reply that says what time it was there came after that time. So the least that
// any recent reply was behind is never less than how far the clocks are apart, and
// more by the shortest delay of a reply: a start that waits for its moment by it is
// never early, and is late by no more than that delay, however slow its own reply
// was. All starts have that much in common, and it moves none of them against
// another. Half the delay of a slow reply is not lost, which is what tells starts
// that are too late from those that are not.
type clockOffset struct {
	mu          sync.Mutex
	base        time.Time
	now, before time.Duration   // the least in this span and the one before
	older       []time.Duration // the same of those before that, the last at the end
	since       time.Time
	lag, varies time.Duration // by how much replies come later than the quickest, and how much that varies
	replies     int           // how many came of late; each span halves the count before it
	shortest    time.Duration // round trip since the offset was last unknown

	gone atomic.Bool // another one stands for the server by now
}

// skewSpans is how many spans count where replies vary by more than steady: a quick one is rare there. Clocks may run apart
// by no more than the pad meanwhile, 1 in 4000, and 1 in 800 where replies are steady.
const (
	skewSpans = 10
	steady    = 2 * time.Millisecond
)

// skewSpan is how long a reply counts at least, and half of how long at most: long
// enough for a fast one, too short for clocks to run apart. Those of looks count too:
// the first start of a process mostly follows one.
const skewSpan = 2 * time.Second

// minReplies is how many it takes to tell how much replies vary.
const minReplies = 32

// observe notes a reply: when it was asked for, when it came, and the server's time in
// between.
func (s *clockOffset) observe(asked, replied, server time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(asked, replied, server)
}

// begins notes a reply, as saw does, and returns when a start has come that is so far
// from the server's time in it.
func (s *clockOffset) begins(asked, replied, server time.Time, in time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(asked, replied, server)
	return s.come(server.Add(in))
}

func (s *clockOffset) note(asked, replied, server time.Time) {
	if s.base.IsZero() {
		s.base = asked
	}
	least, behind := s.behind(asked, server), s.behind(replied, server)
	age := replied.Sub(s.since)
	switch {
	case s.since.IsZero() || age > skewSpans*skewSpan || s.least() < least:
		// Nothing is known, or the server's clock was set back.
		s.now, s.before, s.older, s.since = behind, behind, nil, replied
		s.replies, s.shortest = 0, replied.Sub(asked)
	case age > skewSpan:
		if s.older = append(s.older, s.before); age > 2*skewSpan { // nothing was asked for a while
			s.older = append(s.older, s.now)
			s.now = behind
		}
		s.older = s.older[max(0, len(s.older)+2-skewSpans):]
		s.before, s.now, s.since = s.now, behind, replied
		s.replies /= 2
	default:
		s.now = min(s.now, behind)
	}
	s.replies++
	s.shortest = min(s.shortest, replied.Sub(asked))
	later := behind - s.least()
	s.varies += ((later - s.lag).Abs() - s.varies) / 4
	s.lag += (later - s.lag) / 8
}

// least is the shortest delay of a reply, and how far the clocks are apart. s.mu is held.
func (s *clockOffset) least() time.Duration {
	least := min(s.now, s.before)
	if s.lag+4*s.varies > steady {
		for _, its := range s.older {
			least = min(least, its)
		}
	}
	return least
}

// uncertainty is by how much least may still fall, when a reply comes that is quicker than all before. No round trip is
// shorter. If n replies come anywhere within 2 lags after the quickest possible one, the quickest of them comes within
// 8 lags / n of that in 24 of 25 cases.
func (s *clockOffset) uncertainty() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replies < minReplies {
		return s.shortest
	}
	return min(s.shortest, 8*s.lag/time.Duration(s.replies))
}

// slowest is by how much replies come later than the quickest, but for a few in a hundred: a start that is asked for at
// once has passed by so much when its reply comes.
func (s *clockOffset) slowest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lag + 4*s.varies
}

// roundTrip is how long a call takes, but for a few in a hundred; 0 before the first reply.
func (s *clockOffset) roundTrip() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shortest + s.lag + 4*s.varies
}

// behind is how far the server's clock was behind ours, which is counted from base
// by a clock that nobody sets.
func (s *clockOffset) behind(ours, server time.Time) time.Duration {
	return ours.Sub(s.base) - time.Duration(server.UnixMicro()-s.base.UnixMicro())*time.Microsecond
}

// toLocal returns when a moment of the server's has come for certain.
func (s *clockOffset) toLocal(server time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.come(server)
}

func (s *clockOffset) come(server time.Time) time.Time {
	since := time.Duration(server.UnixMicro()-s.base.UnixMicro()) * time.Microsecond
	return s.base.Add(since + s.least())
}

// toServer returns what the server's clock shows at least, when ours is at a time; ours,
// where no reply has told yet.
func (s *clockOffset) toServer(ours time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base.IsZero() {
		return ours
	}
	return time.UnixMicro(s.base.UnixMicro() + (ours.Sub(s.base) - s.least()).Microseconds())
}

// skews are those of the servers that a Limiter asks: one for each provider, whose
// keys share a server.
type skews struct {
	mu         sync.Mutex
	byProvider map[string]*clockOffset
}

func (s *skews) of(provider string) *clockOffset {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byProvider[provider]
	if one == nil {
		if s.byProvider == nil || len(s.byProvider) >= maxPlans {
			for _, old := range s.byProvider {
				old.gone.Store(true)
			}
			s.byProvider = map[string]*clockOffset{}
		}
		one = &clockOffset{}
		s.byProvider[provider] = one
	}
	return one
}
