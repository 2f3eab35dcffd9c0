package throttle

import (
	"context"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/redis/go-redis/v9"
)

// Reset clears what has been spent under the rate rules that the policy has at one level, scope
// itself, or under the named one. These rules are then as if unused, and their waiters are dispatched
// at once. It also clears what an API has answered about them, and the scope's pause unless a rule is
// named. Runs keep their places under concurrency rules. It returns the names of the rules that it has
// reset. Costs two round trips. The error is a *policy.ScopeError or *policy.UnmatchedError, wraps
// ErrUnavailable, or is ctx's.
func (l *Limiter) Reset(ctx context.Context, scope, rule string) (names []string, err error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return nil, err
	}
	var words []signal // whoever waits for a rule is looked at now
	limited, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	_, err = l.rdb.TxPipelined(limited, func(pipe redis.Pipeliner) error {
		for _, b := range p.all {
			if b.Scope != p.scope || b.Rule.Algorithm == policy.Concurrency || b.Paused() || rule != "" && b.Rule.Name != rule {
				continue
			}
			names = append(names, b.Rule.Name)
			key := keyspace(l.cfg.Prefix).rule(b)
			pipe.Del(ctx, key)
			words = append(words, signal{verb: "look", name: key[len(p.provider):]})
		}
		return nil
	})
	if err == nil && len(words) > 0 {
		_, err = l.sendSignals(ctx, p, words)
	}
	if err == nil {
		err = l.forget(ctx, p, rule)
	}
	if err != nil {
		return nil, unavailable(ctx, "reset", scope, err)
	}
	return names, nil
}
