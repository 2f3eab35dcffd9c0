package schedule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// world is a Redis in memory and the processes on it. It stands in a bubble.
type world struct {
	t      *testing.T
	memory *miniredis.Miniredis
	rdb    *redis.Client
	shift  time.Duration // of Redis's clock against that of the processes
	log    bytes.Buffer
	logger *slog.Logger // of all processes, to log
}

// inBubble runs a test beside others, in a world whose Redis's clock begins at a moment.
func inBubble(t *testing.T, at string, test func(*testing.T, *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, rdb := redistest.Miniredis(t)
		w := &world{t: t, memory: m, rdb: rdb, shift: time.Until(moment(t, at))}
		w.logger = slog.New(slog.NewTextHandler(&w.log, nil))
		test(t, w)
	})
}

// now returns what Redis's clock shows.
func (w *world) now() time.Time { return time.Now().Add(w.shift) }

// runner returns the Runner of a process with a file of its own. Commands that refuse has an error for do not reach Redis.
func (w *world) runner(file string, refuse func(redis.Cmder) error, policy *policy.Policy) *Runner {
	w.t.Helper()
	rdb := redis.NewClient(redistest.MiniredisOptions(w.memory))
	w.t.Cleanup(func() { _ = rdb.Close() })
	shift := w.shift
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if refuse != nil {
			if err := refuse(cmd); err != nil {
				return err
			}
		}
		err := send()
		if clock, ok := cmd.(*redis.TimeCmd); ok && err == nil {
			clock.SetVal(clock.Val().Add(shift))
		}
		return err
	}))
	r, err := New(Config{
		Redis: rdb, Client: queue.NewClient(rdb, queue.ClientConfig{Policy: policy}),
		Schedules: parseFile(w.t, file).Schedules, Logger: w.logger,
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
	stop := w.start(w.runner(file, nil, nil))
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

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.DateTime, text)
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
