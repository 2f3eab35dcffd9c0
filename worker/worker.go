// Package worker makes asynq workers keep limits. It wraps any asynq.Handler: each task is decided on
// before it runs, and a limited task waits for its time instead of failing.
//
//	limits, err := worker.New(asynq.RedisClientOpt{Addr: "localhost:6379"}, worker.Config{LimitsFile: "limits.yaml"})
//	err = limits.NewServer(asynq.Config{Concurrency: 32}).Run(mux) // any asynq.Handler
//
// [New] sets up all that a process needs. [NewMiddleware] is the part of it that handles tasks, for
// programs with a limiter of their own.
//
// A limited task waits in its handler if its start is near, and is put back until its time otherwise.
// Being limited uses up no attempt, counts as no failure, calls no ErrorHandler and never archives a
// task, whatever its max retry. docs/asynq.md explains how, and what asynq's own counters then show.
package worker

import (
	"cmp"
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
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/internal/asynqx"
	"github.com/headway-go/headway/worker/internal/backlog"
	"github.com/headway-go/headway/worker/internal/detach"
	"github.com/headway-go/headway/worker/internal/dispatch"
	"github.com/headway-go/headway/worker/internal/ratelog"
	"github.com/headway-go/headway/worker/internal/sweep"
)

// MiddlewareConfig configures NewMiddleware. Redis and Limiter are required.
type MiddlewareConfig struct {
	// Redis is the Redis of asynq's tasks. NewMiddleware does not take ownership of it.
	Redis redis.UniversalClient
	// Limiter decides. It may keep its state in another Redis.
	Limiter *throttle.Limiter
	// Spends returns what a task spends whose headers do not say it: the scope, and the cost, where 0 means 1. Unlimited is the
	// scope of a task that no limit is for. An empty scope is treated like a scope that meets no rule: the task waits under
	// policy.UnmatchedDeny. A task with a negative cost fails for good. Spends must return the same for the same task each time,
	// be quick, and not panic. Defaults to none: only headers count, and tasks without them are not limited.
	Spends func(*asynq.Task) (scope string, cost int64)
	// Costs returns the cost of such a task by unit, instead of the cost of Spends, which counts if
	// Costs returns none. It has the same requirements. Defaults to none.
	Costs func(*asynq.Task) policy.Costs
	// Prices are what calls of language models cost, in the unit llm.USD: ReportResponse settles by them. Defaults to none: tokens alone
	// are settled.
	Prices *llm.Prices
	// Hold is how near a start must be for its task to wait in the handler, in a slot of the server's Concurrency. At most
	// throttle.MaxDelayLimit. A negative Hold means never, and costs precision. Defaults to 250ms.
	Hold time.Duration
	// MaxHolds is how many tasks may wait in handlers at once, so that limited tasks never take all
	// slots. Defaults to three quarters of Concurrency, rounded down.
	MaxHolds int
	// Tenant returns the tenant to which a scope belongs, empty for none. The tasks of one tenant count for at most half of a
	// server's slots. If a tenant has more for longer than a moment, other tenants get as many slots beyond Concurrency, and it
	// starts no more tasks until the server is below Concurrency. That applies to servers of NewServer. Tenant is called for each
	// task and must be quick. Defaults to the second name of the scope, whatever the first is.
	Tenant func(scope string) string
	// OnMaxWait decides what happens to a task that has waited for longer than its max_wait or that of
	// a rule: see Fail, Drop, MoveTo and Fallback. Defaults to none: it waits on.
	OnMaxWait MaxWaitPolicy
	// FailUnknownTypes fails tasks whose type has no handler here at once, for good. Defaults to false: an unknown type is a
	// failure like any other and is retried, so that old workers lose no tasks of new types during a rollout.
	FailUnknownTypes bool
	// RequireScope treats a task that names no scope like one whose scope meets no rule, also if Spends
	// is nil. Defaults to false: without Spends, such tasks are not limited.
	RequireScope bool
	// MaxTimeout bounds a run, whatever its task says. The run ends as by the task's own time-out. Defaults to 0, no bound.
	MaxTimeout time.Duration
	// MaxDeferrals is how often the API of a task may defer it within one attempt, see Deferrer. A further deferral is a failure
	// like any other. If OnMaxWait is set, a max_wait bounds deferrals too. A negative value means any number. Defaults to 100.
	MaxDeferrals int
	// CallFailed reports whether the error of a run says that a call got no answer, or a failure of the API, for the breakers of
	// its scope: a connection error, a time-out, a 5xx. It is not asked if the handler has called ReportResponse, ReportStatus or
	// ReportHint, or if the error is a CallFailer. It must be quick. Defaults to none: no other error is one.
	CallFailed func(err error) bool
	// Observer observes what happens to tasks. Defaults to none.
	Observer Observer
	// Tracer observes single pick-ups and runs, with their contexts. Defaults to none.
	Tracer Tracer
	// Usage records what tasks spend: a *usage.Recorder, which the caller runs. Defaults to none.
	Usage Usage
	// Record records what tasks want and get, for a replay. The caller runs it. Defaults to none.
	Record *demand.Recorder
	// Logger receives the log. Defaults to none.
	Logger *slog.Logger

	// failRefused reports whether a task whose cost is above what a rule can admit fails at once, for good; why is a
	// *policy.CostError. Otherwise it waits until the limits change. Nil: if no policy of this process has ever admitted it.
	failRefused func(ctx context.Context, task throttle.Request, why error) bool
}

