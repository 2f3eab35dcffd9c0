package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// The intervals at which asynq polls for tasks. With its own defaults, 1s and 5s, a limited task would start seconds late.
const (
	taskCheckInterval    = 200 * time.Millisecond
	delayedCheckInterval = time.Second
)

// config returns cfg with the settings that limited tasks need, wrapped around those that it already has:
//
//   - IsFailure: a limited task is no failure; all other errors go to the user's function.
//   - RetryDelayFunc: a limited task comes back at its time, never earlier. A task whose error is a
//     Retrier comes back when that says.
//   - ErrorHandler: it is not called for limited tasks, which putBack keeps from being archived on their last
//     attempt. config sets one even if cfg has none: it handles tasks that asynq failed before a handler saw them.
//   - TaskCheckInterval and DelayedTaskCheckInterval, if not set: 200ms and 1s, which cost about
//     ten Redis commands a second on an idle queue.
//
// The first call derives the default of MaxHolds from Concurrency. Each call takes the weights of queues from Queues and
// StrictPriority: among tasks that wait for their limits, queues have the same priorities as in asynq.
func (m *Middleware) config(cfg asynq.Config, putBack func(queue, id string, at time.Time)) asynq.Config {
	if len(cfg.Queues) == 0 {
		cfg.Queues = map[string]int{queue.DefaultQueue: 1} // as asynq does
	}
	m.queues.Serve(cfg.Queues)
	if cfg.IsFailure != nil {
		m.isFailure = cfg.IsFailure
	}
	isFailure := m.isFailure
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
		if limited, ok := AsLimited(err); ok { // asynq archives or retries the task right after this
			id, _ := asynq.GetTaskID(ctx)
			name, _ := asynq.GetQueueName(ctx)
			putBack(name, id, limited.At)
			return
		}
		m.failed(ctx, task)
		if handler != nil {
			handler.HandleError(ctx, task, err)
		}
	})
	if cfg.TaskCheckInterval == 0 {
		cfg.TaskCheckInterval = taskCheckInterval
	}
	m.concurrency.Add(int64(concurrency(cfg)))
	m.dispatcher.AddServer(concurrency(cfg), cfg.Queues, cfg.StrictPriority)
	if cfg.DelayedTaskCheckInterval == 0 {
		cfg.DelayedTaskCheckInterval = delayedCheckInterval
	}
	return cfg
}

// concurrency returns how many tasks asynq runs at once.
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
	limits     *Limits // nil for a server of NewMiddleware
	begun      atomic.Bool
}

// NewServer returns an asynq server over MiddlewareConfig.Redis, made from cfg with the settings that limited tasks need, wrapped
// around those that it has. It keeps working if Redis fails while tasks are put back. While it is idle it polls for tasks every
// TaskCheckInterval, and at once when this process dispatches one of them.
//
// Concurrency tasks run at once. While one tenant has more than half of the slots, up to half as many
// more tasks of other tenants run too: see MiddlewareConfig.Tenant.
func (m *Middleware) NewServer(cfg asynq.Config) *Server {
	var c *asynqx.Client
	cfg = m.config(cfg, func(queue, id string, at time.Time) { c.PutBack(queue, id, at) })
	c = asynqx.NewClient(asynqx.ClientConfig{
		Redis: m.cfg.Redis, Serving: m.serving, Log: m.log,
		Interval: cfg.TaskCheckInterval, Concurrency: concurrency(cfg),
		GiveBack: m.dispatcher.GiveBack, Looks: m.dispatcher.CheckWatchdog,
	})
	cfg.TaskCheckInterval, cfg.Concurrency = min(cfg.TaskCheckInterval, asynqx.RoundPause), c.Slots.Most()
	m.servers.Add(c.Pacer, c.Slots)
	return &Server{Server: asynq.NewServerFromRedisClient(c, cfg), middleware: m, client: c}
}

