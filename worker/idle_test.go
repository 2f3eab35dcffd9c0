package worker

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "On an idle queue that costs about 16 Redis commands a second, and 21 while tasks
// wait for later": asynq's own and those inside of scripts included, which are to be 20
// at most, and 25.
func TestIdleCommands(t *testing.T) {
	t.Parallel()
	const seconds, once = 4, 30 // once: commands that are not sent each second, as a whole look at who waits
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	server := s.throttle.NewServer(asynq.Config{LogLevel: asynq.FatalLevel})
	must(t, server.Start(s.counting(nil)))
	t.Cleanup(server.Shutdown)
	idle := func(what string, most int) {
		<-time.After(time.Second) // what there was to do is done
		began := time.Now()
		got := redistest.Commands(t, s.rdb, func() { <-time.After(seconds * time.Second) })
		took := time.Since(began) // longer on a busy machine
		if n := redistest.Total(got); float64(n) > float64(most)*took.Seconds()+once || n == 0 {
			t.Errorf("%s: %d commands in %s: %v", what, n, took, got)
		}
	}
	idle("nobody waits", 20)
	s.add(queue.Task{ID: "starts"})
	<-s.ended // each runs beside the other, and either could be decided on first
	s.add(queue.Task{ID: "waits"})
	s.until("one waits", func() bool {
		info := s.info("waits")
		return info != nil && info.State == asynq.TaskStateRetry
	})
	idle("one waits for an hour", 25)
}
