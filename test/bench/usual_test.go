package bench

import (
	"context"
	"errors"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// usual1 and usualLimit are the usual way to limit tasks of asynq, as its wiki shows it: redis_rate is asked in the handler, and an
// error tells asynq when to come back.
var (
	usual1     = usual("asynq + redis_rate, burst 1", func(policy.Rule) int64 { return 1 })
	usualLimit = usual("asynq + redis_rate, burst = limit", func(r policy.Rule) int64 { return r.Limit })
)

// usual asks redis_rate under a token bucket of that burst for every rule.
func usual(name string, burst func(policy.Rule) int64) contender {
	return contender{
		name: name, enqueue: byAsynq, serve: byTheWiki, spell: peerSpell,
		change: func(r policy.Rule) policy.Rule {
			as := bucket(r.Name, r.Limit, r.Per, burst(r))
			as.Unit = r.Unit
			return as
		},
	}
}

// comeBack is the error of the usual way.
type comeBack struct{ in time.Duration }

func (comeBack) Error() string { return "over the limit" }

// byTheWiki has asynq look for due tasks every second.
func byTheWiki(st *stage) (stop func() error, err error) {
	return byTheWikiAs(st, func(scope string) string { return scope })
}

// byTheWikiAs has tasks spend from another scope, chosen anew each time.
func byTheWikiAs(st *stage, choose func(scope string) string) (stop func() error, err error) {
	return servers(st, func(rdb redis.UniversalClient, cfg asynq.Config) (func(), error) {
		cfg.DelayedTaskCheckInterval = time.Second
		cfg.IsFailure = func(err error) bool { return !errors.As(err, new(comeBack)) }
		cfg.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
			if limited := (comeBack{}); errors.As(err, &limited) {
				return limited.in
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		}
		limiter := redis_rate.NewLimiter(rdb)
		srv := asynq.NewServerFromRedisClient(rdb, cfg)
		return srv.Shutdown, srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			st.picked.Add(1)
			j := jobOf(ctx, task)
			j.scope = choose(j.scope)
			if err := st.ask(ctx, limiter, j.scope); err != nil {
				return err
			}
			return st.run(ctx, j)
		}))
	})
}

// ask asks for every rule that a scope meets, one after the other.
func (st *stage) ask(ctx context.Context, limiter *redis_rate.Limiter, scope string) error {
	rules, err := st.match(scope)
	if err != nil {
		return err
	}
	for _, r := range rules {
		limit := redis_rate.Limit{Rate: int(r.Rule.Limit), Burst: int(r.Rule.Burst), Period: r.Rule.Per}
		res, err := limiter.AllowN(ctx, r.Scope.String()+":"+r.Rule.Name, limit, int(st.costs.Of(r.Rule.Unit)))
		if err != nil {
			return err
		}
		if res.Allowed == 0 {
			return comeBack{res.RetryAfter}
		}
	}
	return nil
}

func (st *stage) match(scope string) ([]policy.MatchedRule, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return nil, err
	}
	return st.policy.Match(s)
}
