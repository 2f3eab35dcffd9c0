package peers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
)

// behaviour is something that users of asynq rely on, and what they see of it.
type behaviour struct {
	name string
	do   func(*stage)
	want []string
	// ours is what is seen under Headway where that is something else, and limited under a limit that
	// makes tasks wait; differs are the sentences of docs/asynq.md that say so.
	ours, limited []string
	differs       []string
}

var errWork = errors.New("something went wrong")

// always is a handler that ends with an error, or nil, and notes each run and its start.
func (st *stage) always(err error) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		st.note("%s runs", id(ctx))
		st.mu.Lock()
		defer st.mu.Unlock()
		st.starts = append(st.starts, time.Since(st.began).Truncate(µs)) // as Redis's clock shows it
		return err
	})
}

// bareAndWrapped runs a task that ends with an error, and one that wraps it in another.
func (st *stage) bareAndWrapped(err error) {
	st.must(st.add("bare", asynq.MaxRetry(5)))
	st.must(st.add("wrapped", asynq.MaxRetry(5)))
	st.serve(asynq.Config{Concurrency: 1}, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if id(ctx) == "bare" {
			return err
		}
		return fmt.Errorf("%w: %w", errWork, err)
	}))
	st.after(time.Minute)
}

func id(ctx context.Context) string {
	id, _ := asynq.GetTaskID(ctx)
	return id
}

// quiet is a handler that succeeds and notes nothing.
var quiet = asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })

