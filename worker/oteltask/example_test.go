package oteltask_test

import (
	"context"
	"log"
	"log/slog"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/oteltask"
)

// A shop enqueues three mails under a limit of two a second, and prints the trace of the third.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	defer rdb.Close()
	exporter := tracetest.NewInMemoryExporter() // or one that sends OTLP
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	tracing := oteltask.New(oteltask.Config{TracerProvider: provider})

	limits, err := worker.New(rdb, worker.Config{
		Limits:     policy.PerSecond("mail", 2),
		Middleware: worker.MiddlewareConfig{Tracer: tracing},
		Logger:     slog.New(slog.DiscardHandler),
		NoMetrics:  true,
		Throttle:   throttle.Config{Prefix: "example-trace"},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limits.Limiter(), OnEnqueue: tracing.OnEnqueue})
	ctx, order := provider.Tracer("shop").Start(context.Background(), "POST /orders")
	mails := queue.Number(func(yield func(queue.Task) bool) {
		for _, id := range []string{"mail-1", "mail-2", "mail-3"} {
			if !yield(queue.Task{Type: "mail", Scope: "mail/acme", Queue: "example-trace", ID: id}) {
				return
			}
		}
	})
	if _, err := client.EnqueueBatch(ctx, mails, nil); err != nil {
		log.Fatal(err)
	}
	order.End()

	ran := make(chan bool, 3)
	server := limits.NewServer(asynq.Config{Concurrency: 3, Queues: map[string]int{"example-trace": 1}})
	err = server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		ran <- true
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		<-ran
	}
	server.Shutdown()

	trace := printer{exporter.GetSpans(), "mail-3"}
	trace.below("", trace.named("POST /orders"))
	trace.linked("process example-trace", trace.named("send example-trace"))
	// Output:
	// POST /orders
	//   send example-trace, producer, headway.scope=mail/acme, limited
	// linked to it:
	// process example-trace, consumer, headway.scope=mail/acme, headway.outcome=ok
	//   wait example-trace, internal, headway.scope=mail/acme, headway.rule=mail:limit, with the expected start
}
