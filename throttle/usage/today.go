package usage

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Runs are the runs of a scope and of those below it.
type Runs struct {
	Started int64
	Ends
}

// Today returns the runs since the day began, by UTC, of each of some scopes, in their order. It uses only
// the Prefix of cfg. Costs one round trip with a command for each scope. The error is a *policy.ScopeError,
// or wraps Redis's.
func Today(ctx context.Context, rdb redis.UniversalClient, cfg Config, scopes []string, now time.Time) ([]Runs, error) {
	prefix, err := cfg.prefix()
	if err != nil {
		return nil, err
	}
	replies := make([]*redis.SliceCmd, len(scopes))
	pipe := rdb.Pipeline()
	for i, name := range scopes {
		scope, err := policy.ParseScope(name)
		if err != nil {
			return nil, err
		}
		key := days.usedKey(wire.ScopeKey(prefix, scope.String()), days.start(now))
		replies[i] = pipe.HMGet(ctx, key, fieldTasks, fieldFailed, fieldRefused)
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("usage: read today's runs: %w", err)
	}
	all := make([]Runs, len(scopes))
	for i, reply := range replies {
		for at, to := range []*int64{&all[i].Started, &all[i].Failed, &all[i].Refused} {
			text, _ := reply.Val()[at].(string) // nil for none
			*to, _ = strconv.ParseInt(text, 10, 64)
		}
	}
	return all, nil
}
