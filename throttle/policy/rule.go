package policy

import "time"

// Algorithm is the way a rule counts.
type Algorithm string

// The algorithms that a rule can have. For t any length of time and per, limit
// and burst those of the rule:
const (
	// TokenBucket admits never more than burst + limit/per × t units in any t.
	TokenBucket Algorithm = "token-bucket"
	// SlidingWindow admits never more than limit units in any window of per.
	SlidingWindow Algorithm = "sliding-window"
	// FixedWindow admits limit units in each window of per, counted from the
	// Unix epoch or from its first unit (Rule.OpensOnUse), and so up to 2 × limit around a boundary.
	FixedWindow Algorithm = "fixed-window"
	// Concurrency admits limit runs at once, one place each whatever their cost.
	Concurrency Algorithm = "concurrency"
	// Calendar admits limit units in each period of a calendar: a day, a month, or
	// whatever lies between two runs of a cron expression in a time zone.
	Calendar Algorithm = "calendar"
)

var algorithms = []string{string(TokenBucket), string(SlidingWindow), string(FixedWindow), string(Concurrency), string(Calendar)}

// FailurePolicy is what a rule does while Redis is unavailable.
type FailurePolicy string

// The failure policies of a rule.
const (
	// FailClosed makes tasks wait.
	FailClosed FailurePolicy = "closed"
	// FailOpen lets tasks run as if the rule were not there.
	FailOpen FailurePolicy = "open"
	// FailShare gives each process limit / live workers last seen, rounded down.
	FailShare FailurePolicy = "share"
)

var failurePolicies = []string{string(FailClosed), string(FailOpen), string(FailShare)}

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

	// No start begins more than this after its API's pause was told, so that units are charged no longer before it.
	minPrefetch = time.Millisecond
	maxPrefetch = 250 * time.Millisecond
	// prefetchWindow is the shortest window to prefetch for: that costs no more than 2.5 % then.
	prefetchWindow = 10 * time.Second

	// shortestPeriod is that of a calendar: cron knows none below a minute.
	shortestPeriod = time.Minute

	defaultBurst = 1
	defaultLease = 30 * time.Second

	day = 24 * time.Hour
)

