package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// The intervals at which asynq looks for tasks. Its own defaults, 1s and 5s,
// make a limited task late by seconds.
const (
	taskCheckInterval    = 100 * time.Millisecond
	delayedCheckInterval = 500 * time.Millisecond
)

// Config returns cfg with what limited tasks need around what it holds already:
//
//   - IsFailure: a limited task is no failure; others are the user's to judge.
//   - RetryDelayFunc: a limited task comes back at its time, never before it, and
//     one whose error is a Retrier when that says.
//   - ErrorHandler: it is not told of limited tasks. There is one even where you set none,
//     which hears of tasks that asynq has failed before a handler saw them.
//   - TaskCheckInterval and DelayedTaskCheckInterval, where not set: 100ms and
//     500ms, for about 40 Redis commands a second on an idle queue.
//
// It takes the number of tasks that may wait in handlers from Concurrency, the
// first time it is called, and what queues weigh from Queues and StrictPriority each
// time: among tasks that wait for their limits they count as they do in asynq.
func (t *Middleware) Config(cfg asynq.Config) asynq.Config {
	t.queues.Serve(cfg.Queues)
	if cfg.IsFailure != nil {
		t.isFailure = cfg.IsFailure
	}
	isFailure := t.isFailure
	cfg.IsFailure = func(err error) bool {
		if _, ok := AsLimited(err); ok {
			return false
		}
		return isFailure(err)
	}
	retryDelay := cfg.RetryDelayFunc
	if retryDelay == nil {
		retryDelay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if limited, ok := AsLimited(err); ok {
			return delay(limited.At, time.Now())
		}
		var asks Retrier
		if errors.As(err, &asks) {
			if wait, known := asks.RetryIn(); known {
				return delay(time.Now().Add(wait), time.Now())
			}
		}
		return retryDelay(n, err, task)
	}
	handler := cfg.ErrorHandler
	cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		if _, ok := AsLimited(err); ok {
			return
		}
		t.failed(ctx, task)
		if handler != nil {
			handler.HandleError(ctx, task, err)
		}
	})
	if cfg.TaskCheckInterval == 0 {
		cfg.TaskCheckInterval = taskCheckInterval
	}
	t.dispatcher.AddServer(concurrency(cfg), queue.NewWeights(cfg.Queues, cfg.StrictPriority), cfg.TaskCheckInterval)
	if cfg.DelayedTaskCheckInterval == 0 {
		cfg.DelayedTaskCheckInterval = delayedCheckInterval
	}
	return cfg
}

// concurrency is how many tasks asynq runs at once.
func concurrency(cfg asynq.Config) int {
	if cfg.Concurrency < 1 {
		return runtime.NumCPU()
	}
	return cfg.Concurrency
}

// Server is an asynq server whose tasks keep the limits.
type Server struct {
	*asynq.Server
	middleware *Middleware
	client     *asynqx.Client
	begin      func() error // before the server starts; see Limits
	over       func()       // when it is shut down; nil where it never began
	begun      atomic.Bool
}

// NewServer returns an asynq server over Config.Redis, made of cfg as Config
// fills it, that survives a Redis which fails while tasks are put back. It looks
// for tasks every TaskCheckInterval while it is idle, and at once when this process
// wakes one of them.
//
// Concurrency tasks run at once, and at most half as many more of other tenants while one tenant's have more
// than half of the slots: see Config.Tenant.
func (t *Middleware) NewServer(cfg asynq.Config) *Server {
	cfg = t.Config(cfg)
	g := asynqx.NewClient(asynqx.ClientConfig{
		Redis: t.cfg.Redis, Serving: t.serving, Mover: t.mover, Log: t.log,
		Interval: cfg.TaskCheckInterval, Concurrency: concurrency(cfg),
		GiveBack: t.dispatcher.GiveBack, Looks: t.dispatcher.CheckWatchdog, Forwarded: t.dispatcher.Forwarded, Moves: &t.moves,
	})
	cfg.TaskCheckInterval, cfg.Concurrency = min(cfg.TaskCheckInterval, asynqx.RoundPause), g.Slots.Most()
	t.servers.Add(g.Pacer, g.Slots)
	return &Server{Server: asynq.NewServerFromRedisClient(g, cfg), middleware: t, client: g}
}

// Start begins to process tasks with handler, wrapped by Handler, and returns.
// While it serves, the process counts as one of those that share the limits. After
// Stop or Shutdown the error is asynq.ErrServerClosed.
func (s *Server) Start(handler asynq.Handler) error {
	if handler == nil {
		return errors.New("worker: Start needs a handler, got nil")
	}
	if s.client.Pacer.Stopped() {
		return fmt.Errorf("worker: the server was stopped; make another with NewServer: %w", asynq.ErrServerClosed)
	}
	if s.middleware.stopped() {
		return fmt.Errorf("worker: the Middleware ended with the last of its servers; make another with New or NewMiddleware: %w", asynq.ErrServerClosed)
	}
	if s.begin != nil && !s.begun.Load() {
		if err := s.begin(); err != nil {
			return err
		}
		s.begun.Store(true)
	}
	s.middleware.serves.Store(true)
	s.middleware.join()
	s.middleware.dispatcher.Start()
	err := s.Server.Start(s.client.Handler(s.middleware.Handler(handler)))
	if err != nil {
		s.ended()
	}
	return err
}

// join counts the process among those that share the limits, once it serves, and once
// a rule asks for it.
func (t *Middleware) join() {
	if limiter := t.cfg.Limiter; t.serves.Load() && limiter.Policy().SharesLimits() {
		t.joined.Do(func() { go limiter.Heartbeat(t.serving) })
	}
}

// Run processes tasks with handler, wrapped by Handler, until the process gets
// SIGTERM or SIGINT, and then shuts down. SIGTSTP stops it from taking tasks, as Stop
// does, where the system has that signal. The error is that of Start.
func (s *Server) Run(handler asynq.Handler) error {
	signals, over := listenForSignals()
	defer over()
	if err := s.Start(handler); err != nil {
		return err
	}
	obey(signals, s.Stop)
	s.Shutdown()
	return nil
}

// Stop takes no new task. Running ones go on.
func (s *Server) Stop() {
	s.middleware.servers.Remove(s.client.Pacer)
	s.client.Pacer.Stop() // first: asynq waits for a look that is held back
	s.middleware.moves.Go(func() {
		if left := s.client.Pacer.Withdraw(); len(left) > 0 {
			s.middleware.dispatcher.GiveBack(left)
		}
	})
	s.Server.Stop()
}

// retired tells whether servers were started here and all of them were stopped: tasks that
// this process released would only wait for another to look.
func (t *Middleware) retired() bool { return t.serves.Load() && t.servers.None() }

// Shutdown takes no new task, puts those that wait in handlers back and lets the
// running ones end, for asynq's ShutdownTimeout at most: then they go back too. The Middleware ends
// with the last of its servers.
func (s *Server) Shutdown() {
	s.Stop()
	s.client.Retire()
	if s.middleware.servers.None() {
		s.middleware.Stop()
		s.middleware.dispatcher.Wait()
	}
	s.client.Stop()
	s.Server.Shutdown()
	s.middleware.moves.Wait() // not for long: each is bounded
	s.ended()
}

// ended ends what begin has begun.
func (s *Server) ended() {
	if s.begun.CompareAndSwap(true, false) {
		s.over()
	}
}
