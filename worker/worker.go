// Package worker makes asynq workers keep limits: it wraps any asynq.Handler so
// that each task is decided on before it runs, and a limited one waits for its
// time instead of failing.
//
//	limits, err := worker.New(asynq.RedisClientOpt{Addr: "localhost:6379"}, worker.Config{LimitsFile: "limits.yaml"})
//	err = limits.NewServer(asynq.Config{Concurrency: 32}).Run(mux) // any asynq.Handler
//
// [New] does all that a process needs. [NewMiddleware] is the part of it that handles tasks, for programs that bring a
// limiter of their own.
//
// A limited task is held in its handler when its time is near, and put back for
// its time otherwise. Being limited burns no attempt, counts as no failure, calls
// no ErrorHandler and never archives a task, whatever its max retry: docs/asynq.md
// says how, and what asynq's own counters then show.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/dispatch"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// MiddlewareConfig is what NewMiddleware needs. Redis and Limiter are required.
type MiddlewareConfig struct {
	// Redis is where asynq keeps its tasks. NewMiddleware takes no ownership of it.
	Redis redis.UniversalClient
	// Limiter decides. It may keep its state in another Redis.
	Limiter *throttle.Limiter
	// Spends tells what a task spends from, for tasks that do not say so in their
	// headers: the scope and the cost, 0 for 1. An empty scope means that the task
	// is not limited. It must answer alike each time it is asked of the same
	// task, quickly, and must not panic. Defaults to none: only headers count.
	Spends func(*asynq.Task) (scope string, cost int64)
	// Costs tells what such a task costs by unit, instead of the cost of Spends, which
	// counts where it returns none. The same is asked of it. Defaults to none.
	Costs func(*asynq.Task) policy.Costs
	// Hold is how near a start must be for its task to wait in the handler, in a
	// slot of the server's Concurrency. At most throttle.MaxDelayLimit; negative means
	// never, and costs precision. Defaults to 250ms.
	Hold time.Duration
	// MaxHolds is how many tasks may wait in handlers at once, so that limited
	// tasks never take all slots. Defaults to three quarters of Concurrency,
	// rounded down.
	MaxHolds int
	// Tenant says whose tasks those of a scope are, empty for nobody's. The tasks of one tenant count for
	// half of a server's slots at most: what it has beyond that for longer than a moment others
	// have too, beyond Concurrency, and it starts no more of its own until the server is
	// below Concurrency. That holds for servers of NewServer. It is called for each task and must be
	// quick. Defaults to the scope's second name, whatever its first is.
	Tenant func(scope string) string
	// OnMaxWait decides what becomes of tasks that have waited for longer than their
	// max_wait or a rule's: see WaitOn, Fail, Drop, MoveTo and Fallback. Defaults to
	// WaitOn.
	OnMaxWait MaxWaitPolicy
	// FailRefused tells whether a task that the limits refuse as they are fails at once, for
	// good: its scope meets no rule under policy.UnmatchedDeny (why is a
	// *policy.UnmatchedError), or its cost is above what a rule can admit (a
	// *policy.CostError). It is not asked under policy.UnmatchedFail, where tasks whose scope meets no rule fail in any case. Others wait until the limits change; a worker asks for them again
	// within a minute, if nobody wakes them. It is called in the task's goroutine, each
	// time that such a task is picked up, with asynq's context. See
	// policystore.Past.NeverAdmitted.
	// Defaults to failing tasks whose cost no policy of this process has ever admitted.
	FailRefused func(ctx context.Context, task throttle.Waiter, why error) bool
	// FailUnknownTypes fails tasks whose type has no handler here at once, for good. Defaults
	// to false: that is a failure as any other, and is retried as far as the task may be, so
	// that old workers lose no tasks of new types while a release is rolled out.
	FailUnknownTypes bool
	// FailUnscoped fails tasks without a scope at once, for good, while the policy denies scopes that meet
	// no rule. Defaults to false: no limit concerns them.
	FailUnscoped bool
	// MaxTimeout is how long a run may take at most, whatever its task says. It ends as by the task's own
	// time-out. Defaults to 0, any time.
	MaxTimeout time.Duration
	// MaxDeferrals is how often the API of a task may put it off within one attempt, see Deferrer. What
	// comes after that is a failure as any other. Where OnMaxWait is set a max_wait bounds it too. Negative means any
	// number. Defaults to 100.
	MaxDeferrals int
	// Observer is told what happens to tasks. Defaults to none.
	Observer Observer
	// Usage is told what tasks spend: a *usage.Recorder, which the caller runs.
	// Defaults to none.
	Usage Usage
	// Logger gets what a person should know. Defaults to none.
	Logger *slog.Logger
}

