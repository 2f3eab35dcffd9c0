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

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
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

// SIGHUP has a server of New read its limits file again, and does not end the process.
func TestRunHeedsSIGHUP(t *testing.T) { //nolint:paralleltest // signals are the process's
	caught := make(chan os.Signal, 10) // whatever happens, the test lives on
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGTERM)
	defer signal.Stop(caught)
	var log says
	path := writeLimits(t, "", mailLimits)
	limits, err := New(redistest.NewServer(t).Client(t), Config{LimitsFile: path, Spends: spendsMail, NoMetrics: true, Logger: logTo(&log)})
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- limits.NewServer(asynq.Config{Concurrency: 1}).Run(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	}()
	redistest.WaitFor(t, "the limits to be in force", time.Minute, func() bool { return log.times("limits in force") > 0 })
	tell(t, syscall.SIGHUP)
	redistest.WaitFor(t, "the file to be read again", time.Minute, func() bool { return log.times("limits file unchanged") == 1 })
	writeLimits(t, path, "") // in place: it may be half written
	redistest.WaitFor(t, "the file to be refused", time.Minute, func() bool { return log.times("looks truncated") == 1 })
	tell(t, syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Error(err)
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
	s.onDispatch(func(waitlist.Dispatched) { looks.Add(1) })
	let := make(chan struct{})
	server := s.serve(asynq.Config{}, func(context.Context, *asynq.Task) error { <-let; return nil })
	s.add(queue.Task{ID: "runs"})
	s.until("it runs", func() bool { return s.ran("runs") == 1 })
	s.add(queue.Task{ID: "waits"})
	s.is("waits", asynq.TaskStateRetry)
	server.Stop()
	close(let)
	<-s.ended
	after := looks.Load() + 3
	s.until("it was looked whose turn it is", func() bool { return looks.Load() >= after })
	if info := s.info("waits"); info == nil || info.State != asynq.TaskStateRetry {
		t.Errorf("the task is %+v", info)
	}
}
