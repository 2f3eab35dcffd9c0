// When patience ends: an SMS gateway takes one message at a time, and what waits for it for more than a second is dealt with by
// what it is. A notification that late is of no use to anybody and is dropped, a code to log in with goes out by e-mail instead,
// a newsletter moves to a slow lane, and an alarm fails, so that an operator sees it.
//
//	go run ./examples/patience
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

func main() {
	// An in-process Redis, so that the example needs none; use your own.
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// patience chooses by a task's type. Each of these is a strategy of its own, too:
// worker.MiddlewareConfig{OnMaxWait: worker.Fail()}.
func patience(dropped chan<- string) worker.MaxWaitPolicy {
	drop := worker.Drop(func(w worker.Expired) { dropped <- w.ID + ": dropped" })
	mail := worker.Fallback(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		dropped <- id + ": sent by e-mail"
		return nil
	}))
	return func(ctx context.Context, w worker.Expired) worker.Action {
		switch w.Task.Type() {
		case "notification":
			return drop(ctx, w)
		case "login code":
			return mail(ctx, w)
		case "newsletter":
			return worker.MoveTo("slow")(ctx, w)
		}
		return worker.Fail()(ctx, w)
	}
}

func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"sms": {Rules: []policy.Rule{{
			Name: "gateway", Algorithm: policy.Concurrency, Limit: 1, MaxWait: time.Second,
		}}},
	})
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		return err
	}
	ended := make(chan string)
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter, OnMaxWait: patience(ended)})
	if err != nil {
		return err
	}
	srv := limits.NewServer(asynq.Config{
		Concurrency: 8, LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: 200 * time.Millisecond,
		ErrorHandler: asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, _ error) {
			id, _ := asynq.GetTaskID(ctx)
			ended <- id + ": failed, and is archived"
		}),
	})

	// The gateway is busy with a long message, and the others wait for it.
	busy, free := make(chan struct{}), make(chan struct{})
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(busy)
		<-free
		return nil
	})
	client := queue.NewClient(rdb, queue.ClientConfig{})
	if _, err := client.Enqueue(ctx, queue.Task{Type: "long", Scope: "sms"}); err != nil {
		return err
	}
	if err := srv.Start(handler); err != nil {
		return err
	}
	defer srv.Shutdown()
	defer close(free)
	<-busy
	for _, kind := range []string{"notification", "login code", "newsletter", "alarm"} {
		if _, err := client.Enqueue(ctx, queue.Task{Type: kind, Scope: "sms", ID: kind}); err != nil {
			return err
		}
	}
	for range 3 {
		fmt.Fprintln(out, <-ended)
	}
	return slowLane(ctx, out, rdb)
}

// slowLane waits until the newsletter has come to the other queue, where workers with more time would run it.
func slowLane(ctx context.Context, out io.Writer, rdb *redis.Client) error {
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		info, err := inspector.GetTaskInfo("slow", "newsletter")
		if err == nil && info.State == asynq.TaskStatePending {
			fmt.Fprintln(out, "newsletter: in the slow lane")
			return nil
		}
	}
}
