package asynqx

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// combiner sends scripts that arrive while another is under way together, in one round trip. That
// relieves a busy Redis, and costs a distant one additional waiting. So if a round trip takes longer
// than to a Redis nearby, each script is sent at once, and no script waits for a call that hangs. It
// is safe for concurrent use.
type combiner struct {
	rdb redis.UniversalClient

	mu      sync.Mutex
	waiting []*combined
	busy    bool // some are under way
	far     bool
}

// combined is a script that is sent with others.
type combined struct {
	send func(redis.Scripter) *redis.Cmd
	cmd  *redis.Cmd
	done chan struct{} // closed when cmd has its answer
}

const (
	// mostCombined is how many scripts go in one round trip, so that it occupies Redis no longer than
	// other scripts do.
	mostCombined = 32
	// eachTakes is how long each of them may take on a busy machine, besides the transit.
	eachTakes = 100 * time.Microsecond
)

// send sends one script by the client, or in a pipeline, and returns its answer.
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

// next sends what waits, and reports whether more has arrived since. Only one call may run at a time.
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

// scatter sends each waiting script by itself: the call under way takes too long.
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

// execute sends a pipeline. Each of its commands has its own error afterwards, also if a hook of the
// client has rejected them together.
func execute(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil || slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		return
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}
