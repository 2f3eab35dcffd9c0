package asynqx

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// QueueStates knows which queues stand still, so that their tasks would not be taken: those that asynq has paused, and those that no
// live server serves. It asks Redis only in Ask, and takes all others for served. It is safe for concurrent use.
type QueueStates struct {
	rdb     redis.UniversalClient
	servers func() ([]*asynq.ServerInfo, error)
	failed  func(kind string) // called for each failed query, with "queue_state"

	mu      sync.Mutex
	own     []string // those served by servers of this process
	known   map[string]queueState
	served  map[string]bool // by any server, when last queried
	asked   time.Time
	changes int
}

type queueState struct {
	stands bool
	asked  time.Time
}

// servedStays is how long it stays known which queues live servers serve.
const servedStays = time.Second

// NewQueueStates returns the states of queues, none of which is known yet. failed is called after each failed query.
func NewQueueStates(rdb redis.UniversalClient, inspector *asynq.Inspector, failed func(kind string)) *QueueStates {
	return &QueueStates{
		rdb: rdb, servers: inspector.Servers, failed: failed,
		known: map[string]queueState{}, served: map[string]bool{},
	}
}

// Serve records the queues of a server of this process, with their weights.
func (q *QueueStates) Serve(queues map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, weight := range queues {
		if weight > 0 && !slices.Contains(q.own, name) {
			q.own = append(q.own, name)
		}
	}
}

// Own returns the queues that servers of this process serve.
func (q *QueueStates) Own() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.own)
}

// Stands reports whether a queue stands still, as far as is known.
func (q *QueueStates) Stands(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.known[name].stands
}

// Changes returns how often a queue began or ceased to stand still.
func (q *QueueStates) Changes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changes
}

// Came records that a task was taken from its queue, which means that the queue does not stand still.
func (q *QueueStates) Came(name string) {
	if q.Stands(name) {
		q.Note(name, false)
	}
}

// Note records whether a queue stands still.
func (q *QueueStates) Note(name string, stands bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known[name].stands != stands {
		q.changes++
	}
	q.known[name] = queueState{stands, time.Now()}
}

// Ask queries whether queues stand still, of those that were not queried for a while. It costs one round trip, and if servers of
// other processes serve some, two and one more command for each live server. If it fails, the states stay as they were.
func (q *QueueStates) Ask(ctx context.Context, age time.Duration, names ...string) {
	names, others := q.due(age, names)
	if len(names) == 0 {
		return
	}
	served, err := q.servedBy(others)
	if err == nil {
		err = q.askPaused(ctx, names, served)
	}
	if err != nil && ctx.Err() == nil {
		q.failed("queue_state")
	}
}

// due returns the queues that are to be queried, and whether any is not this process's own. Concurrent
// calls do not query them meanwhile.
func (q *QueueStates) due(age time.Duration, names []string) (due []string, others bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range names {
		state := q.known[name]
		if time.Since(state.asked) < age {
			continue
		}
		state.asked = time.Now()
		q.known[name] = state
		due, others = append(due, name), others || !slices.Contains(q.own, name)
	}
	return due, others
}

// servedBy returns the queues that live servers serve, if queues of other processes are queried.
func (q *QueueStates) servedBy(others bool) (served map[string]bool, err error) {
	q.mu.Lock()
	served, asked := q.served, q.asked
	q.mu.Unlock()
	if !others || time.Since(asked) < servedStays {
		return served, nil
	}
	list, err := q.servers()
	if err != nil {
		return nil, err
	}
	served = map[string]bool{}
	for _, s := range list {
		for name := range s.Queues {
			served[name] = served[name] || s.Status == "active"
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.served, q.asked = served, time.Now()
	return served, nil
}

func (q *QueueStates) askPaused(ctx context.Context, names []string, served map[string]bool) error {
	pipe := q.rdb.Pipeline()
	var paused []*redis.IntCmd
	for _, name := range names {
		paused = append(paused, pipe.Exists(ctx, QueuePrefix(name)+"paused"))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	own := q.Own()
	for i, name := range names {
		q.Note(name, paused[i].Val() > 0 || !served[name] && !slices.Contains(own, name))
	}
	return nil
}
