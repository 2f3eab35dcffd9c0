package wire

import (
	"slices"
	"sync"
	"time"
)

// Clock tells when a moment of a Redis server's clock has come on this process's.
//
// A reply that says what time it was there came after that time. So the least that
// any recent reply was behind is never less than how far the clocks are apart, and
// more by the shortest delay of a reply: a start that waits for its moment by it is
// never early, and is late by no more than that delay, however slow its own reply
// was. All starts have that much in common, and it moves none of them against
// another. Half the delay of a slow reply is not lost, which is what tells starts
// that are too late from those that are not.
type Clock struct {
	mu          sync.Mutex
	base        time.Time
	spans       []time.Duration // the least in each of the latest spans, the present one at the end
	since       time.Time       // begin of the present span
	lag, varies time.Duration   // by how much replies come later than the quickest, and how much that varies
	replies     int             // how many came of late; each span halves the count before it
	shortest    time.Duration   // round trip since the offset was last unknown
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

// Observe notes a reply: when it was asked for, when it came, and the server's time in
// between.
func (c *Clock) Observe(asked, replied, server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(asked, replied, server)
}

// Begins notes a reply, as saw does, and returns when a start has come that is so far
// from the server's time in it.
func (c *Clock) Begins(asked, replied, server time.Time, in time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(asked, replied, server)
	return c.come(server.Add(in))
}

func (c *Clock) note(asked, replied, server time.Time) {
	if c.base.IsZero() {
		c.base = asked
	}
	least, behind := c.behind(asked, server), c.behind(replied, server)
	age := replied.Sub(c.since)
	switch {
	case c.since.IsZero() || age > skewSpans*skewSpan || c.least() < least:
		// Nothing is known, or the server's clock was set back.
		c.spans, c.since = []time.Duration{behind}, replied
		c.replies, c.shortest = 0, replied.Sub(asked)
	case age > skewSpan:
		if c.spans = append(c.spans, behind); age > 2*skewSpan { // nothing was asked for a while
			c.spans = append(c.spans, behind)
		}
		c.spans, c.since = c.spans[max(0, len(c.spans)-skewSpans):], replied
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

// least is the shortest delay of a reply, and how far the clocks are apart. c.mu is held.
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

// Uncertainty is by how much least may still fall, when a reply comes that is quicker than all before. No round trip is
// shorter. If n replies come anywhere within 2 lags after the quickest possible one, the quickest of them comes within
// 8 lags / n of that in 24 of 25 cases.
func (c *Clock) Uncertainty() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replies < minReplies {
		return c.shortest
	}
	return min(c.shortest, 8*c.lag/time.Duration(c.replies))
}

// Slowest is by how much replies come later than the quickest, but for a few in a hundred: a start that is asked for at
// once has passed by so much when its reply comes.
func (c *Clock) Slowest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lag + 4*c.varies
}

// RoundTrip is how long a call takes, but for a few in a hundred; 0 before the first reply.
func (c *Clock) RoundTrip() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shortest + c.lag + 4*c.varies
}

// behind is how far the server's clock was behind ours, which is counted from base
// by a clock that nobody sets.
func (c *Clock) behind(ours, server time.Time) time.Duration {
	return ours.Sub(c.base) - time.Duration(server.UnixMicro()-c.base.UnixMicro())*time.Microsecond
}

// ToLocal returns when a moment of the server's has come for certain.
func (c *Clock) ToLocal(server time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.come(server)
}

func (c *Clock) come(server time.Time) time.Time {
	since := time.Duration(server.UnixMicro()-c.base.UnixMicro()) * time.Microsecond
	return c.base.Add(since + c.least())
}

// ToServer returns what the server's clock shows at least, when ours is at a time; ours,
// where no reply has told yet.
func (c *Clock) ToServer(ours time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base.IsZero() {
		return ours
	}
	return time.UnixMicro(c.base.UnixMicro() + (ours.Sub(c.base) - c.least()).Microseconds())
}

// Clocks are those of the servers that a Limiter asks: one for each provider, whose
// keys share a server.
type Clocks struct {
	mu         sync.Mutex
	byProvider map[string]*Clock
}

// Of returns the clock of the server that keeps a provider's keys.
func (c *Clocks) Of(provider string) *Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.byProvider[provider]
	if one == nil {
		if c.byProvider == nil || len(c.byProvider) >= maxClocks {
			c.byProvider = map[string]*Clock{}
		}
		one = &Clock{}
		c.byProvider[provider] = one
	}
	return one
}

// maxClocks bounds the clocks that are known at once: a flood of providers costs work again, and no memory.
const maxClocks = 10_000
