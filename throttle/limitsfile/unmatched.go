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

// unmatched is what a publication leaves waiting in scopes that no rule matches.
type unmatched struct {
	tasks  int64
	scopes int
	first  string // the scope in which most of them wait
}

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
	left, err := s.leftUnmatched(ctx, next)
	if err != nil || left.tasks == 0 {
		return
	}
	s.log.WarnContext(ctx, "tasks wait in scopes that no rule of the new limits matches; add a rule, or delete the tasks",
		"version", v.Number, "tasks", left.tasks, "scopes", left.scopes, "scope", left.first)
}

// leftUnmatched counts those tasks.
func (s *Source) leftUnmatched(ctx context.Context, next *policy.Policy) (left unmatched, err error) {
	limiter, err := throttle.New(s.rdb, next, throttle.Config{Prefix: s.cfg.Prefix})
	if err != nil {
		return left, err
	}
	list := limiter.Waitlist()
	active, err := list.ActiveProviders(ctx, time.Time{})
	if err != nil {
		return left, err
	}
	most := int64(0)
	for provider := range active {
		queues, _, err := inspect.Of(list).Count(ctx, provider, func(scope string) bool { return !matches(next, scope) })
		if err != nil {
			return left, err
		}
		for _, q := range queues {
			left.tasks, left.scopes = left.tasks+q.Own, left.scopes+1
			if q.Own > most {
				most, left.first = q.Own, q.Scope
			}
		}
	}
	return left, nil
}

func matches(p *policy.Policy, name string) bool {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return true // it is damaged, which is another matter
	}
	_, err = p.Match(scope)
	return !errors.As(err, new(*policy.UnmatchedError))
}
