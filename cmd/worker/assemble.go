package main

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/outbound"
)

// taskServer is asynq's with the limits around the handler of http tasks.
type taskServer struct {
	*worker.Server
	outbound *outbound.Handler
}

// assemble puts wrapper and server together. It does no I/O.
func assemble(limits *worker.Limits, o options, log *slog.Logger) (system, error) {
	cfg := o.outbound
	cfg.Logger, cfg.OnResponse, cfg.OnSent, cfg.Member = slog.New(ofTask{log.Handler()}), judge, worker.ReportSent, worker.Member
	out, err := outbound.New(cfg)
	if err != nil {
		return nil, err
	}
	server := limits.NewServer(asynq.Config{Concurrency: o.concurrency, Queues: o.queues, ShutdownTimeout: o.drain})
	return &taskServer{Server: server, outbound: out}, nil
}

func judge(ctx context.Context, resp *http.Response) upstream.Hint {
	return worker.ReportResponse(ctx, resp).Hint
}

func (s *taskServer) Start() error { return s.Server.Start(httpOnly{s.outbound}) }

func (s *taskServer) Shutdown() {
	s.Server.Shutdown()
	s.outbound.Close()
}

// httpOnly handles tasks of type http alone. asynq's mux would send it type "httpx" too.
type httpOnly struct{ asynq.Handler }

// Matches implements worker.TaskMatcher.
func (httpOnly) Matches(t *asynq.Task) bool { return t.Type() == queue.TypeHTTP }

// ofTask adds the task's id and scope to what its handler logs.
type ofTask struct{ slog.Handler }

func (h ofTask) Handle(ctx context.Context, r slog.Record) error {
	if id, is := asynq.GetTaskID(ctx); is {
		r.AddAttrs(slog.String("task_id", id), slog.String("scope", worker.TaskScope(ctx)))
	}
	return h.Handler.Handle(ctx, r)
}

func (h ofTask) WithAttrs(attrs []slog.Attr) slog.Handler { return ofTask{h.Handler.WithAttrs(attrs)} }

func (h ofTask) WithGroup(name string) slog.Handler { return ofTask{h.Handler.WithGroup(name)} }

// system runs tasks.
type system interface {
	Start() error
	// Stop takes no new task. Running tasks go on.
	Stop()
	// Shutdown takes no new task, puts waiting ones back, and returns when running ones have ended or were put back.
	Shutdown()
}