// Usage records what tasks spend.
type Usage interface {
	// Spent reports a task that starts: its scope, its queue, its type and who enqueued it, and its cost; of costs by unit the requests, at least
	// 1. It is called in the task's goroutine and must not block.
	Spent(scope string, by usage.By, units int64)
}

// CostsUsage is a Usage that takes costs by unit.
type CostsUsage interface {
	Usage
	// SpentCosts reports a task that starts and costs by unit, instead of Spent.
	SpentCosts(scope string, by usage.By, costs policy.Costs)
}

// SettledUsage is a Usage that takes corrections when runs are settled.
type SettledUsage interface {
	CostsUsage
	// Settled reports how much more of each unit a run has spent than was reported before; below 0 where it is less.
	Settled(scope string, by usage.By, more policy.Costs)
}

// Observer counts what happens to tasks. Its methods are called in the tasks' goroutines and must not block.
type Observer interface {
	// PickedUp reports each time that a task is taken from a queue.
	PickedUp(queue string)
	// Holding reports a task that begins (1) or ends (-1) to wait in a handler.
	Holding(delta int)
	// Held reports how long a task waited in its handler before it ran or was put back.
	Held(d time.Duration)
	// Rescheduled reports a limited task that was put back for wait, or planned where it stood. The latter is called in another
	// goroutine than the task's.
	Rescheduled(queue string, wait time.Duration)
	// Ran reports a run that ended: outcome is "ok", "failed", "lost" (its lease) or
	// "deferred" (by the API, see Deferrer).
	Ran(queue, outcome string, took time.Duration)
	// MaxWaitExceeded reports a task that waited too long, and what became of it: "failed", "dropped", "moved" or "fallback".
	MaxWaitExceeded(queue, became string, waited time.Duration)
	// LeaseHeld reports a place under a concurrency rule, payments/*:parallel, that is taken (1) or freed (-1).
	LeaseHeld(rule string, delta int)
	// DispatcherPolled reports one poll of a provider's queue, or that one is about to be made. provider is "*" for what other
	// processes announce. again says that another poll will follow, since tasks wait. label is the provider's name where
	// the limits have it, and "*" where it may be a customer's.
	DispatcherPolled(provider, label string, again bool)
	// DispatchLead reports how long before their starts tasks are granted in this process, whenever that was measured anew.
	DispatchLead(lead time.Duration)
	// Failed reports a fault of the kind named, such as "release".
	Failed(kind string)
}

const (
	defaultHold      = 250 * time.Millisecond
	defaultDeferrals = 100

	// outagePause is how long a task is put back for when Redis does not decide.
	outagePause = 2 * time.Second
)

// Middleware makes one process's workers keep the limits. It is safe for
// concurrent use by any number of servers and handlers.
type Middleware struct {
	cfg       MiddlewareConfig
	client    *asynq.Client
	inspector *asynq.Inspector
	observer  Observer
	log       *slog.Logger

	servers    asynqx.Servers // of the servers, to be kicked when a task was woken
	queues     *asynqx.QueueStates
	mover      *asynqx.Mover
	dispatcher *dispatch.Dispatcher
	returns    returns         // of tasks that the limits refuse as they are
	repeats    ratelog.Repeats // of lines of the log
	unmatched  unmatched       // tasks whose scopes meet no rule
	serves     atomic.Bool     // a Server of its own was started
	joined     sync.Once
	moves      sync.WaitGroup  // of tasks to other queues
	serving    context.Context //nolint:containedctx // over when Stop is called
	stop       context.CancelFunc

	isFailure func(error) bool // the user's own, set by Config
}

