package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// "A task whose place is known and whose provider is dispatched is not brought by asynq meanwhile", also if all are later than they
// were told. "If all processes die, every task is back within ten minutes of its expected start."
func TestTheSafetyNet(t *testing.T) {
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s}]}", func(c *course) {
		const n, every = 600, 12 * time.Second
		c.plan(n, "p/a")
		c.serve(asynq.Config{})
		c.serve(asynq.Config{})
		started := len(c.finish(30))
		c.change(fmt.Sprintf("{rules: [{name: r, algorithm: token-bucket, limit: %d, per: 1h}]}", time.Hour/every))
		<-time.After(40 * time.Minute) // by then the last was to start half an hour ago
		started += len(c.ended)
		if picked := c.seen.pickups.Load(); started < 200 || int(picked) > started+1 {
			c.Errorf("%d pick-ups for %d starts", picked, started)
		}

		died := time.Now()
		for _, p := range c.workers {
			p.die()
		}
		c.workers = nil
		for len(c.ended) > 0 {
			<-c.ended
		}
		rdb, back := c.connect(nil), make(chan time.Time, n)
		asynqAlone := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel})
		must(c, asynqAlone.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { back <- time.Now(); return nil })))
		for i := range n - started {
			expected := died.Add(time.Duration(i) * every)
			select {
			case at := <-back:
				if at.After(expected.Add(10 * time.Minute)) {
					c.Errorf("task %d after the crash is back %v after its expected start", i, at.Sub(expected))
				}
			case <-time.After(patience):
				c.Fatalf("%d of %d tasks are back", i, n-started)
			}
		}
		asynqAlone.Shutdown()
		_ = rdb.Close()
	})
}