// Rule is one limit at one level of a scope. It is a value; == compares Resets and Active as pointers. A Policy
// checks every bound named below, and times are whole microseconds.
type Rule struct {
	// Name identifies the rule at its level, and is what an override replaces: 1 to 128 bytes, the
	// characters of a scope's name. Required.
	Name string
	// Algorithm is the way the rule counts. Required unless Unlimited.
	Algorithm Algorithm
	// Limit is how many units Per admits, or how many runs Concurrency admits at
	// once: 0 to 1e12. 0 suspends: tasks wait until it is raised.
	Limit int64
	// Per is the length of the window, 1µs to 366 days. Required, except with
	// Concurrency and Calendar, which have none.
	Per time.Duration
	// OpensOnUse makes each window of a FixedWindow begin with the first unit that is spent after the window
	// before it, as INCR with EXPIRE at the first hit does, instead of at a multiple of Per since the Unix epoch.
	// Other algorithms have none. Defaults to false.
	// Source: docs/algorithms.md#windows-that-open-on-use
	OpensOnUse bool
	// Burst is how many units an idle TokenBucket admits at once, 1 to 1e12.
	// Other algorithms have none. Defaults to 1.
	Burst int64
	// Lease is how long a Concurrency place outlives a holder that crashed, 1s to
	// 24h. Other algorithms have none. Defaults to 30s.
	Lease time.Duration
	// OnRedisError is what the rule does while Redis cannot answer. Defaults to
	// FailClosed.
	OnRedisError FailurePolicy
	// Margin is added to the window, so that the bound also holds where the
	// calls arrive: less than Per, less than half of it with FixedWindow, less than
	// 30s with Calendar. Not with Concurrency. Defaults to none.
	Margin time.Duration
	// Prefetch lets a process charge units up to so long before their starts come, and hand
	// them out by itself: many decisions then share one call. It is added to the window as Margin
	// is, so that the bound stays as strict, and costs Prefetch/Per of the limit. 1ms to 250ms.
	// A window, or a calendar's period, is at least 10s long; the burst of a TokenBucket is at
	// least two more than twice what it refills within Prefetch. Not with Concurrency, nor with
	// Spread. A path is prefetched for where all its rules say so; the least counts. Defaults to none.
	// Source: docs/algorithms.md#prefetch
	Prefetch time.Duration
	// MaxWait is the longest that a task waits for this rule, 1µs to 366 days.
	// Defaults to no bound.
	MaxWait time.Duration
	// Resets is when a period of a Calendar begins: wallclock.MustParse("0 0 1 * *", "Europe/Berlin"). What is asked
	// just when a period ends, or by a process whose clock is off, takes a second round
	// trip. Required with Calendar. Other algorithms have none.
	Resets Schedule
	// Active is when the rule holds: wallclock.MustParseWindow("* 8-19 * * 1-5", "Europe/Berlin"). At other times it is as if
	// it were not there, and no other comes back in its place. It is in the time zone of Resets, where a rule has both.
	// Defaults to always.
	Active Hours
	// Rollover is how many units at most a Calendar adds to a period of those that the
	// one before left over, 0 to 1e12. Other algorithms have none. Defaults to none.
	Rollover int64
	// Spread makes a Calendar spread what is left of a period over the time that is
	// left of it. Other algorithms have none. Defaults to false.
	Spread bool
	// Shadow makes the rule decide and count what it would have done, and stop nobody:
	// see Limiter.PeekShadows and Config.OnShadow. OnRedisError and MaxWait mean nothing
	// meanwhile. Defaults to false.
	Shadow bool
	// Unit is what the rule counts: requests, tokens, or whatever tasks cost by that name
	// (see Costs): 1 to 32 lower-case letters, digits, '-' and '_'. Not with Concurrency,
	// which counts runs. Defaults to Requests.
	Unit string
	// Unlimited makes the rule remove an inherited one of its name. No other
	// field but Name may then be set. Defaults to false.
	Unlimited bool
}

// Capacity returns the largest cost, in units, that the rule can ever admit:
// the burst of a token bucket, the limit of any other. What a calendar has rolled
// over adds to the units of a period, not to what one request may cost.
func (r Rule) Capacity() int64 {
	if r.Algorithm == TokenBucket {
		return max(r.Burst, defaultBurst)
	}
	return r.Limit
}

// prefetchBurst is the least burst of a bucket with its Prefetch. Half of it is what the bucket refills within
// that, which is demanded before a unit is, and a unit: so the rate stays whole, the pad included.
func (r Rule) prefetchBurst() int64 {
	part := r.Limit * min(r.Prefetch, maxPrefetch).Microseconds() // 2.5e17 at most
	per := max(r.Per.Microseconds(), 1)
	return 2*((part+per-1)/per) + 2
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
	if r.OnRedisError == "" {
		r.OnRedisError = FailClosed
	}
	if r.Unit == "" && r.Algorithm != Concurrency {
		r.Unit = Requests
	}
	return r
}

// equal reports whether two rules say the same.
func (r Rule) equal(other Rule) bool {
	if (r.Resets == nil) != (other.Resets == nil) || (r.Active == nil) != (other.Active == nil) ||
		r.Resets != nil && textOf(r.Resets) != textOf(other.Resets) ||
		r.Active != nil && textOf(r.Active) != textOf(other.Active) {
		return false
	}
	other.Resets, other.Active = r.Resets, r.Active
	return r == other
}

// unit is what the rule counts, empty for one that counts runs.
func (r Rule) unit() string {
	if r.Unit == "" && r.Algorithm != Concurrency {
		return Requests
	}
	return r.Unit
}
