package asynqx

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/lua"
)

// beats sends the writes of asynq's heartbeat in the background: asynq starts no task while its heartbeat waits for Redis, which is for
// up to four round trips every five seconds. A call returns the outcome of the last one that has ended. If Redis does not answer,
// waiting calls are dropped: the next heartbeat writes everything anew. It is safe for concurrent use.
type beats struct {
	mu    sync.Mutex
	calls []func(context.Context) error
	idle  chan struct{} // closed when all have been sent; nil: none waits
	last  error
}

// mostBeats is how many calls may wait to be sent: those of several heartbeats.
const mostBeats = 64

var errBeats = errors.New("headway: redis does not take what the heartbeat writes")

// send queues a call behind those before it, and returns the outcome of the last one that ended.
func (b *beats) send(ctx context.Context, call func(context.Context) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.calls) >= mostBeats {
		return errBeats
	}
	b.calls = append(b.calls, call)
	if b.idle == nil {
		b.idle = make(chan struct{})
		go b.run(context.WithoutCancel(ctx), b.idle)
	}
	return b.last
}

func (b *beats) run(ctx context.Context, idle chan struct{}) {
	for {
		b.mu.Lock()
		if len(b.calls) == 0 {
			b.idle = nil
			close(idle)
			b.mu.Unlock()
			return
		}
		call := b.calls[0]
		b.calls = b.calls[1:]
		b.mu.Unlock()
		bounded, done := context.WithTimeout(ctx, TryFor)
		err := call(bounded)
		done()
		b.mu.Lock()
		if b.last = err; MayPass(err) {
			b.calls = nil
		}
		b.mu.Unlock()
	}
}

// wait returns when all calls have been sent, or after a time-out.
func (b *beats) wait() {
	b.mu.Lock()
	idle := b.idle
	b.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(lastTry):
	}
}

// isBeat reports whether asynq's heartbeat writes a key.
func isBeat(key string) bool {
	return strings.HasPrefix(key, "asynq:servers") || strings.HasPrefix(key, "asynq:workers")
}

// isServerState reports whether a script is that by which a heartbeat writes its server's state. The one that
// deletes it has no arguments.
func isServerState(keys []string, args []any) bool {
	return len(keys) == 2 && strings.HasPrefix(keys[0], "asynq:servers:") && strings.HasPrefix(keys[1], "asynq:workers:") && len(args) > 0
}

// infoArg is the place of what a server writes of itself in the arguments of its script, and fieldConcurrency the field
// that says how many tasks it runs at once.
const (
	infoArg                           = 1
	fieldConcurrency protowire.Number = 4
)

// configured has a server's state say the Concurrency of its configuration. asynq was given more, for the slots that are
// lent, and people would read those as tasks that run at once.
func (c *Client) configured(args []any) []any {
	info, is := args[infoArg].([]byte)
	if !is {
		return args
	}
	out := slices.Clone(args)
	info = protowire.AppendTag(slices.Clone(info), fieldConcurrency, protowire.VarintType) // of two values the last one counts
	out[infoArg] = protowire.AppendVarint(info, uint64(c.cfg.Concurrency))                 //nolint:gosec // at least 1
	return out
}

// sendState sends the script by which a heartbeat writes its server's state, in the background.
func (c *Client) sendState(ctx context.Context, script string, keys []string, args []any) *redis.Cmd {
	return redis.NewCmdResult("OK", c.beats.send(ctx, func(ctx context.Context) error {
		return redis.NewScript(script).Run(ctx, c.UniversalClient, keys, args...).Err()
	}))
}

// ZAdd sends what a heartbeat adds in the background.
func (c *Client) ZAdd(ctx context.Context, key string, members ...redis.Z) *redis.IntCmd {
	if !isBeat(key) {
		return c.UniversalClient.ZAdd(ctx, key, members...)
	}
	return redis.NewIntResult(0, c.beats.send(ctx, func(ctx context.Context) error { return c.UniversalClient.ZAdd(ctx, key, members...).Err() }))
}

// ZAddXX sends the leases that a heartbeat renews in the background. Only those that still belong to
// this process when the call arrives are renewed.
func (c *Client) ZAddXX(ctx context.Context, key string, members ...redis.Z) *redis.IntCmd {
	if !strings.HasPrefix(key, "asynq:{") || !strings.HasSuffix(key, "}:lease") {
		return c.UniversalClient.ZAddXX(ctx, key, members...)
	}
	args := c.runs.renewals(key, members)
	return redis.NewIntResult(0, c.beats.send(ctx, func(ctx context.Context) error {
		return eval(ctx, c.UniversalClient, lua.KeepLeases, []string{key}, args).Err()
	}))
}

// ZRem removes what heartbeats have written, after all of their calls, as a server does when it ends.
func (c *Client) ZRem(ctx context.Context, key string, members ...any) *redis.IntCmd {
	if isBeat(key) {
		c.beats.wait()
	}
	return c.UniversalClient.ZRem(ctx, key, members...)
}
