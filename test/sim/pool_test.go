package sim

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/worker"
)

// keys is an API that is called with the keys of a pool's members.
type keys struct {
	mu      sync.Mutex
	answers map[string]int // the status for a member, 0 for 200
	calls   map[string][]time.Time
}

func (k *keys) call(member string) (status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls[member] = append(k.calls[member], time.Now())
	return max(k.answers[member], http.StatusOK)
}

func (k *keys) answer(member string, status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers[member] = status
}

// docs/pools.md: two processes use the joint quota of three keys, also while one is paused, dies, or is turned away. No key is called
// more often than its limit, no call is without one, and no task uses up an attempt.
func TestPoolInTrouble(t *testing.T) {
	long(t)
	const rules = `{pool: {members: [a, b, c], quarantine: 1m}, scopes: {'@*': {breaker: {of: 10, in: 12s, wait: 5s, retry: false}},
		'@a': {rules: [{name: own, algorithm: token-bucket, limit: 2, per: 1s}]},
		'@b': {paused: false, rules: [{name: own, algorithm: token-bucket, limit: 4, per: 1s}]},
		'@c': {rules: [{name: own, algorithm: token-bucket, limit: 8, per: 1s}]}}}`
	limits := map[string]int{"a": 2, "b": 4, "c": 8}
	run(t, rules, func(c *course) {
		const tasks = 5000
		k := &keys{answers: map[string]int{}, calls: map[string][]time.Time{}}
		for range 2 {
			c.process(worker.MiddlewareConfig{}, asynq.Config{Concurrency: 32}, func(ctx context.Context, _ *asynq.Task) error {
				status := k.call(worker.Member(ctx))
				if err := worker.ReportStatus(ctx, status, nil).Err(); err != nil {
					return err
				} else if status != http.StatusOK {
					return errors.New("bad gateway")
				}
				id, _ := asynq.GetTaskID(ctx)
				c.ended <- ran{id, time.Now()}
				return nil
			})
		}
		for _, tenant := range []string{"p/x", "p/y"} {
			c.plan(tasks/2, tenant)
		}
		type phase struct {
			what  string
			rate  int
			after time.Duration // from when on the rate is kept
			begin func()
			began time.Time
		}
		phases := []phase{
			{"all", 14, time.Second, func() {}, time.Time{}},
			{"b is paused", 10, 2 * time.Second, func() { c.change(strings.Replace(rules, "paused: false", "paused: true", 1)) }, time.Time{}},
			{"b is back", 14, 2 * time.Second, func() { c.change(rules) }, time.Time{}},
			{"c dies", 6, 15 * time.Second, func() { k.answer("c", http.StatusBadGateway) }, time.Time{}},
			{"c is back", 14, 50 * time.Second, func() { k.answer("c", 0) }, time.Time{}},
			{"a is turned away", 12, 2 * time.Second, func() { k.answer("a", http.StatusUnauthorized) }, time.Time{}},
			{"a is back", 14, 70 * time.Second, func() { k.answer("a", 0) }, time.Time{}},
		}
		for i := range phases {
			phases[i].began = time.Now()
			phases[i].begin()
			<-time.After(phases[i].after + 10*time.Second)
		}
		runs := c.finish(tasks)
		for _, p := range phases {
			from := p.began.Add(p.after)
			to := from.Add(10 * time.Second)
			if n := len(of(runs, "p/x", from, to)) + len(of(runs, "p/y", from, to)); n < p.rate*10*98/100 {
				c.Errorf("%s: %d runs in 10 s, of %d", p.what, n, p.rate*10)
			}
		}
		for member, at := range k.calls {
			for i, first := range at {
				n, _ := slices.BinarySearchFunc(at[i:], first.Add(time.Second), time.Time.Compare)
				if n > limits[member]+1 { // a bucket of one besides
					c.Fatalf("%d calls of %q in a second", n, member)
				}
			}
		}
		if info, err := c.looks.GetQueueInfo("default"); err != nil || info.FailedTotal > 0 || info.Archived > 0 {
			c.Errorf("%+v, %v", info, err)
		}
	})
}
