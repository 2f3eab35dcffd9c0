package peers

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
)

// tooMany is the error of the usual way: a denial, with when to come back.
type tooMany struct{ after time.Duration }

func (tooMany) Error() string { return "rate limited" }

// theUsualWay asks redis_rate in the handler, under a limit with a burst of 20.
func theUsualWay(st *stage) {
	limiter := redis_rate.NewLimiter(st.rdb)
	st.serve(asynq.Config{
		Concurrency: 8,
		IsFailure:   func(err error) bool { return !errors.As(err, new(tooMany)) },
		RetryDelayFunc: func(_ int, err error, _ *asynq.Task) time.Duration {
			limited, _ := errors.AsType[tooMany](err)
			return limited.after
		},
	}, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		res, err := limiter.Allow(ctx, "api", redis_rate.Limit{Rate: 1, Burst: 20, Period: time.Hour})
		if err != nil {
			return err
		}
		if res.Allowed == 0 {
			return tooMany{res.RetryAfter}
		}
		return st.always(nil).ProcessTask(ctx, task)
	}))
}

// "asynq archived 80 of 100 limited tasks that were on their last attempt": the usual way, a limiter in Redis asked by the handler,
// loses what has no retry left. The same tasks under Headway are all carried out.
func TestTheUsualWayLosesLastAttempts(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		limits        string
		serve         func(*stage)
		ran, archived int
	}{
		"usual way": {"", theUsualWay, 20, 80},
		"headway": {`limits: {api: {rules: [{name: rule, algorithm: sliding-window, limit: 20, per: 1s}]}}`, func(st *stage) {
			st.serve(asynq.Config{Concurrency: 8}, st.always(nil))
		}, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				st := newStage(t, way.limits)
				for i := range 100 {
					st.must(st.add(strconv.Itoa(i), asynq.MaxRetry(0)))
				}
				way.serve(st)
				st.after(time.Minute)
				info, err := st.inspector.GetQueueInfo("default")
				st.must(err)
				if len(st.notes) != way.ran || info.Archived != way.archived || info.FailedTotal != way.archived {
					t.Errorf("%d ran, %d are archived and %d failed, want %d and %d; docs/asynq.md has them",
						len(st.notes), info.Archived, info.FailedTotal, way.ran, way.archived)
				}
			})
		})
	}
}
