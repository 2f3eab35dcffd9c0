package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// call is one script call: what it sends, and how much it gets back. Every script
// may be sent again, by go-redis after a lost reply or by us, and does no harm.
type call struct {
	script *lua.Script
	args   []any // evalsha, the SHA, the number of keys, the keys, the arguments; nil to have the attempt make them
	reply  int   // how many numbers the reply has
	rules  int   // of a decision, whose reply may be shorter
	// attempt is what the call decides, if it is a decision: it gets the reply when
	// whoever asked has gone.
	attempt *attempt
}

// newCall begins a call; the caller appends the arguments, so many.
func newCall(script *lua.Script, keys []any, extraKeys, arguments, reply int) call {
	args := make([]any, 0, 3+len(keys)+extraKeys+arguments)
	args = append(args, "evalsha", script.Arg(), len(keys)+extraKeys)
	return call{script: script, args: append(args, keys...), reply: reply}
}

// send runs the script by its hash, and by its text on a server that does not
// know it.
func (c call) send(ctx context.Context, rdb redis.UniversalClient) ([]int64, error) {
	cmd := c.command(ctx)
	if err := rdb.Process(ctx, cmd); unknownScript(err) {
		cmd = c.text(ctx)
		_ = rdb.Process(ctx, cmd) // the command has its error
	}
	return c.result(cmd)
}

// command asks for the script by its hash. The numbers of the reply are read
// without boxing them one by one.
func (c call) command(ctx context.Context) *redis.IntSliceCmd {
	return redis.NewIntSliceCmd(ctx, c.arguments()...)
}

func (c call) arguments() []any {
	if c.args == nil {
		return c.attempt.arguments()
	}
	return c.args
}

// text sends the script itself, which the server then knows.
func (c call) text(ctx context.Context) *redis.IntSliceCmd {
	args := append([]any{"eval", c.script.Source()}, c.arguments()[2:]...)
	return redis.NewIntSliceCmd(ctx, args...)
}

func unknownScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

var errReply = errors.New("the reply is not the script's")

func (c call) result(cmd *redis.IntSliceCmd) ([]int64, error) {
	reply, err := cmd.Result()
	if err != nil {
		return nil, err
	}
	if c.short(reply) {
		return lengthened(reply, c.rules), nil
	}
	if len(reply) != c.reply {
		return nil, fmt.Errorf("%w: %s returned %d numbers instead of %d", errReply, c.script.Name, len(reply), c.reply)
	}
	return reply, nil
}

// full is a reply, written out where it is the short one of a decision.
func (c call) full(reply []int64) []int64 {
	if c.short(reply) {
		return lengthened(reply, c.rules)
	}
	return reply
}

// short says whether a reply is the short one: of a turn's, with a number more.
func (c call) short(reply []int64) bool {
	more := len(reply) - 1 - shortRule*c.rules
	return c.rules > 0 && (more == 0 || more == 1 && c.reply == replyHead+replyRule*c.rules+turnReply)
}

// bounded is a context with a deadline of its own and no timer, which for a single
// decision would be a third of what it costs here beside its command. The client
// heeds a deadline where it reads and writes (ContextTimeoutEnabled), and asks Done
// before it tries again; it watches Done only while it waits for a connection or
// between two tries, for times that it bounds itself.
type bounded struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

func within(ctx context.Context, timeout time.Duration) context.Context {
	deadline := time.Now().Add(timeout)
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(deadline) {
		return ctx
	}
	return &bounded{Context: ctx, deadline: deadline}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) over() bool { return !time.Now().Before(b.deadline) }

func (b *bounded) Done() <-chan struct{} {
	if b.over() {
		return over
	}
	return b.Context.Done()
}

func (b *bounded) Err() error {
	if err := b.Context.Err(); err != nil {
		return err
	}
	if b.over() {
		return context.DeadlineExceeded
	}
	return nil
}

var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
