package schedule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// hook is what tests put between a process and Redis.
type hook struct {
	shift  time.Duration                  // of Redis's clock against this process's
	before func(cmds []redis.Cmder) error // may refuse a call
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, cmd) }
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.before != nil {
			if err := h.before(cmds); err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(err)
				}
				return err
			}
		}
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if clock, ok := cmd.(*redis.TimeCmd); ok && clock.Err() == nil {
				clock.SetVal(clock.Val().Add(h.shift))
			}
		}
		return err
	}
}

func names(cmds []redis.Cmder) []string {
	var all []string
	for _, cmd := range cmds {
		all = append(all, cmd.Name())
	}
	return all
}

// world is a Redis in memory and the processes on it. It stands in a bubble.
type world struct {
	t       *testing.T
	rdb     *redis.Client
	connect func(*hook) *redis.Client
	shift   time.Duration // of Redis's clock, for all processes
	log     *syncBuffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	m, rdb := redistest.Miniredis(t)
	return &world{t: t, rdb: rdb, log: &syncBuffer{}, connect: func(h *hook) *redis.Client {
		c := redis.NewClient(redistest.MiniredisOptions(m))
		t.Cleanup(func() { _ = c.Close() })
		c.AddHook(h)
		return c
	}}
}

// at sets Redis's clock.
func (w *world) at(text string) { w.shift = time.Until(moment(w.t, text)) }

// now returns what Redis's clock shows.
func (w *world) now() time.Time { return time.Now().Add(w.shift) }

// runner returns the Runner of a process with a file of its own.
func (w *world) runner(file string, h *hook, policy *policy.Policy) *Runner {
	w.t.Helper()
	h.shift = w.shift
	rdb := w.connect(h)
	r, err := New(Config{
		Redis: rdb, Client: queue.NewClient(rdb, queue.ClientConfig{Policy: policy}),
		Schedules: parseFile(w.t, file).Schedules, Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	must(w.t, err)
	return r
}

// start runs a process until the function that it returns is called.
func (w *world) start(r *Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// live runs a process for a while.
func (w *world) live(file string, d time.Duration) {
	w.t.Helper()
	stop := w.start(w.runner(file, &hook{}, nil))
	pass(d)
	stop()
}

// pass lets time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// tasks returns the ids of the tasks that wait, sorted.
func (w *world) tasks() []string {
	w.t.Helper()
	inspector := asynq.NewInspectorFromRedisClient(w.rdb)
	var ids []string
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		inspector.ListPendingTasks, inspector.ListScheduledTasks,
	} {
		infos, err := list("default", asynq.PageSize(10_000))
		if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
			w.t.Fatal(err)
		}
		for _, info := range infos {
			ids = append(ids, info.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// want checks which runs of a schedule have been enqueued, as times in UTC.
func (w *world) want(name string, runs ...string) {
	w.t.Helper()
	var ids []string
	for _, run := range runs {
		ids = append(ids, fmt.Sprintf("schedule:%s:%d", name, moment(w.t, run).Unix()))
	}
	slices.Sort(ids)
	if got := w.tasks(); !slices.Equal(got, ids) {
		w.t.Errorf("enqueued are %v, want %v, which are %v", got, ids, runs)
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04:05", text)
	must(t, err)
	return at
}

func parseFile(t *testing.T, text string) *File {
	t.Helper()
	corpus.Add(t, "schedules", text)
	f, err := Parse("schedules.yaml", []byte(text))
	must(t, err)
	return f
}

// file returns a file of one schedule named s.
func file(fields string) string {
	return "schedules: {s: {" + fields + ", task: {type: report, scope: p/a}}}"
}

const daily = `cron: "0 6 * * *"`
