// Command releases is asynq of some release, for TestReleases: it is built against the
// release in question.
//
//	releases fill ADDR       leaves a task in every state in the Redis at ADDR
//	releases drain ADDR N    runs N tasks, one after the other, and prints their ids
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[1]})
	defer func() { _ = rdb.Close() }()
	if args[0] == "fill" {
		return fill(rdb)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	return serve(rdb, n, func(id string) error {
		fmt.Println(id)
		return nil
	})
}

// fill leaves one task in each state, and a second scheduled one.
func fill(rdb redis.UniversalClient) error {
	client := asynq.NewClientFromRedisClient(rdb)
	add := func(id string, opts ...asynq.Option) error {
		_, err := client.Enqueue(asynq.NewTask("work", []byte(id)), append(opts, asynq.TaskID(id))...)
		return err
	}
	err := errors.Join(add("retry"), add("archived"), add("completed", asynq.Retention(time.Hour)))
	if err != nil {
		return err
	}
	err = serve(rdb, 3, func(id string) error {
		return map[string]error{"retry": errors.New("not yet"), "archived": asynq.SkipRetry}[id]
	})
	return errors.Join(err, add("scheduled", asynq.ProcessIn(time.Hour)), add("later", asynq.ProcessIn(time.Hour)), add("pending"))
}

// serve runs n tasks with asynq, one after the other.
func serve(rdb redis.UniversalClient, n int, handle func(id string) error) error {
	ran := make(chan struct{})
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		defer func() { ran <- struct{}{} }()
		return handle(string(task.Payload()))
	}))
	if err != nil {
		return err
	}
	for range n {
		<-ran
	}
	server.Shutdown()
	return nil
}
