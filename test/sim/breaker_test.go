package sim

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/worker"
)

// dying is an API that is down, or fails every so many calls.
type dying struct {
	isDown atomic.Bool
	limps  atomic.Int64 // each so many calls one fails, 0 for none
	calls  atomic.Int64
}

func (a *dying) call() (status int) {
	n := a.calls.Add(1)
	<-time.After(20 * time.Millisecond)
	if every := a.limps.Load(); a.isDown.Load() || every > 0 && n%every == 0 {
		return http.StatusBadGateway
	}
	return http.StatusOK
}

// docs/breaker.md, "What it saves": an API is down for an hour, by two processes: at most 1 % of its calls are made meanwhile, no task
// is archived, and its quota is used within a minute after it is back. Then it limps, which opens nothing. Another tenant is untouched.
func TestAPIIsDownForAnHour(t *testing.T) {
	long(t)
	const rules = "{rules: [{name: all, algorithm: token-bucket, limit: 1000, per: 1s, burst: 50}], " +
		"scopes: {'*': {breaker: {wait: 5s}, rules: [{name: own, algorithm: sliding-window, limit: 20, per: 1s}]}}}"
	run(t, rules, func(c *course) {
		const n, others, rate = 3000, 1000, 20
		a := &dying{}
		for range 2 {
			c.process(worker.MiddlewareConfig{}, asynq.Config{Concurrency: 32}, func(ctx context.Context, _ *asynq.Task) error {
				id, _ := asynq.GetTaskID(ctx)
				if id[:3] == "p/a" {
					status := a.call()
					_ = worker.ReportStatus(ctx, status, nil)
					if status != http.StatusOK {
						return errors.New("bad gateway")
					}
				}
				c.ended <- ran{id, time.Now()}
				return nil
			})
		}
		c.plan(n, "p/a")
		c.plan(others, "p/b")
		<-time.After(10 * time.Second)
		a.isDown.Store(true)
		died := time.Now()
		a.calls.Store(0)
		<-time.After(time.Hour)
		meanwhile := a.calls.Load()
		a.isDown.Store(false)
		back := time.Now()
		<-time.After(time.Minute)
		a.limps.Store(4)
		runs := c.finish(n + others)
		if most := int64(time.Hour/time.Second) * rate / 100; meanwhile > most {
			c.Errorf("%d calls while it is down, want at most %d", meanwhile, most)
		}
		if got := len(of(runs, "p/a", back.Add(50*time.Second), back.Add(time.Minute))); got < 95*10*rate/100 {
			c.Errorf("%d calls from the 50th to the 60th second after it is back, of %d", got, 10*rate)
		}
		if got := len(of(runs, "p/b", runs[0].at, died.Add(45*time.Second))); got != others {
			c.Errorf("%d of %d tasks of another tenant have run", got, others)
		}
		c.Logf("%d calls in the hour", meanwhile)
	})
}

// docs/breaker.md, "What it saves": an API limps for three minutes. Each second call fails, or none is answered until a time-out: few
// calls are made, no task is archived, another tenant is not held up, and a minute after the end the quota is used.
func TestAPILimps(t *testing.T) {
	long(t)
	const rules = "{rules: [{name: all, algorithm: token-bucket, limit: 1000, per: 1s, burst: 50}], " +
		"scopes: {'*': {breaker: {wait: 5s}, rules: [{name: own, algorithm: sliding-window, limit: 20, per: 1s}]}}}"
	const n, others, rate, limps, timeout = 3000, 1500, 20, 3 * time.Minute, 10 * time.Second
	for name, row := range map[string]struct {
		call  func(a *dying) (fails bool)
		most  int64 // calls while it limps
		hangs bool
	}{
		"half of the calls fail": {func(a *dying) bool { return a.call() != http.StatusOK }, int64(limps/time.Second) * rate / 2, false},
		"no answer in time": {func(a *dying) bool {
			a.calls.Add(1)
			if !a.isDown.Load() {
				return false
			}
			<-time.After(timeout)
			return true
		}, int64(limps/time.Second) * rate / 15, true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, rules, func(c *course) {
				a := &dying{}
				for range 2 {
					c.process(worker.MiddlewareConfig{}, asynq.Config{Concurrency: 32}, func(ctx context.Context, _ *asynq.Task) error {
						id, _ := asynq.GetTaskID(ctx)
						if id[:3] == "p/a" && row.call(a) {
							_ = worker.ReportHint(ctx, upstream.Hint{Failed: true})
							return errors.New("no answer")
						}
						c.ended <- ran{id, time.Now()}
						return nil
					})
				}
				c.plan(n, "p/a")
				<-time.After(10 * time.Second)
				began := time.Now()
				a.limps.Store(2)
				a.isDown.Store(row.hangs)
				a.calls.Store(0)
				c.plan(others, "p/b")
				<-time.After(limps)
				meanwhile := a.calls.Load()
				a.limps.Store(0)
				a.isDown.Store(false)
				back := time.Now()
				runs := c.finish(n + others)
				if meanwhile > row.most {
					c.Errorf("%d calls while it limps, want at most %d", meanwhile, row.most)
				}
				last, expect := began, time.Duration(others/rate)*time.Second
				for _, r := range of(runs, "p/b", began, back.Add(time.Hour)) {
					last = r.at
				}
				if took := last.Sub(began); took > expect+5*time.Second {
					c.Errorf("another tenant's tasks have taken %s, want %s", took, expect)
				}
				if got := len(of(runs, "p/a", back.Add(50*time.Second), back.Add(time.Minute))); got < 95*10*rate/100 {
					c.Errorf("%d calls from the 50th to the 60th second after it is back, of %d", got, 10*rate)
				}
				c.Logf("%d calls; another tenant took %s, of %s", meanwhile, last.Sub(began), expect)
			})
		})
	}
}
