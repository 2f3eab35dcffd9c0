package sim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker"
)

// ends notes when the patience of tasks ends.
type ends struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (e *ends) note(w worker.Expired) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at[w.ID] = time.Now()
}

// impatient starts a worker process that drops what has waited too long.
func (c *course) impatient(e *ends) {
	c.process(worker.MiddlewareConfig{OnMaxWait: worker.Drop(e.note)}, asynq.Config{}, func(context.Context, *asynq.Task) error {
		c.Error("a suspended task ran")
		return nil
	})
}

// "asynq brings a waiting task back when its patience ends, even if its turn is far, so that it is judged within two seconds":
// under a rule that no clock frees, where a task comes about once a minute otherwise. "Restarts change nothing": half-way the
// worker stops, and another is started in its place. "max_wait goes on in a pause", and ends no earlier for one that is known to
// last longer: a bubble begins an hour before the end of the last.
func TestPatienceIsNoticed(t *testing.T) {
	const closed, open = "rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h, max_wait: 45s}]", "rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, max_wait: 45s}]"
	for name, rules := range map[string]string{
		"one worker": closed, "restarted": closed, "paused for good": "paused: true, " + open, "paused for an hour": "paused: true, paused_until: 2000-01-01T01:00:00Z, " + open,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, "{"+rules+"}", func(c *course) {
				e := &ends{at: map[string]time.Time{}}
				c.impatient(e)
				wants := map[string]time.Duration{}
				add := func(id string, task queue.Task, after time.Duration) {
					task.ID, task.Type, task.Scope = id, "work", "p/a"
					_, err := c.client.Enqueue(c.Context(), task)
					must(c, err)
					wants[id] = after
				}
				began := time.Now()
				for i := range 10 {
					add(fmt.Sprint("own ", i), queue.Task{MaxWait: 20500 * time.Millisecond}, 20500*time.Millisecond)
					add(fmt.Sprint("rule ", i), queue.Task{MaxWait: time.Hour}, 45*time.Second)
					add(fmt.Sprint("delayed ", i), queue.Task{MaxWait: 20 * time.Second, Delay: 10 * time.Second}, 30*time.Second)
					for retries := range 2 {
						id := fmt.Sprintf("foreign %d %d", retries, i)
						task := asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: "p/a"})
						_, err := c.plain.Enqueue(task, asynq.TaskID(id), asynq.MaxRetry(retries))
						must(c, err)
						wants[id] = 45 * time.Second
					}
				}
				<-time.After(15 * time.Second)
				if name == "restarted" {
					c.workers[0].server.Shutdown()
					c.impatient(e)
				}
				<-time.After(45 * time.Second)
				for id, want := range wants {
					at, ended := e.at[id]
					if took := at.Sub(began); !ended || took < want || took > want+2*time.Second {
						c.Errorf("%s: ended %v after %v, want %v", id, ended, took, want)
					}
				}
				c.pickedUp(len(wants), 2.2)
			})
		})
	}
}
