package worker_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// An asynq app keeps to three mails a second. Its tasks and handlers stay as they are.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	limits, err := worker.New(rdb, worker.Config{
		Limits:    policy.PerSecond("mail", 3), // or LimitsFile: "limits.yaml"
		Spends:    func(*asynq.Task) (scope string, cost int64) { return "mail/acme", 1 },
		Logger:    slog.New(slog.DiscardHandler),
		NoMetrics: true, // another example in this process has them
		Throttle:  throttle.Config{Prefix: "example-new"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := asynq.NewClientFromRedisClient(rdb)
	for _, to := range []string{"anna", "ben"} {
		if _, err := client.Enqueue(asynq.NewTask("mail", []byte(to)), asynq.Queue("example-new")); err != nil {
			log.Fatal(err)
		}
	}

	sent := make(chan string, 2)
	mux := asynq.NewServeMux()
	mux.HandleFunc("mail", func(_ context.Context, task *asynq.Task) error {
		sent <- string(task.Payload())
		return nil
	})
	server := limits.NewServer(asynq.Config{Concurrency: 1, Queues: map[string]int{"example-new": 1}})
	if err := server.Start(mux); err != nil { // Run(mux) also waits for SIGTERM
		log.Fatal(err)
	}
	defer server.Shutdown()
	fmt.Println(<-sent)
	fmt.Println(<-sent)
	// Output:
	// anna
	// ben
}

// A task costs the most tokens that an answer may have. The handler settles what the answer had, and the rest comes back.
func ExampleSettle() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	rules, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  llm:
    rules:
      - {name: calls, algorithm: sliding-window, limit: 60, per: 1m}
      - {name: tokens, algorithm: sliding-window, limit: 3000, per: 1m, unit: tokens}
`))
	if err != nil {
		log.Fatal(err)
	}
	limits, err := worker.New(rdb, worker.Config{
		Limits: rules, Logger: slog.New(slog.DiscardHandler), NoMetrics: true, Throttle: throttle.Config{Prefix: "example-settle"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := queue.NewClient(rdb, queue.ClientConfig{})
	if _, err := client.Enqueue(context.Background(), queue.Task{
		Type: "complete", Scope: "llm", Queue: "example-settle", Costs: policy.Costs{"requests": 1, "tokens": 900},
	}); err != nil {
		log.Fatal(err)
	}

	done := make(chan throttle.Settlement)
	server := limits.NewServer(asynq.Config{Concurrency: 1, Queues: map[string]int{"example-settle": 1}})
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		settled, err := worker.Settle(ctx, policy.Costs{"tokens": 150}) // as the answer says
		done <- settled
		return err
	})); err != nil {
		log.Fatal(err)
	}
	defer server.Shutdown()
	for _, rule := range (<-done).Rules {
		fmt.Println(rule.Rule, "gets back", rule.Back)
	}
	// Output:
	// tokens gets back 750
}

// Waiting tasks get the form back that asynq has without Headway: the max retry is what is left of their own.
func ExampleDetach() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	client := queue.NewClient(rdb, queue.ClientConfig{})
	if _, err := client.Enqueue(ctx, queue.Task{Type: "mail", Scope: "mail/acme", ID: "m-1", Queue: "example-detach", MaxRetry: queue.Retries(3)}); err != nil {
		log.Fatal(err)
	}
	show := func() {
		info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("example-detach", "m-1")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("max retry", info.MaxRetry)
	}
	show()
	changed, err := worker.Detach(ctx, rdb, "example-detach")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(changed, "changed")
	show()
	// Output:
	// max retry 2147483647
	// 1 changed
	// max retry 3
}
