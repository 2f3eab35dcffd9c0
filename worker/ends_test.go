package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// "One line when it ceases to, and one when it has taken all of it, however many tasks that
// concerns", with how many calls failed.
func TestUntakenEndsAreTwoLines(t *testing.T) {
	t.Parallel()
	const tasks, faults = 8, 40
	log := &told{all: true}
	s := newSystem(t, perHour(100), MiddlewareConfig{Logger: slog.New(log)})
	fault := &failing{}
	s.rdb.AddHook(fault)
	for i := range tasks {
		s.add(queue.Task{ID: fmt.Sprint("t", i)})
	}
	begin := sync.OnceFunc(func() { fault.left.Store(faults) })
	var all sync.WaitGroup
	all.Add(tasks)
	s.serve(asynq.Config{Concurrency: tasks}, func(context.Context, *asynq.Task) error {
		all.Done()
		all.Wait() // so that they end together
		begin()
		return nil
	})
	var lines []line
	redistest.WaitFor(t, "both lines", bound, func() bool { lines = append(lines, log.take()...); return len(lines) >= 2 })
	if len(lines) != 2 || lines[0].level != slog.LevelWarn || !strings.Contains(lines[0].text, "connection reset") ||
		lines[1].level != slog.LevelInfo || !strings.Contains(lines[1].text, fmt.Sprint("failed_calls=", faults)) {
		t.Errorf("told %+v", lines)
	}
}

// lostEnd is a hook that loses the replies to the scripts that end a run.
type lostEnd struct{ left atomic.Int64 }

func (l *lostEnd) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lostEnd) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Err() == nil {
				err = errors.Join(err, l.lose(ctx, cmd))
			}
		}
		return err
	}
}

func (l *lostEnd) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := next(ctx, cmd); err != nil {
			return err
		}
		return l.lose(ctx, cmd)
	}
}

func (l *lostEnd) lose(ctx context.Context, cmd redis.Cmder) error {
	if keys := scriptKeys(cmd); !asynqx.EndsRun(withDeadline(ctx), keys) || !isEnd(keys) || l.left.Add(-1) < 0 {
		return nil
	}
	err := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	cmd.SetErr(err)
	return err
}

// asynqLines is asynq's logger, and keeps its complaints.
type asynqLines struct {
	mu   sync.Mutex
	said []string
}

func (*asynqLines) Debug(...any)     {}
func (*asynqLines) Info(...any)      {}
func (l *asynqLines) Warn(a ...any)  { l.keep(a) }
func (l *asynqLines) Error(a ...any) { l.keep(a) }
func (l *asynqLines) Fatal(a ...any) { l.keep(a) }

func (l *asynqLines) keep(a []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, fmt.Sprint(a...))
}

// "The client hides that from asynq": it would log a line, and send the script again.
func TestLostReplyOfAnEnd(t *testing.T) {
	t.Parallel()
	const tasks = 5
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	lost, log := &lostEnd{}, &asynqLines{}
	lost.left.Store(tasks)
	s.rdb.AddHook(lost)
	for i := range tasks {
		s.add(queue.Task{ID: fmt.Sprint("t", i)})
	}
	server := s.throttle.NewServer(asynq.Config{Concurrency: tasks, Logger: log, LogLevel: asynq.WarnLevel})
	must(t, server.Start(s.counting(nil)))
	t.Cleanup(server.Shutdown)
	s.until("the replies are lost", func() bool { return lost.left.Load() <= 0 })
	s.until("all are done", func() bool { n, _ := s.counters(); return n == tasks })
	server.Shutdown() // when the last have ended
	log.mu.Lock()
	defer log.mu.Unlock()
	if len(log.said) > 0 {
		t.Errorf("asynq says %q", log.said)
	}
}
