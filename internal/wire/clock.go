package wire

import (
	"slices"
	"sync"
	"time"
)

// Clock converts between a Redis server's clock and this process's. It is safe for concurrent use.
//
// A reply that carries the server's time arrives after that time. So the smallest lag of all recent replies is at least the
// offset of the clocks, and exceeds it by the shortest delay of a reply. A start that waits by that lag is never early, and is
// late by no more than that delay, however slow its own reply was. All starts have that delay in common, so their distances are
// exact. Half the round trip would be a better guess, but could be early.
type Clock struct {
	mu          sync.Mutex
	base        time.Time       // offsets are counted from here, by a clock that is never set
	spans       []time.Duration // the smallest lag in each of the latest spans, the present one last
	since       time.Time       // when the present span began
	lag, varies time.Duration   // by how much replies come later than the quickest, and how much that varies
	replies     int             // how many came of late; each span halves the count before it
	shortest    time.Duration   // round trip since the offset was last unknown
}

const (
	// clockSpan is how long a reply counts at least: long enough for a quick reply to be among those that count, and too short
	// for clocks to drift apart.
	clockSpan = 2 * time.Second
	// clockSpans is how many spans count where replies vary by more than steady, and quick replies are rare; elsewhere two count.
	// Meanwhile clocks may drift by no more than the start tolerance: 1 in 4000, and 1 in 800 where replies are steady.
	clockSpans = 10
	steady     = 2 * time.Millisecond
	// minReplies is how many replies it takes to tell how much they vary.
	minReplies = 32
)

// Observe notes a reply: when it was asked for, when it came, and the server's time in between.
func (c *Clock) Observe(asked, replied, server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base.IsZero() {
		c.base = asked
	}
	least, behind := c.behind(asked, server), c.behind(replied, server)
	age := replied.Sub(c.since)
	switch {
	case c.since.IsZero() || age > clockSpans*clockSpan || c.least() < least:
		// Nothing is known, or the server's clock was set back.
		c.spans, c.since = []time.Duration{behind}, replied
		c.replies, c.shortest = 0, replied.Sub(asked)
	case age > clockSpan:
		if c.spans = append(c.spans, behind); age > 2*clockSpan { // nothing was asked for a while
			c.spans = append(c.spans, behind)
		}
		c.spans, c.since = c.spans[max(0, len(c.spans)-clockSpans):], replied
		c.replies /= 2
	default:
		c.spans[len(c.spans)-1] = min(c.spans[len(c.spans)-1], behind)
	}
	c.replies++
	c.shortest = min(c.shortest, replied.Sub(asked))
	later := behind - c.least()
	c.varies += ((later - c.lag).Abs() - c.varies) / 4
	c.lag += (later - c.lag) / 8
}

// least returns the smallest lag that counts: the offset of the clocks and the shortest delay of a reply. c.mu is held.
func (c *Clock) least() time.Duration {
	spans := c.spans
	if len(spans) == 0 {
		return 0
	}
	if c.lag+4*c.varies <= steady {
		spans = spans[max(0, len(spans)-2):]
	}
	return slices.Min(spans)
}

// behind returns how far the server's clock was behind ours. c.mu is held.
func (c *Clock) behind(ours, server time.Time) time.Duration {
	return ours.Sub(c.base) - time.Duration(server.UnixMicro()-c.base.UnixMicro())*time.Microsecond
}

// Uncertainty returns by how much the smallest lag may still fall, when a quicker reply comes. It is at most the shortest round
// trip. If n replies come anywhere within 2 lags after the quickest possible one, the quickest of them comes within 8 lags / n of
// that in 24 of 25 cases.
func (c *Clock) Uncertainty() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replies < minReplies {
		return c.shortest
	}
	return min(c.shortest, 8*c.lag/time.Duration(c.replies))
}

// Slowest returns by how much replies come later than the quickest, but for a few in a hundred: a start that is due at once has
// passed by so much when its reply comes.
func (c *Clock) Slowest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lag + 4*c.varies
}

// RoundTrip returns how long a call takes, but for a few in a hundred; 0 before the first reply.
func (c *Clock) RoundTrip() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shortest + c.lag + 4*c.varies
}

// ToLocal returns when a moment of the server's clock has come for certain.
func (c *Clock) ToLocal(server time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Duration(server.UnixMicro()-c.base.UnixMicro()) * time.Microsecond
	return c.base.Add(since + c.least())
}

// ToServer returns what the server's clock shows at least at a time of ours; that time itself before the first reply.
func (c *Clock) ToServer(ours time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base.IsZero() {
		return ours
	}
	return time.UnixMicro(c.base.UnixMicro() + (ours.Sub(c.base) - c.least()).Microseconds())
}

// Clocks has a clock for each provider, whose keys are on one server. It is safe for concurrent use.
type Clocks struct {
	mu       sync.Mutex
	byPrefix map[string]*Clock
}

// maxClocks bounds the clocks that are known at once: a flood of providers costs work again, and no memory.
const maxClocks = 10_000

// Of returns the clock of the server that has the keys of a prefix.
func (c *Clocks) Of(prefix string) *Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	clock := c.byPrefix[prefix]
	if clock == nil {
		if c.byPrefix == nil || len(c.byPrefix) >= maxClocks {
			c.byPrefix = map[string]*Clock{}
		}
		clock = &Clock{}
		c.byPrefix[prefix] = clock
	}
	return clock
}
