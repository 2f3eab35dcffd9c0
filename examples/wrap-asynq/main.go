// Wrap an asynq app that exists already: its tasks, its client and its handlers
// stay as they are, and calls to a mail API keep to three a second.
//
//	go run ./examples/wrap-asynq
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

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
	if err := run(context.Background(), os.Stdout, server.Addr(), 9); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, addr string, mails int) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()

	// What the app has: a mux with handlers, and code that enqueues.
	done := make(chan string)
	mux := asynq.NewServeMux()
	mux.HandleFunc("mail:send", func(_ context.Context, task *asynq.Task) error {
		done <- string(task.Payload())
		return nil
	})
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range mails {
		task := asynq.NewTask("mail:send", fmt.Appendf(nil, "mail %d", i+1), asynq.MaxRetry(0))
		if _, err := client.EnqueueContext(ctx, task); err != nil {
			return err
		}
	}

	// What is new: the limits, and the server made by Headway. LimitsFile: "limits.yaml" would read them from a file.
	limits, err := worker.New(rdb, worker.Config{
		Limits:    policy.PerSecond("mail", 3),
		Spends:    func(*asynq.Task) (scope string, cost int64) { return "mail", 1 },
		Logger:    slog.New(slog.DiscardHandler),
		NoMetrics: true,
	})
	if err != nil {
		return err
	}
	srv := limits.NewServer(asynq.Config{Concurrency: 8})
	began := time.Now()
	if err := srv.Start(mux); err != nil {
		return err
	}
	defer srv.Shutdown()

	for range mails {
		mail := <-done // before the clock is read
		fmt.Fprintf(out, "second %d: %s\n", int(time.Since(began).Seconds()), mail)
	}
	return nil
}
