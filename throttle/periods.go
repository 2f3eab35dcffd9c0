package throttle

import (
	"github.com/headway-go/headway/throttle/policy"
	"strconv"
	"strings"
	"time"
)

// calendarParams is ruleParams for a calendar: what scripts are told of it at a time.
func calendarParams(r policy.Rule, pad time.Duration, p calendarWindow) (numbers [4]int64, more []int64) {
	slack := min(pad+widened(r), cronPeriod/2).Microseconds()
	spread := int64(0)
	if r.Spread {
		spread = 1
	}
	return [4]int64{r.Limit, p.from, p.to, p.next}, []int64{slack, r.Rollover, spread, p.before, p.beyond}
}

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// within narrows the time for which the plan holds to that of a rule's period.
func (p *compiledScope) within(of calendarWindow) {
	if p.until == 0 {
		p.from, p.until = of.from, of.to
		return
	}
	p.from, p.until = max(p.from, of.from), min(p.until, of.to)
}

// stale says that the plan has the calendar of another time, by the server's clock. By
// such a plan scripts admit nothing; see lua/include/algorithms/calendar.lua.
func (p *compiledScope) stale(at time.Time) bool {
	now := at.UnixMicro()
	return p.until != 0 && (now < p.from || now >= p.until)
}

// holds says that the plan will do at a time that may be told a little too early.
func (p *compiledScope) holds(now func(provider string) time.Time) bool {
	if p.until == 0 {
		return true
	}
	at := now(p.provider).UnixMicro()
	return p.from-early <= at && at < p.until
}

// cronPeriod is the shortest period of a calendar: cron knows none below a minute.
const cronPeriod = time.Minute

// early is how far the server's clock may be ahead of what is known of it, µs: a plan
// that was made by its own word is kept so long.
const early = 1_000_000

// renew makes the plans anew, of those scopes, that are stale at a time of the
// server's. It says whether any was.
func (c *scopeCache) renew(at time.Time, scopes ...string) (renewed bool) {
	for _, scope := range scopes {
		c.mu.RLock()
		p := c.known[scope]
		c.mu.RUnlock()
		if p != nil && p.stale(at) {
			_ = c.refresh(p, at)
			renewed = true
		}
	}
	return renewed
}

// refresh makes a plan anew for a time of the server's; nil where nothing is left of it, and
// its scope is to be looked up.
func (c *scopeCache) refresh(p *compiledScope, at time.Time) *compiledScope {
	if p.part.of != nil {
		return c.partAgain(p, at)
	}
	bounds := live(p.all, at)
	if len(bounds) == 0 {
		c.forget(p)
		return nil
	}
	fresh := compileScope(c.keys, p.scope, bounds, c.pad, at)
	fresh.made, fresh.settings, fresh.key = p.made, p.settings, p.key
	fresh.weigh(p.named) // other rules may be in force by now
	c.keep(fresh)
	return fresh
}

// partAgain is again for a plan that leaves out rules of another one.
func (c *scopeCache) partAgain(p *compiledScope, at time.Time) *compiledScope {
	whole := p.part.of
	c.mu.RLock()
	if known := c.known[whole.key]; known != nil && known.made == whole.made {
		whole = known
	}
	c.mu.RUnlock()
	if whole.stale(at) {
		whole = c.refresh(whole, at)
	}
	if whole == nil {
		c.forget(p)
		return nil
	}
	fresh := c.partOf(whole, p.part.costs, at)
	fresh.key = p.key
	c.keep(fresh)
	return fresh
}

// told heeds the time of a reply. It says whether any plan of the scopes was stale.
func (l *Limiter) told(provider string, asked, server time.Time, scopes []string) (stale bool) {
	l.skews.of(provider).observe(asked, time.Now(), server)
	return l.scopes.renew(server, scopes...)
}

// renewed returns another plan where a stale one has led to a denial. The zero Decision
// of an error is none.
func (l *Limiter) renewed(p *compiledScope, d *Decision) *compiledScope {
	if d.Allowed || d.At.IsZero() || !p.stale(d.At) {
		return nil
	}
	return l.scopes.refresh(p, d.At)
}

// ServerNow returns the estimated time of the Redis server that keeps a scope's limits, from its
// replies so far. It is behind by the shortest delay of a reply, and does not depend on how this
// process's clock is set. Before the first reply it is this process's own clock. It does no I/O.
func (w Waitlist) ServerNow(scope string) time.Time {
	name, _, _ := strings.Cut(scope, "/")
	return w.l.serverTime(keyspace(w.l.cfg.Prefix).provider(name))
}

// serverTime is what the clock of a provider's server shows, as far as its replies
// have told. It is late by the shortest delay of a reply.
func (l *Limiter) serverTime(provider string) time.Time {
	if text := l.clock(); text != "" { // a test's own
		now, _ := strconv.ParseInt(text, 10, 64)
		return time.UnixMicro(now)
	}
	return l.skews.of(provider).toServer(time.Now())
}

// calendarWindow is the period at hand of a calendar, which begins at from and is over at to, and its
// neighbours, in µs since the epoch.
type calendarWindow struct{ before, from, to, next, beyond int64 }

func periodsOf(r policy.Rule, at time.Time) calendarWindow {
	p := r.PeriodsAt(at)
	return calendarWindow{p.Before.UnixMicro(), p.From.UnixMicro(), p.To.UnixMicro(), p.Next.UnixMicro(), p.Beyond.UnixMicro()}
}
