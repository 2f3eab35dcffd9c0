package sim

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/worker"
)

// quota is an API that admits so many calls in each second, and refuses all others until the next one begins.
type quota struct {
	limit int

	mu       sync.Mutex
	window   int64
	used     int
	accepted []time.Time
	refused  []time.Time
}

// call is one call, and what it answers.
func (q *quota) call(tell bool) (status int, header http.Header) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if now.Unix() != q.window {
		q.window, q.used = now.Unix(), 0
	}
	header = http.Header{}
	if tell {
		header.Set("RateLimit-Policy", fmt.Sprintf(`"s";q=%d;w=1`, q.limit))
	}
	if q.used++; q.used > q.limit {
		q.refused = append(q.refused, now)
		left := time.Unix(q.window+1, 0).Sub(now)
		header.Set("Retry-After-Ms", fmt.Sprint(left.Milliseconds()+1))
		return http.StatusTooManyRequests, header
	}
	q.accepted = append(q.accepted, now)
	return http.StatusOK, header
}

// both starts two workers whose tasks of scope p/a call an API.
func (c *course) both(q *quota, tell bool) {
	for range 2 {
		c.process(worker.MiddlewareConfig{}, asynq.Config{Concurrency: 32}, func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if id[:3] == "p/a" {
				status, header := q.call(tell)
				<-time.After(time.Millisecond)
				if err := worker.ReportStatus(ctx, status, header).Err(); err != nil {
					return err
				}
			}
			c.ended <- ran{id, time.Now()}
			return nil
		})
	}
}

const twice = "{rules: [{name: all, algorithm: token-bucket, limit: 1000, per: 1s, burst: 50}], " +
	"scopes: {'*': {rules: [{name: own, algorithm: token-bucket, limit: 100, per: 1s}]}}}"

// An API that admits 60 % of what is configured, and does not say so: each refusal stops all workers in one round trip, other
// tenants go on, and the API's quota is used without a storm of refusals.
func TestSmallerQuotaIsLearned(t *testing.T) {
	long(t)
	run(t, twice, func(c *course) {
		const n, others = 1500, 300
		q := &quota{limit: 60}
		c.both(q, false)
		c.plan(n, "p/a")
		c.plan(others, "p/b")
		runs := c.finish(n + others)
		last := 0
		for i, r := range runs {
			if r.id[:3] == "p/b" {
				last = i
			}
		}
		if wait := runs[last].at.Sub(runs[0].at); wait > 4*time.Second {
			c.Errorf("the other tenant's %d tasks took %v, at 100 a second", others, wait)
		}
		// The answer takes a millisecond, telling a round trip, and what was granted before that starts.
		for i, at := range q.refused {
			if i == 0 || at.Sub(q.refused[i-1]) > 100*time.Millisecond {
				if more := refusedBy(q.refused[i:], at.Add(300*time.Millisecond)); more > 32 {
					c.Errorf("%d calls were refused in a row at %v", more, at.Sub(runs[0].at))
				}
			}
		}
		c.Logf("%d accepted, %d refused, in %v: %.1f %% of the quota", len(q.accepted), len(q.refused), took(runs), 100*share(q))
		if got := share(q); got < 0.9 {
			c.Errorf("%.1f %% of the API's quota was used", 100*got)
		}
		if part := float64(len(q.refused)) / n; part > 0.08 {
			c.Errorf("%.1f %% of the calls were refused", 100*part)
		}
	})
}

// An API that says what it admits is asked for no more after the first answer.
func TestToldQuotaIsAdopted(t *testing.T) {
	long(t)
	run(t, twice, func(c *course) {
		const n = 1200
		q := &quota{limit: 60}
		c.both(q, true)
		c.plan(n, "p/a")
		runs := c.finish(n)
		c.Logf("%d accepted, %d refused, in %v: %.1f %% of the quota", len(q.accepted), len(q.refused), took(runs), 100*share(q))
		if got := share(q); got < 0.9 {
			c.Errorf("%.1f %% of the API's quota was used", 100*got)
		}
		if len(q.refused) > 3 {
			c.Errorf("%d calls were refused", len(q.refused))
		}
	})
}

// share is the part of its quota that an API was asked for, after the first five seconds.
func share(q *quota) float64 {
	from, last, n := q.accepted[0].Add(5*time.Second), q.accepted[len(q.accepted)-1], 0
	for _, at := range q.accepted {
		if !at.Before(from) {
			n++
		}
	}
	return float64(n) / float64(q.limit) / last.Sub(from).Seconds()
}

// refusedBy is how many of some refusals came before a moment.
func refusedBy(refused []time.Time, by time.Time) (n int) {
	for _, at := range refused {
		if at.Before(by) {
			n++
		}
	}
	return n
}