// NewMiddleware returns a Middleware. It does no I/O. The error names each field of cfg that
// is wrong.
func NewMiddleware(cfg MiddlewareConfig) (*Middleware, error) {
	var faults []error
	if cfg.Redis == nil {
		faults = append(faults, errors.New("worker: Config.Redis is nil; give the client that asynq uses"))
	}
	if cfg.Limiter == nil {
		faults = append(faults, errors.New("worker: Config.Limiter is nil; see throttle.New"))
	}
	if cfg.Hold > throttle.MaxDelayLimit {
		faults = append(faults, fmt.Errorf("worker: Config.Hold is %s; the most is %s", cfg.Hold, throttle.MaxDelayLimit))
	}
	if cfg.MaxHolds < 0 {
		faults = append(faults, fmt.Errorf("worker: Config.MaxHolds is %d; 0 stands for three quarters of Concurrency", cfg.MaxHolds))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if cfg.Hold == 0 {
		cfg.Hold = defaultHold
	}
	if cfg.MaxDeferrals == 0 {
		cfg.MaxDeferrals = defaultDeferrals
	}
	t := &Middleware{
		cfg:       cfg,
		client:    asynq.NewClientFromRedisClient(cfg.Redis),
		inspector: asynq.NewInspectorFromRedisClient(cfg.Redis),
		observer:  cfg.Observer,
		log:       cfg.Logger,
		isFailure: func(err error) bool { return err != nil },
	}
	t.serving, t.stop = context.WithCancel(context.Background())
	if t.observer == nil {
		t.observer = nobody{}
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.queues = asynqx.NewQueueStates(cfg.Redis, t.inspector, t.observer.Failed)
	t.mover = asynqx.NewMover(cfg.Redis, t.inspector, t.log, t.observer.Failed)
	t.dispatcher = dispatch.New(t.dispatchConfig())
	return t, nil
}

func (t *Middleware) dispatchConfig() dispatch.Config {
	cfg := dispatch.Config{
		Redis: t.cfg.Redis, Limiter: t.cfg.Limiter, Inspector: t.inspector,
		Mover: t.mover, Queues: t.queues, Servers: &t.servers,
		Observer: t.observer, Log: t.log, Serving: t.serving, Moves: &t.moves,
		Hold: t.cfg.Hold, MaxHolds: t.cfg.MaxHolds,
		Tenant: t.tenant, Retired: t.retired, PolicyChanged: t.join, Read: t.readPending,
	}
	if t.cfg.OnMaxWait != nil {
		cfg.Expires = func(scope string, due time.Time, maxWait time.Duration) time.Time {
			return t.ours(scope, due.Add(maxWait))
		}
	}
	return cfg
}

// Stop makes the tasks that wait in handlers go back to their queues, and lets
// none wait any more. Running tasks are not touched. Server.Shutdown calls it. It is for good: nothing
// that is limited starts under t from then on, on any of its servers.
func (t *Middleware) Stop() { t.stop() }

type nobody struct{}

func (nobody) PickedUp(string)                   {}
func (nobody) Holding(int)                       {}
func (nobody) Held(time.Duration)                {}
func (nobody) Rescheduled(string, time.Duration) {}
func (nobody) Ran(string, string, time.Duration) {}
func (nobody) LeaseHeld(string, int)             {}

func (nobody) MaxWaitExceeded(string, string, time.Duration) {}

func (nobody) DispatcherPolled(string, string, bool) {}
func (nobody) DispatchLead(time.Duration)            {}
func (nobody) Failed(string)                         {}
