// Replay: record what tasks want while they run, and see how long they would have waited under half of the limit.
//
//	go run ./examples/replay
package main

import (
	"bytes"
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

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
	"github.com/headway-go/headway/worker"
)

func main() {
	server := miniredis.NewMiniRedis() // in process, so that the example needs no Redis
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// run runs 21 tasks at 20 a second, and replays them at 10 a second. The worker program does the same with -record and limits replay.
func run(ctx context.Context, out io.Writer, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	var text bytes.Buffer // a file, in earnest: demand.OpenFile
	record, err := demand.NewRecorder(demand.Config{Out: &text})
	if err != nil {
		return err
	}
	limits, err := worker.New(rdb, worker.Config{
		Limits: rate(20), Record: record, NoMetrics: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	const tasks = 21
	ran := make(chan struct{}, tasks)
	server := limits.NewServer(asynq.Config{Concurrency: 8})
	err = server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran <- struct{}{}
		return nil
	}))
	if err != nil {
		return err
	}
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limits.Limiter()})
	for range tasks {
		if _, err := client.Enqueue(ctx, queue.Task{Type: "charge", Scope: "payments/acme"}); err != nil {
			return err
		}
	}
	for range tasks {
		<-ran
	}
	server.Shutdown() // the rest of the record is written

	recorded := replay.NewRecord()
	if err := recorded.Read(&text); err != nil {
		return err
	}
	report := replay.Run(recorded, rate(10))
	acme := report.Scopes[0]
	fmt.Fprintf(out, "%d tasks of %s waited %.0fs at most; at half of the limit it is %.0fs, for %s\n",
		acme.Tasks, acme.Scope, acme.Were.Most.Round(time.Second).Seconds(), acme.Waits.Most.Round(time.Second).Seconds(), acme.Rule)
	return nil
}

// rate is a limit of so many a second, evenly spaced.
func rate(limit int64) *policy.Policy {
	p, err := policy.Single("payments", policy.Rule{Name: "account", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second})
	if err != nil {
		panic(err)
	}
	return p
}
