package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// contender is a way to work off a backlog under a limit.
type contender struct {
	name string
	// ready returns why it cannot run here, if it cannot: then, and after any other error, it prints as missing. Defaults to what
	// runs everywhere, where an error is a failure.
	ready func() error
	// change makes a rule what the contender has instead. Defaults to nothing.
	change func(policy.Rule) policy.Rule
	// outside has programs of its own run the tasks: their starts are what arrives at the API, and Redis appends what it is sent
	// to a file, as people's do. Defaults to handlers here.
	outside bool
	// enqueue puts the stage's tasks into its Redis.
	enqueue func(*stage) error
	// serve begins to work them off, and returns what ends it. By then all starts are noted.
	serve func(*stage) (stop func() error, err error)
	// lost returns how many of the ids that have not started are gone for good. Defaults to asking asynq.
	lost func(ids []string) int
	// spell bounds a run. Defaults to the scenario's own, which is enough.
	spell time.Duration
	// pad is what the contender's rules keep for late starts, in each per.
	pad time.Duration
}

// peerSpell bounds a run of a peer that would not be done in any reasonable time.
const peerSpell = 10 * time.Second

// each calls f with every task, for 16 tasks at once, and returns its errors.
func each(tasks []job, f func(job) error) error {
	next, errs := make(chan job), make([]error, 16)
	var wg sync.WaitGroup
	for caller := range errs {
		wg.Go(func() {
			for j := range next {
				if errs[caller] == nil {
					errs[caller] = f(j)
				}
			}
		})
	}
	for _, j := range tasks {
		next <- j
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// byAsynq enqueues with asynq's own client: the scope is in a header. A task without one has none.
func byAsynq(st *stage) error {
	client := asynq.NewClientFromRedisClient(st.rdb)
	return each(st.tasks, func(j job) error {
		var headers map[string]string
		if j.scope != "" {
			headers = map[string]string{queue.HeaderScope: j.scope}
		}
		_, err := client.Enqueue(asynq.NewTaskWithHeaders("work", nil, headers), asynq.TaskID(j.id))
		return err
	})
}

// byQueue enqueues with our client, which is given the policy.
func byQueue(st *stage) error {
	limiter, err := throttle.New(st.rdb, st.policy, throttle.Config{StartTolerance: pad})
	if err != nil {
		return err
	}
	client := queue.NewClient(st.rdb, queue.ClientConfig{Limiter: limiter})
	tasks := func(yield func(queue.Task) bool) {
		for _, j := range st.tasks {
			if !yield(queue.Task{Type: "work", Scope: j.scope, ID: j.id, Costs: st.costs}) {
				return
			}
		}
	}
	sum, err := client.EnqueueBatch(context.Background(), queue.Number(tasks), nil)
	if err == nil && sum.Enqueued != len(st.tasks) {
		err = fmt.Errorf("not all were enqueued: %+v", sum)
	}
	return err
}

// planned and unplanned are Headway, with tasks enqueued by its own client and by asynq's.
var (
	planned   = contender{name: "Headway, planned", enqueue: byQueue, serve: byHeadway, pad: pad}
	unplanned = contender{name: "Headway, unplanned", enqueue: byAsynq, serve: byHeadway, pad: pad}
)

// servers starts one server for each of the stage's workers, with a client of its own, and returns what shuts them down.
func servers(st *stage, serve func(redis.UniversalClient, asynq.Config) (stop func(), err error)) (stop func() error, err error) {
	var stops []func()
	stop = func() error {
		for _, end := range stops {
			end()
		}
		return nil
	}
	for range max(1, st.workers) {
		rdb := redis.NewClient(&redis.Options{Addr: st.addr(), PoolSize: 2 * st.concurrency()})
		stops = append(stops, func() { _ = rdb.Close() })
		end, err := serve(rdb, asynq.Config{Concurrency: st.concurrency(), LogLevel: asynq.FatalLevel})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = slices.Insert(stops, 0, end) // before any client is closed
	}
	return stop, nil
}

// jobOf returns the task that a handler was given.
func jobOf(ctx context.Context, task *asynq.Task) job {
	id, _ := asynq.GetTaskID(ctx)
	return job{id, task.Headers()[queue.HeaderScope]}
}

// pad is how late a start may be after its moment: Headway's default.
const pad = 5 * time.Millisecond

func byHeadway(st *stage) (stop func() error, err error) {
	return servers(st, func(rdb redis.UniversalClient, cfg asynq.Config) (func(), error) {
		return st.startServer(rdb, cfg, true, pickUps{stage: st}, st.handler())
	})
}

// byBareAsynq serves with asynq alone.
func byBareAsynq(st *stage) (stop func() error, err error) {
	return servers(st, func(rdb redis.UniversalClient, cfg asynq.Config) (func(), error) {
		return st.startServer(rdb, cfg, false, nil, st.handler())
	})
}

// startServer starts a server: asynq's own, or ours.
func (st *stage) startServer(rdb redis.UniversalClient, cfg asynq.Config, headway bool, seen worker.Observer, handler asynq.Handler) (stop func(), err error) {
	if !headway {
		srv := asynq.NewServerFromRedisClient(rdb, cfg)
		return srv.Shutdown, srv.Start(handler)
	}
	limiter, err := throttle.New(rdb, st.policy, throttle.Config{StartTolerance: pad})
	if err != nil {
		return nil, err
	}
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter, Observer: seen})
	if err != nil {
		return nil, err
	}
	srv := limits.NewServer(cfg)
	return srv.Shutdown, srv.Start(handler)
}

// handler runs the stage's tasks.
func (st *stage) handler() asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error { return st.run(ctx, jobOf(ctx, task)) })
}

// pickUps counts for a stage how often its tasks are taken from the queue.
type pickUps struct {
	worker.NoObserver
	*stage
}

func (p pickUps) PickedUp(string) { p.picked.Add(1) }
