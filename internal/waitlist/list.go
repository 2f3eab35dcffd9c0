// Package waitlist gives tasks places in line, grants their starts, and wakes the processes that dispatch. It knows nothing of
// asynq but the names of queues and tasks. Package inspect reads what waits. docs/turns.md has the design.
package waitlist

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// Config is what a List needs. All fields are required.
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
// Its errors wrap wire.ErrUnavailable and name the provider, or are those of the caller's context. Each round trip is bounded by
// Config.Timeout.
type List struct {
	cfg   Config
	wakes wakes

	mu       sync.Mutex
	repaired map[string]time.Time // when the tree of a provider was rebuilt last
}

// New returns the list of a Redis. It does no I/O.
func New(cfg Config) *List {
	return &List{cfg: cfg, repaired: map[string]time.Time{}, wakes: wakes{
		listeners: map[*func(string)]struct{}{}, sent: map[string]bool{}, active: map[string]time.Time{},
	}}
}

// Ref names a waiting task: its scope, its asynq queue and its id there.
type Ref struct{ Scope, Queue, ID string }

func (r Ref) waiter() string { return wire.Waiter(r.Queue, r.ID) }

// Provider returns the first name of the scope.
func (r Ref) Provider() string { return wire.Provider(r.Scope) }

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

// Scopes returns what the policy says of scopes. It does no I/O.
func (l *List) Scopes() *wire.Scopes { return l.cfg.Scopes }

// Prefix returns what the keys of a provider begin with. It does no I/O.
func (l *List) Prefix(provider string) string { return wire.Prefix(l.cfg.Base, provider) }

// Run runs a script of a provider, with the clock before its arguments. read reads the reply, and returns the server's clock in
// it, 0 for none; Run returns that clock. If the script meets a damaged value, Run rebuilds the provider's tree and calls once
// more. It costs one round trip.
func (l *List) Run(ctx context.Context, provider string, script *lua.Script, args []any, read func(reply any) (now int64, err error)) (time.Time, error) {
	calls := [][]any{append([]any{l.cfg.Clock()}, args...)}
	return l.run(ctx, provider, script, calls, func(_ int, reply any) (int64, error) { return read(reply) })
}

// run is Run for several calls in one round trip; i is the index of the call. The arguments have the clock already.
func (l *List) run(ctx context.Context, provider string, script *lua.Script, calls [][]any, read func(i int, reply any) (now int64, err error)) (time.Time, error) {
	at, err := l.runOnce(ctx, provider, script, calls, read)
	if err != nil && l.repair(ctx, provider, err) {
		at, err = l.runOnce(ctx, provider, script, calls, read)
	}
	if err != nil {
		err = wire.Unavailable(ctx, "run "+script.Name+" for", provider, err)
	}
	return at, err
}

func (l *List) runOnce(ctx context.Context, provider string, script *lua.Script, calls [][]any, read func(i int, reply any) (now int64, err error)) (at time.Time, err error) {
	asked := time.Now()
	var replies []any
	err = wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) (err error) {
		replies, err = wire.RunAll(ctx, l.cfg.Redis, script, l.Prefix(provider), calls)
		return err
	})
	replied := time.Now()
	for i := 0; i < len(replies) && err == nil; i++ {
		var now int64
		if now, err = read(i, replies[i]); now > 0 {
			at = time.UnixMicro(now)
			l.cfg.Clocks.Of(l.Prefix(provider)).Observe(asked, replied, at)
		}
	}
	return at, err
}

// Read sends commands that change nothing of a provider's waiting tasks, and the masters answer them. It costs one round trip. A
// missing key is no error.
func (l *List) Read(ctx context.Context, provider string, commands func(redis.Pipeliner)) error {
	err := wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) error {
		return redisread.FromMaster(ctx, l.cfg.Redis, func(pipe redis.Pipeliner) error {
			commands(pipe)
			return nil
		})
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return wire.Unavailable(ctx, "read what waits for", provider, err)
	}
	return nil
}

// scanPart is how many fields of a hash one round trip reads: less than a millisecond of the server's.
const scanPart = 1000

// Scan reads the next fields of a hash of a provider, each with its value behind it, from a cursor on, 0 for the first; next is 0
// after the last. It costs one round trip.
func (l *List) Scan(ctx context.Context, provider, hash string, cursor uint64) (fields []string, next uint64, err error) {
	var part *redis.ScanCmd
	if err := l.Read(ctx, provider, func(pipe redis.Pipeliner) {
		part = pipe.HScan(ctx, l.Prefix(provider)+hash, cursor, "", scanPart)
	}); err != nil {
		return nil, 0, err
	}
	fields, next = part.Val()
	return fields, next, nil
}

// scopeAt returns what applies at a scope at a time of the server's clock.
func (l *List) scopeAt(scope string, at time.Time) (*wire.Scope, error) {
	s, err := l.cfg.Scopes.Of(scope)
	if err != nil || s.Holds(at.UnixMicro()) {
		return s, err
	}
	return l.cfg.Scopes.At(s.Scope, at)
}

// Standing reports whether a task has a place in its line, and whether it was granted its start and is in flight, whatever the
// policy says of its scope. It costs one round trip.
func (l *List) Standing(ctx context.Context, task Ref) (queued, granted bool, err error) {
	prefix := l.Prefix(task.Provider())
	var place *redis.FloatCmd
	var flies *redis.BoolCmd
	err = l.Read(ctx, task.Provider(), func(pipe redis.Pipeliner) {
		place = pipe.ZScore(ctx, wire.LineKey(prefix, task.Queue, wire.Path(task.Scope)), task.ID)
		flies = pipe.HExists(ctx, prefix+"flight", task.waiter())
	})
	if err != nil {
		return false, false, err
	}
	return place.Err() == nil, flies.Val(), nil
}

// Claim makes this process the one that looks after a provider's waiting tasks, for the time stay. It returns true for one process
// at a time. With again, the holder extends its claim before the time is over; otherwise it lapses. It costs one round trip.
func (l *List) Claim(ctx context.Context, provider string, stay time.Duration, again bool) (mine bool, err error) {
	set := redis.SetArgs{Mode: "NX", TTL: stay}
	if again {
		set = redis.SetArgs{Mode: "XX", TTL: stay, Get: true}
	}
	var was string
	err = wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) (err error) {
		was, err = l.cfg.Redis.SetArgs(ctx, l.Prefix(provider)+"claim", l.cfg.ID, set).Result()
		return err
	})
	switch {
	case errors.Is(err, redis.Nil):
		return false, nil
	case err != nil:
		return false, wire.Unavailable(ctx, "claim the waiting tasks of", provider, err)
	}
	return !again || was == l.cfg.ID, nil
}
