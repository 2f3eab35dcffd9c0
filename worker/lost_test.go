package worker

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// losing has replies lost of looks that have found a task.
type losing struct {
	redis.Hook

	left   atomic.Int32 // how many
	pipes  atomic.Int32 // and of how many pipelines
	resend bool         // the client sends the look again, as go-redis does, and tells nobody
}

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err != nil || !isLook(cmds[0]) || l.pipes.Add(-1) < 0 {
			return err
		}
		if l.resend {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds[1:] { // the first has its reply
			cmd.SetErr(io.EOF)
		}
		return io.EOF
	}
}

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if reply, is := cmd.(*redis.Cmd); !is || err != nil || !isLook(cmd) || reply.Val() == nil || l.left.Add(-1) < 0 {
			return err
		}
		if l.resend {
			return next(ctx, cmd)
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}

// isLook tells asynq's look from its other scripts by its keys.
func isLook(cmd redis.Cmder) bool {
	args := cmd.Args()
	if len(args) < 7 || !strings.HasPrefix(cmd.Name(), "eval") || args[2] != 4 {
		return false
	}
	last, _ := args[6].(string)
	return strings.HasSuffix(last, "}:lease")
}

// "What a look has taken and not brought goes back to pending as soon as Redis answers": asynq would bring it in one to
// two minutes, a failure older, or archive it.
func TestLostLook(t *testing.T) {
	t.Parallel()
	for name, resend := range map[string]bool{"its reply is lost": false, "it is sent again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, perHour(100), func(s *system) {
				const n, lost = 100, 3
				hook := &losing{resend: resend}
				hook.left.Store(lost)
				hook.pipes.Store(lost)
				s.rdb.AddHook(hook)
				for i := range n {
					s.addForeign(fmt.Sprint(i), asynq.MaxRetry(0))
				}
				began := time.Now()
				s.serve(asynq.Config{Concurrency: 40}, nil)
				for i := range n {
					select {
					case <-s.ended:
					case <-time.After(asynqx.LeaseFor):
						t.Fatalf("%d of %d have run after %s", i, n, time.Since(began))
					}
				}
				if took := time.Since(began); took > asynqx.LeaseFor/10 {
					t.Errorf("they took %s", took)
				}
				if left, pipes := hook.left.Load(), hook.pipes.Load(); left > 0 || pipes > 0 {
					t.Errorf("%d replies and %d of pipelines were not lost: the test tested less than it should", left, pipes)
				}
			})
		})
	}
}