// Usage records what tasks spend, and how their runs end. Its methods are called in the tasks' goroutines and must not block.
type Usage interface {
	// Spent reports a starting task: its scope; its queue, type, enqueuer and member of a pool; and its cost.
	Spent(scope string, by usage.By, units int64)
	// SpentCosts reports a starting task with costs by unit, instead of Spent.
	SpentCosts(scope string, by usage.By, costs policy.Costs)
	// Settled reports how much more of each unit a run has spent than was reported before; negative if less.
	Settled(scope string, by usage.By, more policy.Costs)
	// Ended reports a run that failed, or that the API refused and that is deferred.
	Ended(scope string, by usage.By, how usage.Ends)
}

// Observer observes what happens to tasks. Its methods are called in the tasks' goroutines and must not block. Implementations
// embed NoObserver, so that a method that a later release adds does not break them.
type Observer interface {
	// PickedUp reports a task taken from a queue.
	PickedUp(queue string)
	// Holding reports a task that begins (1) or ends (-1) to wait in a handler.
	Holding(delta int)
	// Held reports how long a task waited in its handler before it ran or was put back.
	Held(d time.Duration)
	// Rescheduled reports a limited task that was put back for wait, or that was planned where it
	// stood. The latter is reported from another goroutine than the task's.
	Rescheduled(queue string, wait time.Duration)
	// Refused reports a task that was put back for wait, until limits change or another worker picks
	// it up. why is "app" (its scope is for other applications), "unmatched" (its scope meets no rule,
	// or it names none) or "cost" (it costs more than a rule can admit).
	Refused(queue, why string, wait time.Duration)
	// Began reports by how much a run began after its granted start, 0 if its start was not granted by Redis.
	Began(late time.Duration)
	// Ran reports a run that ended, with the context that the handler had. outcome is "ok", "failed", "lost" (its lease) or "deferred" (by
	// the API, see Deferrer).
	Ran(ctx context.Context, queue, outcome string, took time.Duration)
	// MaxWaitExceeded reports a task that waited too long, and the outcome: "failed", "dropped", "moved" or "fallback".
	MaxWaitExceeded(queue, became string, waited time.Duration)
	// LeaseHeld reports a place under a concurrency rule, payments/*:parallel, that is taken (1) or freed (-1).
	LeaseHeld(rule string, delta int)
	// DispatcherPolled reports one poll of a provider's queue, or that the first is about to be made,
	// and in how long the next one is due; negative if none follows, since no task waits. label is the
	// provider's name if the limits have it, and "*" otherwise, since it may be a customer's.
	DispatcherPolled(provider, label string, next time.Duration)
	// DispatchLead reports how long before their starts this process has tasks granted, after each new measurement.
	DispatchLead(lead time.Duration)
	// Failed reports a fault of the given kind, such as "release".
	Failed(kind string)
}

// outagePause is how long a task is put back when Redis does not decide.
const outagePause = 2 * time.Second

