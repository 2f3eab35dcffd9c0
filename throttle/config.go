package throttle

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Config configures a Limiter. The zero Config is ready to use.
type Config struct {
	// Prefix begins every key, so that several systems can share a Redis. It holds letters, digits, '-', '_' and '.'. Defaults to
	// "hw".
	Prefix string
	// StartTolerance is how late a run may begin after its granted start. It widens the window of every rate rule, so that such a
	// run is still within its limits. This costs about StartTolerance/Per of a limit: see Lint. A run that is later is decided
	// again if a rule of its path could be exceeded. All processes that share limits should use the same value. 1ms to 1s;
	// negative for no tolerance, and no start then counts as too late. Defaults to 5ms. Source: docs/algorithms.md#late-starts
	StartTolerance time.Duration
	// Timeout bounds one decision, retries included. It is exact only if the client's ContextTimeoutEnabled is set. The client's
	// PoolTimeout bounds the wait for a free connection. Defaults to 3s.
	Timeout time.Duration
	// App is the name of this application, for scopes whose policy lists the applications that may spend
	// from them. Defaults to none, which may spend only from scopes without such a list.
	App string
	// TierOf returns the tier of a name where the policy has tiers, as from the user's own database: policystore.Store.TierOf, or TierOr
	// around a function of yours. It is asked once for each name, and again after TierTTL in the background; 100,000 names are kept.
	// It may take a second, and must return when its context ends: the first caller of a name waits for it. If it fails, the last tier
	// that it returned counts, and Logger and Observer get the error. Defaults to none: no name has a tier. Source: docs/tiers.md
	TierOf policy.TierOf
	// TierTTL is how old a tier may be, a second at least. Defaults to 1 minute.
	TierTTL time.Duration
	// Unbatched sends each decision as a script call of its own, at once. By default, the decisions of a provider that are
	// requested while others are in flight share the next call. Defaults to false.
	Unbatched bool
	// Observer receives every decision and every change by an API's answer. Defaults to none.
	Observer Observer
	// OnShadow receives the answer of each shadow rule to each granted start. It is called from several
	// goroutines at once, and from the caller's for ShadowDropped. It must not block. Defaults to none.
	OnShadow func(Shadowed)
	// OnSpent receives each grant that takes anything, each refund, and each correction by Settle. It does not receive requests
	// with a waiter id, which the program that queues them reports, such as package worker; nor a repeated request that is
	// answered with the first grant of its ID. It is called in the caller's goroutine and must not block. Defaults to none. See
	// usage.Recorder.Record.
	OnSpent func(Spent)
	// Logger gets a line when Redis becomes unavailable and when it is available again, when damaged data of waiters was dropped,
	// and once a minute for each shadow rule that would have delayed starts, with their number. Defaults to none.
	Logger *slog.Logger
}

// Observer receives what a Limiter decides. Its methods are called in the caller's goroutine and must not block. Implementations
// embed NoObserver, so that a method that a later release adds does not break them.
type Observer interface {
	// Decided reports one decision, with the context of the request, how long the answer took, and its error, if any. d.Rules is
	// set only if err is nil. took is 0 for a decision that made no call (Decision.Handed).
	Decided(ctx context.Context, d Decision, took time.Duration, err error)
	// Overspent reports the rules that Settle has charged more than before. They do not say what is left.
	Overspent(rules []RuleState)
	// Upstream reports a new effect of an API's answer that this process reported.
	Upstream(change UpstreamChange)
	// TierTrouble reports a failure of Config.TierOf, or a tier that the policy does not have.
	TierTrouble(trouble TierTrouble)
}

// NoObserver observes nothing.
type NoObserver struct{}

// Decided does nothing.
func (NoObserver) Decided(context.Context, Decision, time.Duration, error) {}

// Overspent does nothing.
func (NoObserver) Overspent([]RuleState) {}

// Upstream does nothing.
func (NoObserver) Upstream(UpstreamChange) {}

// TierTrouble does nothing.
func (NoObserver) TierTrouble(TierTrouble) {}

const (
	defaultPrefix  = "hw"
	defaultPad     = 5 * time.Millisecond
	defaultTimeout = 3 * time.Second

	// MaxDelayLimit is the furthest ahead that a start can be granted; a larger Request.MaxDelay counts as this.
	MaxDelayLimit = time.Minute

	maxIDBytes = 128
)

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.StartTolerance = max(cmp.Or(c.StartTolerance, defaultPad), 0)
	c.Timeout = cmp.Or(max(c.Timeout, 0), defaultTimeout)
	c.TierTTL = cmp.Or(max(c.TierTTL, 0), defaultTierTTL)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) faults() (faults []error) {
	if err := wire.CheckPrefix(c.Prefix); err != nil {
		faults = append(faults, fmt.Errorf("throttle: %w", err))
	}
	if c.StartTolerance != 0 && (c.StartTolerance < time.Millisecond || c.StartTolerance > time.Second) {
		faults = append(faults, fmt.Errorf("throttle: Config.StartTolerance is %s; it is how late timers are: 1ms to 1s, or negative for none", c.StartTolerance))
	}
	if c.TierTTL < time.Second {
		faults = append(faults, fmt.Errorf("throttle: Config.TierTTL is %s; the least is 1s", c.TierTTL))
	}
	return faults
}
