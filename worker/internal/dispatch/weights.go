package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
)

// weights are the weights of the queues of all workers. Waiting tasks are ranked by them as in asynq.
// It is safe for concurrent use.
type weights struct {
	mu  sync.Mutex
	own []queue.Weights // of each server here
	all queue.Weights
}

// sayWeights is how often this process publishes the weights of its servers and reads those of others.
const sayWeights = 20 * time.Second

// serves adds the weights of one more server.
func (w *weights) serves(own queue.Weights) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own = append(w.own, own)
	w.all = queue.Together(w.own...)
}

// publish publishes the weights of this process and reads those of others.
func (w *weights) publish(ctx context.Context, rdb redis.UniversalClient) error {
	w.mu.Lock()
	own := w.own
	w.mu.Unlock()
	all, err := queue.PublishWeights(ctx, rdb, own...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(own) == len(w.own) {
		w.all = all
	}
	return nil
}

// rank returns the priority, the lane and the stride of a task of a queue. own is the task's own
// priority.
func (w *weights) rank(name string, own int) (priority int, lane string, stride int) {
	w.mu.Lock()
	all := w.all
	w.mu.Unlock()
	return all.Rank(name, own)
}
