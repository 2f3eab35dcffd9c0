package limitsfile

import (
	"context"
	"errors"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// surveyBound is how long a publication may take to count the tasks that it leaves without a rule.
const surveyBound = 2 * time.Second

// warnUnmatched logs that tasks wait whose scopes no rule matches under a version that was just written. Otherwise the first warning comes
// when asynq brings such a task, which may be long after its start was due. Without an answer from Redis it logs nothing: the limits are in
// force either way.
func (s *Source) warnUnmatched(ctx context.Context, v policystore.Version) {
	ctx, cancel := context.WithTimeout(ctx, surveyBound)
	defer cancel()
	next, _, err := s.store.Policy(ctx, v, time.Now())
	if err != nil || next.Unmatched() == policy.UnmatchedAllow {
		return
	}
	tasks, scopes, first, err := s.unmatched(ctx, next)
	if err != nil || tasks == 0 {
		return
	}
	s.log.WarnContext(ctx, "tasks wait in scopes that no rule of the new limits matches; add a rule, or delete the tasks",
		"version", v.Number, "tasks", tasks, "scopes", scopes, "scope", first)
}

// unmatched counts those tasks and their scopes. first is the scope in which most of them wait.
func (s *Source) unmatched(ctx context.Context, next *policy.Policy) (tasks int64, scopes int, first string, err error) {
	limiter, err := throttle.New(s.rdb, next, throttle.Config{Prefix: s.cfg.Prefix, TierOf: s.store.TierOf})
	if err != nil {
		return 0, 0, "", err
	}
	list := limiter.Waitlist()
	active, err := list.ActiveProviders(ctx, time.Time{})
	if err != nil {
		return 0, 0, "", err
	}
	most := int64(0)
	for provider := range active {
		queues, _, err := inspect.Of(list).Count(ctx, provider, func(scope string) bool { return !matches(next, scope) })
		if err != nil {
			return 0, 0, "", err
		}
		for _, q := range queues {
			tasks, scopes = tasks+q.Own, scopes+1
			if q.Own > most {
				most, first = q.Own, q.Scope
			}
		}
	}
	return tasks, scopes, first, nil
}

func matches(p *policy.Policy, name string) bool {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return true // it is damaged, which is another matter
	}
	_, err = p.Match(scope)
	return !errors.As(err, new(*policy.UnmatchedError))
}
