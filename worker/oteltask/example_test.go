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

// printer prints the spans of one task, and those that are of no task.
type printer struct {
	spans tracetest.SpanStubs
	task  string
}

func attributeOf(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}

func (p printer) shows(s tracetest.SpanStub) bool {
	id := attributeOf(s, "messaging.message.id")
	return id == "" || id == p.task
}

// named returns the task's span of a name.
func (p printer) named(name string) tracetest.SpanStub {
	i := slices.IndexFunc(p.spans, func(s tracetest.SpanStub) bool { return s.Name == name && p.shows(s) })
	if i < 0 {
		return tracetest.SpanStub{Name: "no span " + name}
	}
	return p.spans[i]
}

// below prints a span and those below it.
func (p printer) below(indent string, s tracetest.SpanStub) {
	line := []string{s.Name}
	if !strings.HasPrefix(s.Name, "POST") {
		line = append(line, s.SpanKind.String())
	}
	for _, key := range []string{"headway.scope", "headway.rule", "headway.outcome"} {
		if value := attributeOf(s, key); value != "" {
			line = append(line, key+"="+value)
		}
	}
	if attributeOf(s, "headway.wait.expected_start") != "" {
		line = append(line, "with the expected start")
	}
	for _, event := range s.Events {
		line = append(line, event.Name)
	}
	fmt.Println(indent + strings.Join(line, ", "))
	for _, one := range p.spans {
		if one.Parent.SpanID() == s.SpanContext.SpanID() && p.shows(one) {
			p.below(indent+"  ", one)
		}
	}
}

// linked prints the spans of a name that are linked to another.
func (p printer) linked(name string, to tracetest.SpanStub) {
	for _, s := range p.spans {
		if s.Name != name {
			continue
		}
		for _, link := range s.Links {
			if link.SpanContext.SpanID() == to.SpanContext.SpanID() {
				fmt.Println("linked to it:")
				p.below("", s)
			}
		}
	}
}
