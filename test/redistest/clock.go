package redistest

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Clock is the clock of scripts, in the hands of a test: whoever adds it to a client as a hook has
// the limiter's scripts take its time for Redis's own. Keys expire by the server's own clock all
// the same, so a test whose clock moves for less than a minute of real time sees none expire.
//
// The scripts' first argument is a number that stands for the clock, and "" in production. It is safe for concurrent use.
type Clock struct {
	Around
	now atomic.Int64
}

// NewClock returns a clock that shows t and stands still.
func NewClock(t time.Time) *Clock {
	c := &Clock{}
	c.Around = Around{Before: c.put, After: c.answer}
	c.Set(t)
	return c
}

// Set sets the clock, to whole microseconds.
func (c *Clock) Set(t time.Time) { c.now.Store(t.UnixMicro()) }

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) { c.now.Add(d.Microseconds()) }

// Now returns what the clock shows.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.now.Load()) }

// put writes the time where a script has "" for the clock: EVALSHA sha n key… clock ….
func (c *Clock) put(cmd redis.Cmder) {
	if name := cmd.Name(); name != "eval" && name != "evalsha" {
		return
	}
	args := cmd.Args()
	keys, ok := args[2].(int)
	if at := 3 + keys; ok && at < len(args) && args[at] == "" {
		args[at] = strconv.FormatInt(c.now.Load(), 10)
	}
}

// answer has TIME show the clock's time too.
func (c *Clock) answer(cmd redis.Cmder) {
	if t, ok := cmd.(*redis.TimeCmd); ok && t.Err() == nil {
		t.SetVal(c.Now())
	}
}
