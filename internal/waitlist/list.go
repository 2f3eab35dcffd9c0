// Package waitlist gives tasks places in line and grants their starts: it sends the scripts join, dispatch, inspect and repair, and
// wakes the processes that dispatch. It knows nothing of asynq but the names of queues and tasks. docs/turns.md has the design.
package waitlist

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Never is a wait that no clock ends.
const Never = time.Duration(math.MaxInt64)

// Config is what a List needs. All fields are required but Clock.
type Config struct {
	Redis   redis.UniversalClient
	Scopes  *wire.Scopes
	Clocks  *wire.Clocks
	Base    string        // the prefix of all keys
	Timeout time.Duration // of each round trip
	Logger  *slog.Logger
	Clock   func() string // what scripts take for their clock: "" for the server's
	ID      string        // of this process
}

// List is the waiting tasks of all providers. It is safe for concurrent use.
//
// Its errors wrap wire.ErrUnavailable and name the provider or scope, or are those of the caller's context. Each round trip is
// bounded by Config.Timeout.
type List struct {
	cfg   Config
	wakes wakes

	mu       sync.Mutex
	repaired map[string]time.Time // when a provider's tree was made anew last
}

// New returns the list of a Redis. It does no I/O.
func New(cfg Config) *List {
	if cfg.Clock == nil {
		cfg.Clock = func() string { return "" }
	}
	return &List{cfg: cfg, repaired: map[string]time.Time{}}
}

// Ref names a waiting task: its scope, its asynq queue and its id there.
type Ref struct{ Scope, Queue, ID string }

func (r Ref) waiter() string { return wire.Waiter(r.Queue, r.ID) }

// Provider returns the first name of the scope.
func (r Ref) Provider() string { return providerOf(r.Scope) }

func refOf(provider, path, queue, id string) Ref {
	return Ref{wire.ScopeOf(provider, path), queue, id}
}

func providerOf(scope string) string {
	provider, _, _ := strings.Cut(scope, "/")
	return provider
}

// Waiter is a task that joins the line.
type Waiter struct {
	Scope, Queue, ID string
	Cost             int64        // of each unit; 0 for 1
	Costs            policy.Costs // by unit, instead of Cost
	Priority         int          // among the tasks of its scope and queue, a higher one first: -1,000,000 to 1,000,000
}

// Ref returns the name of the waiter.
func (w Waiter) Ref() Ref { return Ref{w.Scope, w.Queue, w.ID} }

// cost returns the cost as scripts read it.
func (w Waiter) cost() string {
	if len(w.Costs) > 0 {
		return w.Costs.String() + ","
	}
	return strconv.FormatInt(max(w.Cost, 1), 10)
}

func (l *List) prefix(provider string) string { return wire.Prefix(l.cfg.Base, provider) }

func leafKey(prefix, queue, path string) string {
	return prefix + "q:" + wire.Escape(queue) + ":" + path
}

// run runs a script for each list of arguments in one round trip, and read reads each reply: i is the index of the list. If a call
// meets a damaged value, the provider's tree is made anew, and all calls are sent once more: scripts may be sent again.
func (l *List) run(ctx context.Context, provider string, script *lua.Script, calls [][]any, read func(i int, reply any) error) error {
	err := l.runOnce(ctx, provider, script, calls, read)
	if err != nil && l.repair(ctx, provider, err) {
		err = l.runOnce(ctx, provider, script, calls, read)
	}
	return err
}

func (l *List) runOnce(ctx context.Context, provider string, script *lua.Script, calls [][]any, read func(i int, reply any) error) error {
	var replies []any
	err := wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) (err error) {
		replies, err = wire.RunAll(ctx, l.cfg.Redis, script, l.prefix(provider), calls)
		return err
	})
	for i, reply := range replies {
		if err == nil {
			err = read(i, reply)
		}
	}
	return err
}

// read sends commands that change nothing, in one round trip.
func (l *List) read(ctx context.Context, commands func(context.Context, redis.Pipeliner)) error {
	return wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) error {
		return redisread.FromMaster(ctx, l.cfg.Redis, func(pipe redis.Pipeliner) error {
			commands(ctx, pipe)
			return nil
		})
	})
}

// observe notes the clock of a reply to a call that began at asked, and returns it.
func (l *List) observe(provider string, asked time.Time, now int64) time.Time {
	at := time.UnixMicro(now)
	l.cfg.Clocks.Of(l.prefix(provider)).Observe(asked, time.Now(), at)
	return at
}

// scopeAt returns what applies at a scope at a time of the server's clock.
func (l *List) scopeAt(scope string, at time.Time) (*wire.Scope, error) {
	s, err := l.cfg.Scopes.Of(scope)
	if err != nil || s.Holds(at.UnixMicro()) {
		return s, err
	}
	return l.cfg.Scopes.At(s.Scope, at)
}

// us returns a wait in µs as scripts have it.
func us(n int64) time.Duration {
	if n < 0 || n >= wire.Never {
		return Never
	}
	return time.Duration(n) * time.Microsecond
}
