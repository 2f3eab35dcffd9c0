package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
	"github.com/headway-go/headway/worker"
)

// recorded are rules whose limits are scaled: a bucket, a window, places and a quota, with traffic that binds each at times.
func recorded(scale int) string {
	return fmt.Sprintf(`
limits:
  p:
    rules: [{name: account, algorithm: sliding-window, limit: %d, per: 10s}]
    scopes:
      "*":
        rules: [{name: tenant, algorithm: token-bucket, limit: %d, per: 10s, burst: 5}]
      t1: {rules: [{name: places, algorithm: concurrency, limit: %d}]}
      t2: {rules: [{name: quota, algorithm: fixed-window, limit: %d, per: 1m}]}
  q:
    rules:
      - {name: tokens, algorithm: token-bucket, limit: %d, per: 10s, burst: 400, unit: tokens}
      - {name: month, algorithm: calendar, limit: %d, resets: "* * * * *", spread: true}
`, 20*scale, 10*scale, scale, 40*scale, 1000*scale, 60*scale)
}

// recordRun has two workers run some minutes of traffic under limits, and returns their record, and how many tasks have run.
func recordRun(t *testing.T, limits string, plain bool) (*replay.Record, int) {
	t.Helper()
	var text bytes.Buffer
	tasks := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, limits)
		w.lag = 200 * time.Microsecond
		ctx, end := context.WithCancel(t.Context())
		var recording sync.WaitGroup
		var mu sync.Mutex
		ended := make(chan struct{}, 100_000)
		out := writer(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return text.Write(b)
		})
		for range 2 {
			record, err := demand.NewRecorder(demand.Config{Out: out})
			must(t, err)
			recording.Go(func() { record.Run(ctx, func() demand.Process { return demand.Process{Slots: 32} }) })
			p := &process{w: w}
			p.rdb = w.connect(p)
			p.serve(worker.MiddlewareConfig{Record: record}, asynq.Config{Concurrency: 32}, func(ctx context.Context, task *asynq.Task) error {
				defer func() { ended <- struct{}{} }()
				spec, _, _ := queue.ReadSpec(task)
				<-time.After(time.Duration(100+len(task.Payload())) * time.Millisecond)
				if spec.Costs.Of("tokens") > 0 {
					_, err := worker.Settle(ctx, policy.Costs{"tokens": spec.Costs.Of("tokens") / 2})
					return err
				}
				return nil
			})
			w.workers = append(w.workers, p)
		}
		tasks = traffic(w, plain)
		for range tasks {
			<-ended
		}
		w.stop()
		end()
		recording.Wait()
		<-time.After(time.Second)
	})
	r := replay.NewRecord()
	must(t, r.Read(&text))
	return r, tasks
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// traffic enqueues two minutes of tasks, the same each time.
func traffic(w *world, plain bool) (tasks int) {
	w.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	for range 120 {
		<-time.After(time.Second)
		for range random.IntN(9) {
			tasks++
			task := queue.Task{Type: "work", Scope: fmt.Sprintf("p/t%d", random.IntN(4)), ID: fmt.Sprint(tasks), Payload: bytes.Repeat([]byte("1"), 1+random.IntN(900))}
			if random.IntN(4) == 0 {
				task.Scope, task.Costs = "q/a", policy.Costs{"requests": 1, "tokens": int64(50 + random.IntN(300))}
			}
			if !plain {
				_, err := w.client.Enqueue(w.Context(), task)
				must(w, err)
				continue
			}
			headers := map[string]string{queue.HeaderScope: task.Scope, queue.HeaderCost: "1"}
			if task.Costs != nil {
				headers[queue.HeaderCost] = task.Costs.String()
			}
			_, err := w.plain.Enqueue(asynq.NewTaskWithHeaders("work", task.Payload, headers), asynq.TaskID(task.ID), asynq.Timeout(time.Hour))
			must(w, err)
		}
	}
	return tasks
}

// near fails the test unless each percentile of the waits of each scope is that of the other, but for a fifth and half a second.
func near(t *testing.T, what string, got, want map[string]replay.Waits) {
	t.Helper()
	for scope := range want {
		g, w := got[scope], want[scope]
		for i, pair := range [][2]time.Duration{{g.P50, w.P50}, {g.P99, w.P99}, {g.Most, w.Most}} {
			if d := (pair[0] - pair[1]).Abs(); d > 500*time.Millisecond+pair[1]/5 {
				t.Errorf("%s: %s, percentile %d: %s, want %s", what, scope, []int{50, 99, 100}[i], pair[0], pair[1])
			}
		}
		t.Logf("%s: %s: %v, want %v", what, scope, g, w)
	}
}

func waitsOf(t *testing.T, r *replay.Record, draft string) (waits, were map[string]replay.Waits) {
	t.Helper()
	limits, err := limitsyaml.Parse("draft.yaml", []byte(draft))
	must(t, err)
	waits, were = map[string]replay.Waits{}, map[string]replay.Waits{}
	report := replay.Run(r, limits)
	for _, s := range report.Scopes {
		waits[s.Scope], were[s.Scope] = s.Waits, s.Were
		if s.Refused+s.Stuck > 0 {
			t.Errorf("%+v", s)
		}
	}
	if len(report.Unknown) > 0 {
		t.Log(report.Unknown)
	}
	return waits, were
}

// "The waits of a real run under the same limits are those of its replay, and a replay under half of the limit gives those that a real
// run with half has."
func TestReplayIsWhatWas(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"planned": false, "by asynq's client": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if plain {
				long(t)
			}
			full, tasks := recordRun(t, recorded(2), plain)
			if n := replay.Run(full, policy.PerSecond("p", 1)).Tasks; n != tasks {
				t.Errorf("%d of %d tasks were recorded", n, tasks)
			}
			waits, were := waitsOf(t, full, recorded(2))
			near(t, "the same limits", waits, were)
			half, _ := recordRun(t, recorded(1), plain)
			_, were = waitsOf(t, half, recorded(1))
			waits, _ = waitsOf(t, full, recorded(1))
			near(t, "half of the limits", waits, were)
		})
	}
}
