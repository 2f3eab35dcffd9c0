package throttle

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Config is how a Limiter works. The zero Config is ready to use.
type Config struct {
	// Prefix begins every key, so that several systems can share a Redis: letters,
	// digits, '-', '_' and '.'. Defaults to "hw".
	Prefix string
	// StartTolerance is how late a run may always start after the moment it was granted for: timers
	// wake late and replies take time. It widens every rate rule's window, so that a run that
	// is late by no more is still within its limits; it costs StartTolerance/Per of the limit, and
	// twice that of a token bucket that lets 1000 units through within it. A run that is later
	// than that is decided anew where a rule of its path could be exceeded: a sliding window,
	// another token bucket, a fixed window or a calendar's period that has ended. A
	// concurrency rule minds no later start, nor do those others. All processes that share
	// limits should have the same. A rule whose Per is shorter loses half of its rate or more, and
	// Logger is told of it. At most 1s and at least 1ms, since no timer keeps less;
	// negative means none, and that no start is ever too late. Defaults to 5ms.
	// Source: docs/algorithms.md#late-starts
	StartTolerance time.Duration
	// Timeout bounds one decision, retries included. It is kept as exactly as the
	// client's ContextTimeoutEnabled lets it be; a wait for a free connection of the
	// client's is bounded by its PoolTimeout. Defaults to 3s.
	Timeout time.Duration
	// App is the name of this application, for scopes whose policy names those that may
	// spend from them. Defaults to none, which may spend where nobody is named.
	App string
	// LongestPause bounds what an API can ask for, see Limiter.Report: no pause is longer, but
	// it may be told again. 1s to 31 days. Defaults to 24h.
	LongestPause time.Duration
	// Unbatched sends each decision as a command of its own, at once. Otherwise
	// decisions asked for while one is on the way go out together with the next,
	// those of one provider as one script call: nobody waits for company, and many
	// callers share round trips.
	// Defaults to false.
	Unbatched bool
	// Observer is told of every decision. Defaults to none.
	Observer Observer
	// OnShadow is told what each shadow rule says of each start that was granted. It is
	// called in several goroutines at once, for what was dropped in the caller's, and must
	// not block. Defaults to none.
	OnShadow func(Shadowed)
	// OnSpent is told what is spent: of each request that is allowed and takes anything, of each that is refunded, and what
	// settling corrects. Requests with a waiter id are left to the program that lets them wait, such as package worker; so is a
	// request that is answered with what its own ID was granted before. It is called in the caller's goroutine
	// and must not block. Defaults to none. See usage.Recorder.Record.
	OnSpent func(Spent)
	// Logger gets a line when Redis stops and starts answering, when damaged values of those who
	// wait were dropped, and once a minute, for each
	// shadow rule, one of how many starts it would have made wait, if any. New and SetPolicy write
	// one at level warn, once for each rule, where StartTolerance is longer than a rule's Per.
	// Defaults to none.
	Logger *slog.Logger
}

// Observer is told what a Limiter does. Its methods are called in the caller's
// goroutine and must not block.
type Observer interface {
	// Decided tells of a decision asked of Redis, how long the answer took and
	// its error, if any. d.Rules is set only when err is nil. Of one that Dispatch had granted,
	// Decision.Handed, and of one that was prefetched, nobody was asked, and took is 0.
	Decided(d Decision, took time.Duration, err error)
}

// UpstreamObserver is an Observer that is also told what follows from APIs' answers.
type UpstreamObserver interface {
	// UpstreamSignal tells of something new that an answer has brought about: a "pause", a "cut" of a
	// rule, or a "limit" of the API's own.
	UpstreamSignal(what string)
}

const (
	defaultPrefix  = "hw"
	defaultPad     = 5 * time.Millisecond
	defaultTimeout = 3 * time.Second
	longestPause   = 24 * time.Hour

	// MaxDelayLimit is the furthest ahead that a start may be granted.
	MaxDelayLimit = time.Minute

	maxIDBytes = 128
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.StartTolerance == 0 {
		c.StartTolerance = defaultPad
	}
	c.StartTolerance = max(c.StartTolerance, 0)
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.LongestPause <= 0 {
		c.LongestPause = longestPause
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// faults names each field that is wrong.
func (c Config) faults() (faults []error) {
	for i := range len(c.Prefix) {
		if b := c.Prefix[i]; !keepsItsByte(b) || b == '~' || b >= 0x80 {
			faults = append(faults, fmt.Errorf("throttle: Config.Prefix %q holds %q; use letters, digits, '-', '_' and '.'", c.Prefix, b))
			break
		}
	}
	if c.StartTolerance != 0 && (c.StartTolerance < time.Millisecond || c.StartTolerance > time.Second) {
		faults = append(faults, fmt.Errorf("throttle: Config.StartTolerance is %s; it is how late timers are: 1ms to 1s, or negative for none", c.StartTolerance))
	}
	if c.LongestPause < time.Second || c.LongestPause > upstream.MaxWait {
		faults = append(faults, fmt.Errorf("throttle: Config.LongestPause is %s; at least 1s and at most %s", c.LongestPause, upstream.MaxWait))
	}
	return faults
}
