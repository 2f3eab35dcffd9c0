package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/outbound"
)

// taskServer is asynq's with the limits around the handler of http tasks.
type taskServer struct {
	*worker.Server
	handler  asynq.Handler
	outbound *outbound.Handler
}

// assemble puts wrapper and server together. It does no I/O.
func assemble(p parts) (system, error) {
	log := p.log
	cfg := p.options.outbound()
	cfg.Logger, cfg.Told = log, worker.ReportResponse
	out, err := outbound.New(cfg)
	if err != nil {
		return nil, err
	}
	return &taskServer{
		Server: p.limits.NewServer(asynq.Config{
			Concurrency:     p.options.concurrency,
			Queues:          p.options.queues,
			ShutdownTimeout: p.options.drain,
			ErrorHandler:    asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) { logFailure(ctx, log, t, err) }),
		}),
		handler:  httpOnly{out},
		outbound: out,
	}, nil
}

// Start implements system.
func (s *taskServer) Start() error { return s.Server.Start(s.handler) }

// Shutdown implements system.
func (s *taskServer) Shutdown() {
	s.Server.Shutdown()
	s.outbound.Close()
}

// httpOnly is a handler of tasks of type http and no other. It takes the place
// of asynq's mux, for which "http" is the beginning of "httpx" too.
type httpOnly struct{ asynq.Handler }

// Matches implements worker.TaskMatcher.
func (httpOnly) Matches(t *asynq.Task) bool { return t.Type() == queue.TypeHTTP }

// logFailure tells of a task that failed: aloud when it is for good.
func logFailure(ctx context.Context, log *slog.Logger, t *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	attrs := []any{"task_id", id, "type", t.Type(), "queue", name, "retried", retried, "error", err}
	if errors.Is(err, asynq.SkipRetry) || retried >= most {
		log.ErrorContext(ctx, "task failed for good and is archived", attrs...)
		return
	}
	log.DebugContext(ctx, "task failed and is tried again", attrs...)
}
