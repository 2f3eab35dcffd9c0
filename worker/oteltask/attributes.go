package oteltask

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/headway-go/headway/worker"
)

// The attributes of OpenTelemetry's messaging conventions. They are written out, since package semconv moves with each version.
const (
	systemKey        = attribute.Key("messaging.system")
	destinationKey   = attribute.Key("messaging.destination.name")
	operationNameKey = attribute.Key("messaging.operation.name")
	operationTypeKey = attribute.Key("messaging.operation.type")
	messageIDKey     = attribute.Key("messaging.message.id")
	errorTypeKey     = attribute.Key("error.type")
)

// Headway's own attributes. A scope names a tenant, so it is in spans and in no metric.
const (
	typeKey      = attribute.Key("headway.task.type")
	scopeKey     = attribute.Key("headway.scope")
	stateKey     = attribute.Key("headway.state")      // what became of the enqueuing
	outcomeKey   = attribute.Key("headway.outcome")    // of a run
	attemptKey   = attribute.Key("headway.attempt")    // from 1
	ruleKey      = attribute.Key("headway.rule")       // as metrics have it: payments/*:tenant
	levelKey     = attribute.Key("headway.rule.scope") // where it counts: payments/acme
	aheadKey     = attribute.Key("headway.wait.ahead") // waiters of the same scope
	expectedKey  = attribute.Key("headway.wait.expected_start")
	retryKey     = attribute.Key("headway.wait.retry_after_ms")
	untilKey     = attribute.Key("headway.wait.until") // when the task comes by itself
	reasonKey    = attribute.Key("headway.wait.reason")
	limitedEvent = "limited"
	droppedEvent = "dropped"
)

func about(operation, queue, id, kind, scope string) []attribute.KeyValue {
	list := []attribute.KeyValue{
		systemKey.String("asynq"), destinationKey.String(queue), operationNameKey.String(operation), typeKey.String(kind),
	}
	if operation != "wait" { // which the conventions do not know
		list = append(list, operationTypeKey.String(operation))
	}
	if id != "" {
		list = append(list, messageIDKey.String(id))
	}
	if scope != "" {
		list = append(list, scopeKey.String(scope))
	}
	return list
}

func consumed(operation string, p worker.Pickup) []attribute.KeyValue {
	return append(about(operation, p.Queue, p.ID, p.Task.Type(), p.Scope), attemptKey.Int(p.Retried+1))
}

func at(key attribute.Key, t time.Time) attribute.KeyValue {
	return key.String(t.UTC().Format(time.RFC3339Nano))
}
