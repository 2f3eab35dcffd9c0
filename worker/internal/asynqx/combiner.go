package asynqx

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// combiner sends scripts that arrive while another is under way in one round trip, which relieves a busy Redis. If a call takes longer
// than to a Redis nearby, or hangs, others are sent beside it. It is safe for concurrent use.
type combiner struct {
	rdb redis.UniversalClient

	mu      sync.Mutex
	waiting []*combined
	calls   int  // under way
	far     bool // several may be
}

// combined is a script that is sent with others.
type combined struct {
	send func(redis.Scripter) *redis.Cmd
	cmd  *redis.Cmd
	done chan struct{} // closed when cmd has its answer
}

const (
	// mostCombined is how many scripts go in one round trip, so that it occupies Redis no longer than other scripts do.
	mostCombined = 32
	// farAway is how long a call to a Redis nearby takes at most, besides eachTakes for each script.
	farAway, eachTakes = 2 * time.Millisecond, 100 * time.Microsecond
)

// send sends a script by the client, or in a pipeline, and returns its answer.
func (c *combiner) send(send func(redis.Scripter) *redis.Cmd) *redis.Cmd {
	call := &combined{send: send, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, call)
	c.start()
	c.mu.Unlock()
	<-call.done
	return call.cmd
}

// start sends what waits if no call is under way, or Redis is distant. c.mu is held.
func (c *combiner) start() {
	if c.calls == 0 || c.far {
		c.calls++
		go c.run()
	}
}

// widen has what waits sent beside a call that takes long.
func (c *combiner) widen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.far = true
	for range c.waiting {
		c.start()
	}
}

// run sends what waits, until nothing does.
func (c *combiner) run() {
	for {
		c.mu.Lock()
		n := min(len(c.waiting), mostCombined)
		part := c.waiting[:n:n]
		c.waiting = c.waiting[n:]
		if n == 0 {
			c.calls--
		}
		c.mu.Unlock()
		if n == 0 {
			return
		}
		late := time.AfterFunc(farAway+time.Duration(n)*eachTakes, c.widen)
		c.together(part)
		if late.Stop() {
			c.mu.Lock()
			c.far = false
			c.mu.Unlock()
		}
	}
}

func (c *combiner) together(part []*combined) {
	if len(part) == 1 {
		part[0].cmd = part[0].send(c.rdb)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), TryFor)
		defer cancel()
		pipe := c.rdb.Pipeline()
		for _, call := range part {
			call.cmd = call.send(pipe)
		}
		cmds, err := pipe.Exec(ctx)
		if err != nil && !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
			for _, cmd := range cmds { // a hook of the client has rejected them together
				cmd.SetErr(err)
			}
		}
	}
	for _, call := range part {
		close(call.done)
	}
}