// Middleware makes one process's workers keep the limits. It is safe for concurrent use by any number of servers and handlers.
type Middleware struct {
	cfg       MiddlewareConfig
	client    *asynq.Client
	inspector *asynq.Inspector
	observer  Observer
	log       *slog.Logger

	servers    asynqx.Servers // the servers, which poll at once when a task was dispatched
	queues     *asynqx.QueueStates
	mover      *asynqx.Mover
	dispatcher *dispatch.Dispatcher
	planner    *backlog.Planner
	returns    refusedReturns
	repeats    ratelog.Repeats // of log lines
	serves     atomic.Bool     // a Server of its own was started

	concurrency atomic.Int64 // of all servers that config has completed
	joined      sync.Once
	moves       sync.WaitGroup  // of tasks to other queues
	serving     context.Context //nolint:containedctx // over when Stop is called
	stop        context.CancelFunc

	isFailure func(error) bool // the user's own, set by config
}

// NewMiddleware returns a Middleware. It does no I/O. The error names each field of cfg that is wrong,
// or the release of asynq that the program is built with if that was not tested.
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
	if err := asynqx.CheckRelease(); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	cfg.Hold = cmp.Or(cfg.Hold, 250*time.Millisecond)
	cfg.MaxDeferrals = cmp.Or(cfg.MaxDeferrals, 100)
	m := &Middleware{
		cfg:       cfg,
		client:    asynq.NewClientFromRedisClient(cfg.Redis),
		inspector: asynq.NewInspectorFromRedisClient(cfg.Redis),
		observer:  cmp.Or[Observer](cfg.Observer, NoObserver{}),
		log:       cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		isFailure: func(err error) bool { return err != nil },
	}
	m.serving, m.stop = context.WithCancel(context.Background())
	m.queues = asynqx.NewQueueStates(cfg.Redis, m.inspector, m.observer.Failed)
	m.mover = asynqx.NewMover(cfg.Redis, m.observer.Failed)
	m.dispatcher = dispatch.New(dispatch.Config{
		Redis: cfg.Redis, Limiter: cfg.Limiter, Mover: m.mover, Queues: m.queues, Servers: &m.servers,
		Observer: m.observer, Log: m.log, Serving: m.serving, Moves: &m.moves,
		Hold: cfg.Hold, MaxHolds: cfg.MaxHolds, Tenant: m.tenant, Retired: m.retired, PolicyChanged: m.join, Alongside: m.sweep,
	})
	planned := backlog.Config{
		Redis: cfg.Redis, List: cfg.Limiter.Waitlist(), Inspector: m.inspector, Mover: m.mover, Servers: &m.servers,
		Observer: m.observer, Log: m.log, Serving: m.serving, Read: m.readPending, Planned: m.recordPlanned,
	}
	if cfg.OnMaxWait != nil {
		planned.Expires = func(scope string, due time.Time, maxWait time.Duration) time.Time {
			return m.toLocal(scope, due.Add(maxWait))
		}
	}
	m.planner = backlog.New(planned)
	return m, nil
}

// sweep looks after the waiting tasks of the providers that this process dispatches.
func (m *Middleware) sweep() {
	sweep.Run(m.serving, sweep.Config{
		Redis: m.cfg.Redis, Limiter: m.cfg.Limiter, Bounded: m.cfg.OnMaxWait != nil,
		Providers: m.dispatcher.Dispatched, Gone: m.dispatcher.Ended, Failed: m.observer.Failed,
	})
}

// Detach converts the waiting tasks of a queue back into plain asynq tasks: their max retry is the rest of their budget, asynq
// keeps their time-out and deadline, and no header bounds them. Use it to stop using Headway, or for tasks that programs without
// Headway will run. It returns how many tasks it changed.
//
// Stop every Headway worker of the queue first: a task that is running, or that is enqueued meanwhile, is not changed. Detach
// writes each task to a record in Redis before it removes it from its queue. If a crash interrupts it, call it again to finish.
// How often a task has failed, and its last error, are lost.
func Detach(ctx context.Context, rdb redis.UniversalClient, name string) (changed int, err error) {
	return detach.Queue(ctx, rdb, name)
}

// Stop puts the tasks that wait in handlers back into their queues; from then on no task waits in a handler. Running tasks are
// not affected. Server.Shutdown calls it. It is final: no limited task starts under m afterwards, on any of its servers.
func (m *Middleware) Stop() { m.stop() }