var behaviours = []behaviour{
	{name: "tasks succeed, in their order", do: func(st *stage) {
		for _, id := range []string{"a", "b", "c", "d"} {
			st.must(st.add(id))
		}
		st.serve(asynq.Config{Concurrency: 1}, st.always(nil))
		st.after(time.Minute)
	}, want: []string{"a runs", "b runs", "c runs", "d runs", "a: gone", "b: gone", "c: gone", "d: gone", "processed 4, failed 0, ErrorHandler 0"}},

	{name: "a payload arrives as it was, and so do headers and what the context tells", do: func(st *stage) {
		st.must(st.enqueue("a", task(`{"n": 111111111111111111, "z": 1.50}`), asynq.MaxRetry(7), asynq.Queue("high")))
		st.serve(asynq.Config{Queues: map[string]int{"high": 1}}, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			retried, _ := asynq.GetRetryCount(ctx)
			most, _ := asynq.GetMaxRetry(ctx)
			in, _ := asynq.GetQueueName(ctx)
			st.note("%s %s %s, %q: %d of %d in %s", id(ctx), task.Type(), task.Payload(), task.Headers()["mine"], retried, most, in)
			return nil
		}))
		st.after(10 * time.Second)
	}, want: []string{`a work {"n": 111111111111111111, "z": 1.50}, "kept": 0 of 7 in high`, "a: gone", "processed 1, failed 0, ErrorHandler 0"}},

	{name: "what fails is retried as often as it may be, and archived then", do: func(st *stage) {
		st.must(st.add("two", asynq.MaxRetry(2)))
		st.must(st.add("none", asynq.MaxRetry(0))) // which is limited on its last attempt
		st.serve(asynq.Config{Concurrency: 1}, st.always(errWork))
		st.after(2 * time.Minute)
	}, want: []string{
		"two runs", "none runs", "two runs", "two runs",
		`none: archived, retried 0 of 0, "something went wrong"`, `two: archived, retried 2 of 2, "something went wrong"`,
		"processed 4, failed 4, ErrorHandler 4",
	}},

	{name: "SkipRetry archives at once, bare and wrapped", do: func(st *stage) {
		st.bareAndWrapped(asynq.SkipRetry)
	}, want: []string{
		`bare: archived, retried 0 of 5, "skip retry for the task"`,
		`wrapped: archived, retried 0 of 5, "something went wrong: skip retry for the task"`, "processed 2, failed 2, ErrorHandler 2",
	}},

	{name: "RevokeTask drops a task, bare and wrapped", do: func(st *stage) {
		st.bareAndWrapped(asynq.RevokeTask)
	}, want: []string{"bare: gone", "wrapped: gone", "processed 2, failed 0, ErrorHandler 2"}},

	{name: "what IsFailure says is no failure burns no retry", do: func(st *stage) {
		st.must(st.add("a", asynq.MaxRetry(1)))
		runs := 0
		st.serve(asynq.Config{Concurrency: 1, IsFailure: func(err error) bool { return !errors.Is(err, errWork) }},
			asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				if runs++; runs < 4 {
					return errWork
				}
				return errors.New("a real one")
			}))
		st.after(2 * time.Minute)
		st.note("%d runs", runs)
	}, want: []string{"5 runs", `a: archived, retried 1 of 1, "a real one"`, "processed 2, failed 2, ErrorHandler 5"}},

	{name: "a panic is a failure with its text", do: func(st *stage) {
		st.must(st.add("a", asynq.MaxRetry(0)))
		st.serve(asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			defer func() { // asynq tells the line of the panic: that of this test
				if r := recover(); r != nil {
					st.note("panics: %v", r)
					panic(r)
				}
			}()
			panic("oh no")
		}))
		st.after(10 * time.Second)
		info, err := st.inspector.GetTaskInfo("default", "a")
		st.must(err)
		st.note("archived %v, with the text %v", info.State == asynq.TaskStateArchived, strings.Contains(info.LastErr, "oh no"))
		delete(st.tasks, "a")
	}, want: []string{"panics: oh no", "archived true, with the text true", "processed 1, failed 1, ErrorHandler 1"}},

	{name: "a result and a retained task stay for as long as they are to", do: func(st *stage) {
		st.must(st.add("kept", asynq.Retention(2*time.Minute)))
		st.must(st.add("not"))
		st.serve(asynq.Config{}, asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			_, err := task.ResultWriter().Write([]byte("done"))
			return err
		}))
		st.after(time.Minute)
		info, err := st.inspector.GetTaskInfo("default", "kept")
		st.must(err)
		st.note("kept: %s with %q and error %q", info.State, info.Result, info.LastErr)
		st.after(2 * time.Minute)
	}, want: []string{`kept: completed with "done" and error ""`, "kept: gone", "not: gone", "processed 2, failed 0, ErrorHandler 0"}},

	{name: "a time-out ends a run, and is a failure", do: func(st *stage) {
		st.must(st.add("a", asynq.Timeout(3*time.Second), asynq.MaxRetry(0)))
		st.serve(asynq.Config{}, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			began := time.Now()
			<-ctx.Done()
			st.note("over after %s: %v", time.Since(began).Round(time.Second), ctx.Err())
			return ctx.Err()
		}))
		st.after(time.Minute)
	}, want: []string{"over after 3s: context deadline exceeded", `a: archived, retried 0 of 0, "context deadline exceeded"`, "processed 1, failed 1, ErrorHandler 1"}},

	{name: "a unique task is alone until it has succeeded", do: func(st *stage) {
		unique := func(id string) error {
			return st.enqueue(id, asynq.NewTaskWithHeaders("unique", []byte("same"), map[string]string{queue.HeaderScope: "api"}), asynq.Unique(time.Hour))
		}
		st.must(unique("first"))
		st.note("duplicate %v", errors.Is(unique("second"), asynq.ErrDuplicateTask))
		st.serve(asynq.Config{}, quiet)
		st.after(10 * time.Second)
		st.note("again %v", unique("third"))
		st.after(10 * time.Second)
	}, want: []string{"duplicate true", "again <nil>", "first: gone", "third: gone", "processed 2, failed 0, ErrorHandler 0"}},

	{name: "strict priority takes the higher queue first", do: func(st *stage) {
		for i := range 3 {
			st.must(st.add(fmt.Sprint("low ", i), asynq.Queue("low")))
			st.must(st.add(fmt.Sprint("mid ", i), asynq.Queue("default")))
			st.must(st.add(fmt.Sprint("top ", i), asynq.Queue("high")))
		}
		st.serve(asynq.Config{Concurrency: 1, StrictPriority: true, Queues: map[string]int{"high": 3, "default": 2, "low": 1}}, st.always(nil))
		st.after(time.Minute)
		st.tasks = nil
	}, want: []string{
		"top 0 runs", "top 1 runs", "top 2 runs", "mid 0 runs", "mid 1 runs", "mid 2 runs", "low 0 runs", "low 1 runs", "low 2 runs",
		"processed 9, failed 0, ErrorHandler 0",
	}},

	{name: "a paused queue rests, and others go on", do: func(st *stage) {
		st.must(st.add("a"))
		st.must(st.add("b", asynq.Queue("high")))
		st.must(st.inspector.PauseQueue("default"))
		st.serve(asynq.Config{Queues: map[string]int{"default": 1, "high": 1}}, st.always(nil))
		st.after(30 * time.Second)
		st.note("unpaused")
		st.must(st.inspector.UnpauseQueue("default"))
		st.after(30 * time.Second)
	}, want: []string{"b runs", "unpaused", "a runs", "a: gone", "b: gone", "processed 2, failed 0, ErrorHandler 0"}},

	{name: "a run is cancelled, and retried", do: func(st *stage) {
		st.must(st.add("a", asynq.MaxRetry(1)))
		runs := 0
		st.serve(asynq.Config{}, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			if runs++; runs > 1 {
				return nil
			}
			<-ctx.Done()
			st.note("over: %v", ctx.Err())
			return ctx.Err()
		}))
		st.after(10 * time.Second)
		st.must(st.inspector.CancelProcessing("a"))
		st.after(30 * time.Second)
		st.note("%d runs", runs)
	}, want: []string{"over: context canceled", "2 runs", "a: gone", "processed 2, failed 1, ErrorHandler 1"}},

	{name: "scheduled tasks are run, archived and deleted by hand", do: func(st *stage) {
		for _, id := range []string{"archived", "deleted", "run"} {
			st.must(st.add(id, asynq.ProcessIn(24*time.Hour)))
		}
		st.serve(asynq.Config{}, st.always(nil))
		st.after(10 * time.Second)
		st.must(st.inspector.RunTask("default", "run"))
		st.must(st.inspector.ArchiveTask("default", "archived"))
		st.must(st.inspector.DeleteTask("default", "deleted"))
		st.after(10 * time.Second)
		st.note("archived, it is run too: %v", st.inspector.RunTask("default", "archived"))
		st.after(10 * time.Second)
	}, want: []string{"run runs", "archived, it is run too: <nil>", "archived runs", "archived: gone", "deleted: gone", "run: gone", "processed 2, failed 0, ErrorHandler 0"}},

	{name: "what a server that stops could not end is run by the next", do: func(st *stage) {
		st.must(st.add("a", asynq.MaxRetry(0)))
		first := st.server(asynq.Config{ShutdownTimeout: 2 * time.Second})
		hang := make(chan struct{})
		st.must(first.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			st.note("a begins")
			<-hang
			return nil
		})))
		st.after(10 * time.Second)
		first.Shutdown()
		close(hang)
		st.anew()
		st.serve(asynq.Config{}, st.always(nil))
		st.after(10 * time.Second)
	}, want: []string{"a begins", "a runs", "a: gone", "processed 1, failed 0, ErrorHandler 0"}},

	{name: "a server that has stopped, or runs, or has no handler, says so", do: func(st *stage) {
		srv := st.server(asynq.Config{})
		st.note("no handler: %v", srv.Start(nil) != nil)
		st.must(srv.Start(quiet))
		st.note("twice: %v", srv.Start(quiet) != nil)
		srv.Shutdown()
		st.note("closed: %v", errors.Is(srv.Start(quiet), asynq.ErrServerClosed))
	}, want: []string{"no handler: true", "twice: true", "closed: true", "processed 0, failed 0, ErrorHandler 0"}},

	{name: "the base context is every run's own", do: func(st *stage) {
		type key struct{}
		st.must(st.add("a"))
		st.serve(asynq.Config{BaseContext: func() context.Context { return context.WithValue(context.Background(), key{}, "base") }},
			asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				st.note("%v", ctx.Value(key{}))
				return nil
			}))
		st.after(10 * time.Second)
	}, want: []string{"base", "a: gone", "processed 1, failed 0, ErrorHandler 0"}},

	{name: "a mux finds handlers, runs its middleware, and says what it does not know", do: func(st *stage) {
		mux := asynq.NewServeMux()
		mux.Use(func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				st.note("before %s", task.Type())
				return next.ProcessTask(ctx, task)
			})
		})
		mux.Handle("work", st.always(nil))
		st.must(st.add("a"))
		st.serve(asynq.Config{Concurrency: 1}, mux)
		st.after(10 * time.Second)
		other := asynq.NewTaskWithHeaders("unknown", nil, map[string]string{queue.HeaderScope: "api"})
		st.must(st.enqueue("b", other, asynq.MaxRetry(0)))
		st.after(10 * time.Second)
	}, want: []string{
		"before work", "a runs", "before unknown", "a: gone",
		`b: archived, retried 0 of 0, "handler not found for task \"unknown\""`, "processed 2, failed 1, ErrorHandler 1",
	}, ours: []string{
		"before work", "a runs", "a: gone",
		`b: archived, retried 0 of 0, "headway: no handler is registered for tasks of type \"unknown\""`, "processed 2, failed 1, ErrorHandler 1",
	}, differs: []string{"no middleware of the mux runs for it, and its last error is `headway: no handler is registered for tasks of type \"T\"`"}},
}