// Start starts to process tasks with handler, and returns. While the server runs, the process counts as
// one of those that share the limits. After Stop or Shutdown the error is asynq.ErrServerClosed.
func (s *Server) Start(handler asynq.Handler) error {
	if handler == nil {
		return errors.New("worker: Start needs a handler, got nil")
	}
	if s.client.Pacer.Stopped() {
		return fmt.Errorf("worker: the server was stopped; make another with NewServer: %w", asynq.ErrServerClosed)
	}
	if s.middleware.serving.Err() != nil {
		return fmt.Errorf("worker: the Middleware ended with the last of its servers; make another with New or NewMiddleware: %w", asynq.ErrServerClosed)
	}
	if s.limits != nil && !s.begun.Load() {
		if err := s.limits.Begin(context.Background()); err != nil {
			return err
		}
		s.begun.Store(true)
	}
	s.middleware.serves.Store(true)
	s.middleware.join()
	s.middleware.dispatcher.Start()
	err := s.Server.Start(s.client.Handler(s.middleware.handler(handler)))
	if err != nil {
		s.ended()
	}
	return err
}

// join counts the process among those that share the limits, once it has a running server and a rule needs the count.
func (m *Middleware) join() {
	if limiter := m.cfg.Limiter; m.serves.Load() && limiter.Policy().SharesLimits() {
		m.joined.Do(func() { go limiter.Heartbeat(m.serving) })
	}
}

// Run processes tasks with handler, until the process receives SIGTERM or SIGINT, and then shuts down. On systems that have
// SIGTSTP, that signal stops it from taking tasks, as Stop does. A server of New reads its limits file again at SIGHUP, unless
// Config.ReloadOn is set. The error is that of Start.
func (s *Server) Run(handler asynq.Handler) error {
	reloads := s.limits != nil && s.limits.cfg.ReloadOn == nil && s.limits.cfg.LimitsFile != ""
	arrive, over := listen(reloads)
	defer over()
	if err := s.Start(handler); err != nil {
		return err
	}
	obey(arrive, s.Stop, func() { s.limits.reload() })
	s.Shutdown()
	return nil
}

// Stop makes the server take no more tasks. Running tasks go on.
func (s *Server) Stop() {
	s.middleware.servers.Remove(s.client.Pacer)
	s.client.Pacer.Stop() // first: asynq waits for a poll that is held back
	s.middleware.moves.Go(func() {
		if left := s.client.Pacer.Withdraw(); len(left) > 0 {
			s.middleware.dispatcher.GiveBack(left)
		}
	})
	s.Server.Stop()
}

// retired reports whether this process has started servers and all of them have stopped: tasks that it
// dispatched would only wait until another process polls.
func (m *Middleware) retired() bool { return m.serves.Load() && m.servers.None() }

// Shutdown makes the server take no more tasks, puts back the tasks that wait in handlers, and waits for running tasks, at most
// for asynq's ShutdownTimeout: then they are put back too. The Middleware stops with the last of its servers.
func (s *Server) Shutdown() {
	s.Stop()
	s.client.Retire()
	if s.middleware.servers.None() {
		s.middleware.Stop()
		s.middleware.planner.Wait()
	}
	s.client.Stop()
	s.Server.Shutdown()
	s.middleware.moves.Wait() // not for long: each is bounded
	s.ended()
}

// ended ends what Limits.Begin has started.
func (s *Server) ended() {
	if s.begun.CompareAndSwap(true, false) {
		s.limits.End()
	}
}

// listen returns the signals that end the process, stop it from taking tasks or, if reloads is set, have it read its limits file. Call
// it before a server starts, so that no signal is lost.
func listen(reloads bool) (signals chan os.Signal, over func()) {
	signals = make(chan os.Signal, 2)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, os.Interrupt}, pauseSignals...)...)
	if reloads { // otherwise SIGHUP ends the process, as it ends any
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals, func() { signal.Stop(signals) }
}

// obey blocks until a signal ends the process. As with asynq, SIGTSTP only stops it from taking tasks.
func obey(signals <-chan os.Signal, stop, reload func()) {
	for s := range signals {
		switch s {
		case syscall.SIGTERM, os.Interrupt:
			return
		case syscall.SIGHUP:
			reload()
		default:
			stop()
		}
	}
}
