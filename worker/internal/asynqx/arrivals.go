package asynqx

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// Arrivals is the Redis client by which a carrier enqueues its task: once, however often the call is
// sent, see lua/include/asynq/arrive.lua. go-redis sends it again after a lost reply, and asynq runs a
// carrier again whose process died. By then the task may have run and be gone, and asynq's own script
// would enqueue it once more.
type Arrivals struct{ redis.UniversalClient }

type arrivalKey struct{}

// WithCarrier returns a context for enqueuing the task of a carrier. Under any other context Arrivals
// sends asynq's scripts as they are.
func WithCarrier(ctx context.Context, queue, id string) context.Context {
	return context.WithValue(ctx, arrivalKey{}, taskKey(queue, CarrierID(id)))
}

// EvalSha makes asynq send the script of an arrival whole.
func (a Arrivals) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if ctx.Value(arrivalKey{}) != nil {
		return redis.NewCmdResult(nil, noScript{})
	}
	return a.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// Eval sends the script of an arrival, with its carrier.
func (a Arrivals) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	carrier, arrives := ctx.Value(arrivalKey{}).(string)
	if !arrives {
		return a.UniversalClient.Eval(ctx, script, keys, args...)
	}
	return redis.NewScript(lua.Arrive(script)).Run(ctx, a.UniversalClient, append(keys[:len(keys):len(keys)], carrier), args...)
}