// What a user of asynq relies on is the same under Headway: each of asynq's behaviours runs with asynq
// alone, under limits that are never reached, and under one that makes tasks wait, and the same is seen
// of it: runs and their order, states, retries, errors, results, counters, calls of the ErrorHandler.
func TestAsynq(t *testing.T) {
	t.Parallel()
	for _, b := range behaviours {
		if (b.ours != nil || b.limited != nil) != (len(b.differs) > 0) {
			t.Errorf("%s: a difference and its reason belong together", b.name)
		}
		for _, sentence := range b.differs {
			says(t, "../../../docs/asynq.md", sentence)
		}
		for _, host := range hosts {
			t.Run(b.name+"/"+host.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					st := newStage(t, host.limits)
					b.do(st)
					want := b.want
					if host.limits != "" && b.ours != nil {
						want = b.ours
					}
					if host.name == "limited" && b.limited != nil {
						want = b.limited
					}
					if got := st.seen(); !slices.Equal(got, want) {
						t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
					}
				})
			})
		}
	}
}

// "A `worker.Middleware` ends with the last of its servers": what another one of it picks up runs, and none
// can be started after that.
func TestLimitsEndWithTheirServers(t *testing.T) {
	t.Parallel()
	says(t, "../../../docs/asynq.md", "A `worker.Middleware` ends with the last of its servers: the others go on when one is shut down")
	synctest.Test(t, func(t *testing.T) {
		st := newStage(t, hosts[1].limits)
		first, second := st.server(asynq.Config{}), st.server(asynq.Config{})
		st.must(first.Start(quiet))
		st.must(second.Start(st.always(nil)))
		first.Shutdown()
		st.must(st.add("a"))
		st.after(10 * time.Second)
		if want := []string{"a runs"}; !slices.Equal(st.notes, want) {
			t.Errorf("got %q of the second, want %q", st.notes, want)
		}
		second.Shutdown()
		if err := st.server(asynq.Config{}).Start(quiet); !errors.Is(err, asynq.ErrServerClosed) || !strings.Contains(err.Error(), "make another with New") {
			t.Errorf("a third starts under limits that have ended: %v", err)
		}
	})
}
