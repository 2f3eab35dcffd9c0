//go:build unix

package worker

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// "SIGTSTP stops it from taking tasks, as Stop does", and SIGTERM ends it.
func TestRunHeedsSIGTSTP(t *testing.T) { //nolint:paralleltest // signals are the process's
	caught := make(chan os.Signal, 10) // whatever happens, the test lives on
	signal.Notify(caught, syscall.SIGTSTP, syscall.SIGTERM)
	defer signal.Stop(caught)
	s := newSystem(t, perHour(2), MiddlewareConfig{})
	server := s.throttle.NewServer(asynq.Config{
		Concurrency: 4, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
	})
	let, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- server.Run(s.counting(func(context.Context, *asynq.Task) error { <-let; return nil }))
	}()
	s.add(queue.Task{ID: "runs"})
	s.until("it runs", func() bool { return s.ran("runs") == 1 })
	tell(t, syscall.SIGTSTP)
	s.until("it looks no more", server.client.Pacer.Stopped)
	s.add(queue.Task{ID: "new"})
	close(let)
	<-s.ended
	s.until("the running task ends", func() bool { return s.info("runs") == nil })
	tell(t, syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if info := s.info("new"); info == nil || info.State != asynq.TaskStatePending || s.ran("new") != 0 {
		t.Errorf("the new task is %+v and ran %d times", info, s.ran("new"))
	}
	if err := server.Start(s.counting(nil)); !errors.Is(err, asynq.ErrServerClosed) {
		t.Errorf("it starts again: %v", err)
	}
	if err := server.Run(s.counting(nil)); !errors.Is(err, asynq.ErrServerClosed) {
		t.Errorf("it runs again: %v", err)
	}
}

func tell(t *testing.T, s syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(os.Getpid(), s))
}

// A server that was stopped releases no task that it will not take.
func TestStoppedReleasesNobody(t *testing.T) {
	t.Parallel()
	s := newSystem(t, []policy.Rule{{Name: "r", Algorithm: policy.Concurrency, Limit: 1}}, MiddlewareConfig{})
	var looks atomic.Int64
	s.throttle.dispatcher.Intercept(func(ask dispatch.Func) dispatch.Func {
		return func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			defer looks.Add(1)
			return ask(ctx, req)
		}
	})
	let := make(chan struct{})
	server := s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { <-let; return nil })
	s.add(queue.Task{ID: "runs"})
	s.until("it runs", func() bool { return s.ran("runs") == 1 })
	s.add(queue.Task{ID: "waits"})
	s.until("the other waits", func() bool { i := s.info("waits"); return i != nil && i.State == asynq.TaskStateRetry })
	server.Stop()
	close(let)
	<-s.ended
	after := looks.Load() + 3
	s.until("it was looked whose turn it is", func() bool { return looks.Load() >= after })
	if info := s.info("waits"); info == nil || info.State != asynq.TaskStateRetry {
		t.Errorf("the task is %+v", info)
	}
}
