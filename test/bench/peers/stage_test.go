package peers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/worker"
)

// server is asynq's, or ours.
type server interface {
	Start(asynq.Handler) error
	Shutdown()
	Stop()
}

// hosts are what a program of asynq's may run under: asynq alone, Headway with limits that are never
// reached, and with one that makes each task wait.
var hosts = []struct {
	name   string
	limits string
}{
	{"asynq alone", ""},
	{"never limited", `limits: {api: {rules: [{name: rule, algorithm: token-bucket, limit: 1000000, per: 1s, burst: 1000}]}}`},
	{"limited", `limits: {api: {rules: [{name: rule, algorithm: token-bucket, limit: 1, per: 1s}]}}`},
}

// stage is one run of a program of asynq's, in a bubble of fake time. What it shows is noted.
type stage struct {
	t         *testing.T
	rdb       *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	limits    *worker.Middleware
	limiter   *throttle.Limiter
	began     time.Time

	mu     sync.Mutex
	notes  []string
	starts []time.Duration   // since the bubble began
	tasks  map[string]string // queue by id
	failed int               // how often the ErrorHandler was called
}

func newStage(t *testing.T, limits string) *stage {
	t.Helper()
	_, rdb := redistest.Miniredis(t)
	st := &stage{t: t, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb), began: time.Now(), tasks: map[string]string{}}
	if limits == "" {
		return st
	}
	policy, err := limitsyaml.Parse("limits", []byte(limits))
	must(t, err)
	st.limiter, err = throttle.New(rdb, policy, throttle.Config{StartTolerance: -1})
	must(t, err)
	st.anew()
	return st
}

func (st *stage) note(format string, args ...any) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.notes = append(st.notes, fmt.Sprintf(format, args...))
}

// anew makes the limits that the next server has: those of a server that was shut down have ended.
func (st *stage) anew() {
	st.t.Helper()
	if st.limiter == nil {
		return
	}
	var err error
	st.limits, err = worker.NewMiddleware(worker.MiddlewareConfig{Redis: st.rdb, Limiter: st.limiter})
	must(st.t, err)
}

// server returns a server of the host's.
func (st *stage) server(cfg asynq.Config) server {
	cfg.LogLevel = asynq.FatalLevel
	cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval = time.Second, time.Second // asking less costs less
	if cfg.ErrorHandler == nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {
			st.mu.Lock()
			defer st.mu.Unlock()
			st.failed++
		})
	}
	if cfg.RetryDelayFunc == nil {
		cfg.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 3 * time.Second } // no retry is limited by the run before
	}
	if st.limits == nil {
		return asynq.NewServerFromRedisClient(st.rdb, cfg)
	}
	return st.limits.NewServer(cfg)
}

// serve runs a handler until the bubble ends.
func (st *stage) serve(cfg asynq.Config, handler asynq.Handler) server {
	st.t.Helper()
	srv := st.server(cfg)
	must(st.t, srv.Start(handler))
	st.t.Cleanup(srv.Shutdown)
	return srv
}

func task(payload string) *asynq.Task {
	return asynq.NewTaskWithHeaders("work", []byte(payload), map[string]string{queue.HeaderScope: "api", "mine": "kept"})
}

func (st *stage) add(id string, opts ...asynq.Option) error {
	return st.enqueue(id, task(id), opts...)
}

func (st *stage) enqueue(id string, task *asynq.Task, opts ...asynq.Option) error {
	info, err := st.client.Enqueue(task, append(opts, asynq.TaskID(id))...)
	if err == nil {
		st.tasks[id] = info.Queue
	}
	return err
}

// after lets time pass.
func (st *stage) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// seen is what a user of asynq finds when all is over: the notes, each task, and the counters.
func (st *stage) seen() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	lines := slices.Clone(st.notes)
	for _, id := range slices.Sorted(maps.Keys(st.tasks)) {
		info, err := st.inspector.GetTaskInfo(st.tasks[id], id)
		if err != nil {
			lines = append(lines, id+": gone")
			continue
		}
		line := fmt.Sprintf("%s: %s, retried %d of %d", id, info.State, info.Retried, info.MaxRetry)
		if info.LastErr != "" {
			line += fmt.Sprintf(", %q", strings.SplitN(info.LastErr, "\n", 2)[0])
		}
		if len(info.Result) > 0 {
			line += fmt.Sprintf(", result %q", info.Result)
		}
		lines = append(lines, line)
	}
	processed, failed := 0, 0
	queues, err := st.inspector.Queues()
	must(st.t, err)
	for _, q := range queues {
		info, err := st.inspector.GetQueueInfo(q)
		must(st.t, err)
		processed, failed = processed+info.ProcessedTotal, failed+info.FailedTotal
	}
	return append(lines, fmt.Sprintf("processed %d, failed %d, ErrorHandler %d", processed, failed, st.failed))
}

func (st *stage) must(err error) {
	st.t.Helper()
	must(st.t, err)
}
