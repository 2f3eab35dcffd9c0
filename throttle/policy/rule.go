package policy

import (
	"cmp"
	"time"
)

// Algorithm is the way a rule counts.
type Algorithm string

// The algorithms of rules. t is any length of time; per, limit and burst are those of the rule.
const (
	// TokenBucket never admits more than burst + limit/per × t units in any t.
	TokenBucket Algorithm = "token-bucket"
	// SlidingWindow never admits more than limit units in any window of per.
	SlidingWindow Algorithm = "sliding-window"
	// FixedWindow admits limit units in each window of per, and so up to 2 × limit around a boundary. Windows are counted from
	// the Unix epoch, or each from its first unit (Rule.OpensOnUse).
	FixedWindow Algorithm = "fixed-window"
	// Concurrency admits limit runs at once. Each takes one place, whatever its cost.
	Concurrency Algorithm = "concurrency"
	// Calendar admits limit units in each period of a calendar: a day, a month, or any other time between two runs of a cron
	// expression in a time zone.
	Calendar Algorithm = "calendar"
)

// FailurePolicy is what a rule does while Redis is unavailable.
type FailurePolicy string

// The failure policies of a rule.
const (
	// FailClosed makes tasks wait.
	FailClosed FailurePolicy = "closed"
	// FailOpen lets tasks run as if there were no rule.
	FailOpen FailurePolicy = "open"
	// FailShare gives each process limit / live workers last seen, rounded down.
	FailShare FailurePolicy = "share"
)

// The largest limit and the longest time of a rule.
const (
	MaxLimit = 1_000_000_000_000
	MaxTime  = 366 * day
)

// The other bounds of a rule. Messages print them, so they are round.
const (
	minTime  = time.Microsecond
	minLease = time.Second
	maxLease = day

	// shortestPeriod is the shortest period of a calendar: cron has none below a minute.
	shortestPeriod = time.Minute

	defaultBurst = 1
	defaultLease = 30 * time.Second

	day = 24 * time.Hour

	// MaxPriority is the largest priority of a task; -MaxPriority is the smallest.
	MaxPriority = 1_000_000
)

// Rule is one limit at one level of a scope. It is a value; == compares Resets and Active as pointers. A Policy checks every
// bound named below, and times are whole microseconds.
type Rule struct {
	// Name identifies the rule at its level, and an override replaces the rule of its name. 1 to 128 bytes, of the characters of
	// a scope's name. Required.
	Name string
	// Algorithm is the way the rule counts. Required unless Unlimited.
	Algorithm Algorithm
	// Limit is how many units Per admits, or how many runs Concurrency admits at once: 0 to 1e12. 0 suspends: tasks wait until
	// the limit is raised.
	Limit int64
	// Per is the length of the window, 1µs to 366 days. Required, except with Concurrency and Calendar, which have no window.
	Per time.Duration
	// OpensOnUse makes each window of a FixedWindow begin with the first unit that is spent after the previous window, instead of
	// at a multiple of Per since the Unix epoch. INCR with EXPIRE at the first hit counts in this way. Not with other algorithms.
	// Defaults to false. Source: docs/algorithms.md#windows-that-open-on-use
	OpensOnUse bool
	// Burst is how many units an idle TokenBucket admits at once, 1 to 1e12. Not with other algorithms. Defaults to 1.
	Burst int64
	// Lease is how long a Concurrency place outlives a holder that crashed, 1s to 24h. Not with other algorithms. Defaults to
	// 30s.
	Lease time.Duration
	// OnRedisError is what the rule does while Redis cannot answer. Defaults to FailClosed.
	OnRedisError FailurePolicy
	// Margin is added to the window, so that the limit also holds where the calls arrive. It is less than Per, less than half of
	// Per with FixedWindow, and less than 30s with Calendar. Not with Concurrency. Defaults to none.
	Margin time.Duration
	// MaxWait is the longest that a task waits for this rule, 1µs to 366 days. Defaults to no bound.
	MaxWait time.Duration
	// Resets is when the periods of a Calendar begin: wallclock.MustParse("0 0 1 * *", "Europe/Berlin"). A decision just as a
	// period ends, or in a process whose clock is off, takes a second round trip. Required with Calendar. Not with other
	// algorithms.
	Resets Schedule
	// Active is when the rule applies: wallclock.MustParseWindow("* 8-19 * * 1-5", "Europe/Berlin"). At other times it is as if
	// it were not there, and no rule that it overrides applies in its place. If the rule has Resets too, both have the same time
	// zone. Defaults to always.
	Active Hours
	// Rollover is the maximum number of units that a Calendar adds to a period from what the previous period left over, 0 to
	// 1e12. Not with other algorithms. Defaults to none.
	Rollover int64
	// Spread makes a Calendar spread what is left of a period over the time that is left of it. Not with other algorithms.
	// Defaults to false.
	Spread bool
	// Shadow makes the rule decide and count what it would have done, and delay no task: see Limiter.PeekShadows and
	// Config.OnShadow. OnRedisError and MaxWait then have no effect. Defaults to false.
	Shadow bool
	// Unit is what the rule counts: requests, tokens, or any other unit of Costs. 1 to 32 lower-case letters, digits, '-' and
	// '_'. Not with Concurrency, which counts runs. Defaults to Requests.
	Unit string
	// Cap is the largest part of the Capacity, in percent, that a cost by unit takes before it is settled, 1 to 100: a careful estimate
	// above it counts as that, under every rule of the unit. Not with Concurrency. Defaults to none: the estimate counts.
	Cap int64
	// Vendor is what the API's answers call the limit of this rule, 1 to 64 bytes of printable ASCII; case does not matter. A
	// refusal that names it pauses the level of the rule and cuts this rule alone. Defaults to none.
	Vendor string
	// Unlimited makes the rule remove an inherited one of its name. No other field except Name may then be set. Defaults to
	// false.
	Unlimited bool
}

// Capacity returns the largest cost, in units, that the rule can ever admit: the burst of a token bucket, the limit of any other.
// Units that a calendar has rolled over add to a period, but not to what one request may cost.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket {
		return max(r.Burst, defaultBurst)
	}
	return r.Limit
}

// withDefaults returns the rule with every default written out.
func (r Rule) withDefaults() Rule {
	if r.Unlimited {
		return r
	}
	if r.Algorithm == TokenBucket && r.Burst == 0 {
		r.Burst = defaultBurst
	}
	if r.Algorithm == Concurrency && r.Lease == 0 {
		r.Lease = defaultLease
	}
	r.OnRedisError = cmp.Or(r.OnRedisError, FailClosed)
	if r.Unit == "" && r.Algorithm != Concurrency {
		r.Unit = Requests
	}
	return r
}
