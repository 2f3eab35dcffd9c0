package queue_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

func ExampleClient_Enqueue() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer func() { _ = rdb.Close() }()
	client := queue.NewClient(rdb, queue.ClientConfig{})
	task := queue.Task{
		Type:     "invoice:send",
		Scope:    "payments/acme/invoices",
		ID:       "inv-1",
		Queue:    "example-enqueue",
		MaxRetry: queue.Retries(3),
		Remember: 24 * time.Hour,
		Payload:  []byte(`{"invoice":1}`),
	}
	for range 2 {
		result, err := client.Enqueue(context.Background(), task)
		fmt.Println(result.ID, result.State, err)
	}
	// Output:
	// inv-1 enqueued <nil>
	// inv-1 duplicate <nil>
}

func ExampleClient_EnqueueBatch() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer func() { _ = rdb.Close() }()
	lines := `{"type":"http","id":"a","scope":"payments/acme","queue":"example-batch","http":{"url":"https://api.example.com/a"}}
{"type":"http","id":"b","scope":"payments/acme","queue":"example-batch","cost":0,"http":{"url":"https://api.example.com/b"}}
{"type":"http","id":"a","scope":"payments/acme","queue":"example-batch","http":{"url":"https://api.example.com/a"}}
`
	client := queue.NewClient(rdb, queue.ClientConfig{})
	reader := queue.NewReader(strings.NewReader(lines))
	sum, err := client.EnqueueBatch(context.Background(), reader.All(), func(r queue.Result) {
		fmt.Println(r.Line, r.State, r.Err)
	})
	fmt.Println(sum.Enqueued, sum.Duplicate, sum.Invalid, err)
	// Output:
	// 1 enqueued <nil>
	// 2 invalid queue: invalid task: cost: 0 is below 1
	// 3 duplicate <nil>
	// 1 1 1 <nil>
}

func ExampleTask_AppendLine() {
	var file []byte
	for i, tenant := range []string{"acme", "globex"} {
		task := queue.Task{
			Type:  queue.TypeHTTP,
			Scope: "payments/" + tenant,
			ID:    fmt.Sprintf("inv-%d", i),
			HTTP:  &queue.HTTP{URL: "https://api.example.com/charge", Method: "POST"},
		}
		var err error
		if file, err = task.AppendLine(file); err != nil {
			panic(err)
		}
		file = append(file, '\n')
	}
	fmt.Print(string(file))
	// Output:
	// {"type":"http","id":"inv-0","scope":"payments/acme","http":{"method":"POST","url":"https://api.example.com/charge"}}
	// {"type":"http","id":"inv-1","scope":"payments/globex","http":{"method":"POST","url":"https://api.example.com/charge"}}
}

// A program that enqueues with asynq itself sets the headers alone.
func ExampleReadSpec() {
	task := asynq.NewTaskWithHeaders("invoice:send", []byte(`{"invoice":1}`), map[string]string{
		queue.HeaderScope: "payments/acme",
		queue.HeaderCost:  "3",
	})
	spec, ok, err := queue.ReadSpec(task)
	fmt.Println(spec.Scope, spec.Cost, spec.Budget == queue.NoBudget, ok, err)
	// Output:
	// payments/acme 3 true true <nil>
}
