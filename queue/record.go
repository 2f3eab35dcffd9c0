package queue

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynq v0.26 enqueues one task per round trip and has no batch API. Here asynq's own Client builds every call, but the Redis
// client beneath it records the call, so that many calls are sent in one pipeline and in order. asynq then interprets the answer
// in the same way. Nothing here depends on asynq's keys, messages or scripts.

// call is one script call of asynq's, first recorded and then answered.
type call struct {
	source string // of the script
	sha    string
	keys   []string
	args   []any

	answer *redis.Cmd // the script's answer; nil while the call is only recorded
}

// accepted is the answer to a call that is only recorded. asynq takes it for success, so an equal
// answer of Redis needs no interpretation by asynq.
const accepted = int64(1)

type callKey struct{}

// recorder is the Redis client beneath asynq. With a context that holds a call, it records or answers
// that call; all else goes to Redis.
type recorder struct {
	redis.UniversalClient
	scripts sync.Map // source by SHA-1
}

// EvalSha records the call. For an unknown script it returns NOSCRIPT, so that asynq calls Eval with the source.
func (r *recorder) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return r.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	if c.answer != nil {
		return c.answer
	}
	source, ok := r.scripts.Load(sha)
	if !ok {
		return redis.NewCmdResult(nil, redis.ErrNoScript)
	}
	c.source, c.sha, c.keys, c.args = source.(string), sha, keys, args
	return redis.NewCmdResult(accepted, nil)
}

// Eval stores the script.
func (r *recorder) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	if _, ok := ctx.Value(callKey{}).(*call); !ok {
		return r.UniversalClient.Eval(ctx, script, keys, args...)
	}
	sum := sha1.Sum([]byte(script))
	sha := hex.EncodeToString(sum[:])
	r.scripts.Store(sha, script)
	return r.EvalSha(ctx, sha, keys, args...)
}

// record has asynq build the call that would enqueue the task.
func record(ctx context.Context, client *asynq.Client, task *asynq.Task, opts ...asynq.Option) (*call, error) {
	c := &call{}
	if _, err := client.EnqueueContext(context.WithValue(ctx, callKey{}, c), task, opts...); err != nil {
		return nil, err
	}
	if c.sha == "" {
		return nil, errors.New("asynq enqueued in a way that this package does not know; it was built for asynq v0.26")
	}
	return c, nil
}

// meaning has asynq interpret an answer: nil, or asynq.ErrTaskIDConflict.
func (c *call) meaning(ctx context.Context, client *asynq.Client, task *asynq.Task) error {
	_, err := client.EnqueueContext(context.WithValue(ctx, callKey{}, c), task)
	return err
}

// exec sends the items' calls in one pipeline, in order. Each then has its answer, which may be an error. The
// first call of a script carries its source: Redis may have lost it, and calls that were sent again later
// would change the order. In a cluster, different queues may be on different nodes.
func exec(ctx context.Context, rdb redis.UniversalClient, items []*item) {
	type script struct{ sha, queue string }
	carried := map[script]bool{}
	p := rdb.Pipeline()
	for _, it := range items {
		c := it.call
		key := script{c.sha, it.result.Queue}
		if carried[key] {
			c.answer = p.EvalSha(ctx, c.sha, c.keys, c.args...)
		} else {
			c.answer = p.Eval(ctx, c.source, c.keys, c.args...)
		}
		carried[key] = true
	}
	_, _ = p.Exec(ctx) // each call has its own error
}
