package asynqx

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// combiner sends scripts that come while another is on its way together, in one round trip: a busy Redis is saved by
// it what a far one would wait for. Where a round trip takes longer than it does beside Redis, each goes at once, and
// nobody waits for one that hangs. It is safe for concurrent use.
type combiner struct {
	rdb redis.UniversalClient

	mu      sync.Mutex
	waiting []*combined
	busy    bool // some are on their way
	far     bool
}

// combined is a script that is sent with others.
type combined struct {
	send func(redis.Scripter) *redis.Cmd
	cmd  *redis.Cmd
	done chan struct{} // closed when cmd has its answer
}

const (
	// mostCombined is how many scripts go in one round trip, so that it holds Redis up no longer than some others do.
	mostCombined = 32
	// eachTakes is how long each of them may take on a busy machine, beside the way.
	eachTakes = 100 * time.Microsecond
)

// send sends one by the client, or in a pipeline, and returns its answer.
func (c *combiner) send(send func(redis.Scripter) *redis.Cmd) *redis.Cmd {
	its := &combined{send: send, done: make(chan struct{})}
	c.mu.Lock()
	if c.busy && c.far {
		c.mu.Unlock()
		return send(c.rdb)
	}
	c.waiting = append(c.waiting, its)
	leads := !c.busy
	c.busy = true
	c.mu.Unlock()
	if leads && c.next() {
		go func() {
			for c.next() {
			}
		}()
	}
	<-its.done
	return its.cmd
}

// next sends what waits, and says whether more does since. Only one may be called at a time.
func (c *combiner) next() (more bool) {
	c.mu.Lock()
	n := min(len(c.waiting), mostCombined)
	part := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	c.mu.Unlock()
	late := time.AfterFunc(farAway+time.Duration(n)*eachTakes, c.scatter)
	c.together(part)
	near := late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if near {
		c.far = false
	}
	c.busy = len(c.waiting) > 0
	return c.busy
}

// scatter sends each that waits by itself: what is on its way takes too long.
func (c *combiner) scatter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.far = true
	for _, one := range c.waiting {
		go c.together([]*combined{one})
	}
	c.waiting = nil
}

func (c *combiner) together(part []*combined) {
	if len(part) == 1 {
		part[0].cmd = part[0].send(c.rdb)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), TryFor)
		defer cancel()
		pipe := c.rdb.Pipeline()
		for _, one := range part {
			one.cmd = one.send(pipe)
		}
		execute(ctx, pipe)
	}
	for _, one := range part {
		close(one.done)
	}
}

// execute sends a pipeline. Each of its commands has its own error afterwards, also where a hook of the client's has refused
// them together.
func execute(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		return
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}
