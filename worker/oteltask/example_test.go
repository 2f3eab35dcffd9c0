package oteltask_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/oteltask"
)

// A shop enqueues three mails under a limit of two a second, and prints the spans of the third.
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
	var mails []queue.Task
	for _, id := range []string{"mail-1", "mail-2", "mail-3"} {
		mails = append(mails, queue.Task{Type: "mail", Scope: "mail/acme", Queue: "example-trace", ID: id})
	}
	if _, err := client.EnqueueBatch(ctx, queue.Number(slices.Values(mails)), nil); err != nil {
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

	spans, names := exporter.GetSpans(), map[trace.SpanID]string{}
	for _, s := range spans {
		names[s.SpanContext.SpanID()] = s.Name
	}
	for _, s := range spans {
		if attributeOf(s, "messaging.message.id") != "mail-3" || strings.HasPrefix(s.Name, "receive") {
			continue
		}
		line := fmt.Sprintf("%s, %s", s.Name, s.SpanKind)
		if s.Parent.IsValid() {
			line += ", below " + names[s.Parent.SpanID()]
		}
		if len(s.Links) > 0 {
			line += ", linked to " + names[s.Links[0].SpanContext.SpanID()]
		}
		for _, key := range []string{"headway.rule", "headway.outcome"} {
			if value := attributeOf(s, key); value != "" {
				line += ", " + key + "=" + value
			}
		}
		fmt.Println(line)
	}
	// Output:
	// send example-trace, producer, below POST /orders
	// wait example-trace, internal, below process example-trace, headway.rule=mail:limit
	// process example-trace, consumer, linked to send example-trace, headway.outcome=ok
}

func attributeOf(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}
