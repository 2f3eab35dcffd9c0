package worker

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// lostArrival is a hook that loses the reply to the first call that enqueues a carried task anew.
// A client that sends the call again does so at once.
type lostArrival struct {
	id        string
	sentAgain bool
	lost      atomic.Bool
}

func (l *lostArrival) DialHook(next redis.DialHook) redis.DialHook { return next }
func (l *lostArrival) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lostArrival) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !l.arrives(cmd) || !l.lost.CompareAndSwap(false, true) {
			return next(ctx, cmd)
		}
		if err := next(ctx, cmd); err != nil { // such as NOSCRIPT
			l.lost.Store(false)
			return err
		}
		if l.sentAgain {
			return next(ctx, cmd)
		}
		err := &net.OpError{Op: "read", Err: errors.New("connection reset")}
		cmd.SetErr(err)
		return err
	}
}

// arrives tells the script by which asynq enqueues a task for later.
func (l *lostArrival) arrives(cmd redis.Cmder) bool {
	keys := scriptKeys(cmd)
	return len(keys) == 2 && strings.HasSuffix(keys[0], ":t:"+l.id) && keys[1] == "asynq:{default}:scheduled"
}

// A task that is carried over runs once, also where its carrier is not told that it was
// enqueued.
func TestArrivalsReplyIsLost(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"and the call is sent again": true, "and the client gives up": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1})
			lost := &lostArrival{id: "foreign", sentAgain: again}
			s.rdb.AddHook(lost)
			s.add(queue.Task{ID: "first"})
			s.serve(asynq.Config{Concurrency: 4}, nil)
			<-s.ended
			s.addForeign("foreign", asynq.MaxRetry(0))
			<-s.ended
			s.until("its carrier has ended", func() bool {
				return s.info(asynqx.CarrierID("foreign")) == nil && s.info("foreign") == nil
			})
			if !lost.lost.Load() {
				t.Fatal("no reply was lost: the test tested nothing")
			}
			if n := s.ran("foreign"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}
