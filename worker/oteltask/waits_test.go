package oteltask

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
)

func pickup(id string, headers map[string]string, d throttle.Decision) worker.Pickup {
	return worker.Pickup{
		Task: asynq.NewTaskWithHeaders("work", nil, headers), ID: id, Queue: "q", Scope: "p/a", Decision: d,
		At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

// What a process remembers is bounded, is forgotten when it was read, and is not another task's of the same id.
func TestWaitsAreBounded(t *testing.T) {
	t.Parallel()
	var w waits
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range maxWaits + 5 {
		w.keep(pickup(fmt.Sprint(i), nil, throttle.Decision{}), wait{began: began, until: began.Add(time.Minute)})
	}
	if len(w.byKey) != 5 {
		t.Errorf("%d are remembered", len(w.byKey))
	}
	again := pickup(fmt.Sprint(maxWaits), nil, throttle.Decision{})
	w.keep(again, wait{began: began.Add(time.Hour / 2), until: began.Add(time.Hour)})
	if got, known := w.take(again, began); !known || !got.began.Equal(began) {
		t.Errorf("denied twice: %+v", got)
	}
	if _, known := w.take(again, began); known {
		t.Error("it is remembered after it was read")
	}
	if _, known := w.take(pickup(fmt.Sprint(maxWaits+1), nil, throttle.Decision{}), began.Add(time.Minute+overdue)); known {
		t.Error("it is remembered an hour after it should be back")
	}
}

// A wait that this process has not seen begin is read from the task's headers and the start's decision.
func TestWaitsThatBeganElsewhere(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	due, expected := at.Add(-time.Hour), at.Add(-time.Minute)
	headers := map[string]string{queue.HeaderDue: due.Format(time.RFC3339Nano)}
	planned := map[string]string{queue.HeaderDue: headers[queue.HeaderDue], queue.HeaderExpected: expected.Format(time.RFC3339Nano)}
	turn := map[string]string{queue.HeaderDue: headers[queue.HeaderDue], queue.HeaderScope: "p/a/x", queue.HeaderWaitsFor: "7 2 p/*:tenant"}
	one := []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Scope: "p/a", Pattern: "p/*", Rule: "tenant"}}}
	two := append(one[:1:1], throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "p", Pattern: "p", Rule: "all"}})
	for name, tt := range map[string]struct {
		headers  map[string]string
		d        throttle.Decision
		retried  int
		waited   bool
		began    time.Time
		expected time.Time
		rule     string
		ahead    int64
	}{
		"started at once":      {headers, throttle.Decision{Allowed: true, Rules: one}, 0, false, at, time.Time{}, "p/*:tenant", -1},
		"held":                 {headers, throttle.Decision{Allowed: true, Rules: two, Binding: 1, Wait: time.Millisecond}, 0, true, at, time.Time{}, "p:all", -1},
		"dispatched":           {headers, throttle.Decision{Allowed: true, Handed: true, Rules: one, Binding: -1}, 0, true, due, time.Time{}, "p/*:tenant", -1},
		"dispatched, of two":   {headers, throttle.Decision{Allowed: true, Handed: true, Rules: two, Binding: -1}, 0, true, due, time.Time{}, "", -1},
		"planned":              {planned, throttle.Decision{Allowed: true, Rules: one}, 0, true, due, expected, "p/*:tenant", -1},
		"planned, and retried": {planned, throttle.Decision{Allowed: true, Rules: one}, 1, false, at, time.Time{}, "p/*:tenant", -1},
		"planned, of two":      {turn, throttle.Decision{Allowed: true, Handed: true, Rules: two, Binding: -1}, 0, true, due, time.Time{}, "p/*:tenant", 7},
		"planned, no grant":    {turn, throttle.Decision{Allowed: true, Rules: two, Binding: 1}, 0, true, due, time.Time{}, "p/*:tenant", 7},
		"of two, and retried":  {turn, throttle.Decision{Allowed: true, Handed: true, Rules: two, Binding: -1}, 1, true, at, time.Time{}, "", -1},
		"foreign":              {nil, throttle.Decision{Allowed: true, Handed: true, Rules: one, Binding: -1}, 0, true, at, time.Time{}, "p/*:tenant", -1},
		"due later":            {map[string]string{queue.HeaderDue: at.Add(time.Second).Format(time.RFC3339Nano)}, throttle.Decision{Handed: true}, 0, true, at, time.Time{}, "", -1},
	} {
		p := pickup("1", tt.headers, tt.d)
		p.Retried = tt.retried
		got, waited := waitOf(p, wait{}, false)
		if waited != tt.waited || !got.began.Equal(tt.began) || !got.expected.Equal(tt.expected) || got.rule != tt.rule || got.ahead != tt.ahead {
			t.Errorf("%s: %v %+v", name, waited, got)
		}
		if level := map[string]string{"p/*:tenant": "p/a", "p:all": "p"}[tt.rule]; got.level != level {
			t.Errorf("%s: the rule counts at %q, want %q", name, got.level, level)
		}
	}
}

// The ends of pick-ups and runs that are no plain success or failure.
func TestEndsOfPickups(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tracing := New(Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	last := func() tracetest.SpanStub {
		all := exporter.GetSpans()
		return all[len(all)-1]
	}
	p := pickup("1", nil, throttle.Decision{})
	tracing.Ends(t.Context(), p, nil)
	if got := last(); len(got.Events) != 1 || got.Events[0].Name != droppedEvent || got.Status.Code != codes.Unset {
		t.Errorf("dropped: %+v", got)
	}

	_, ended := tracing.Starts(t.Context(), p)
	ended("lost", nil)
	if got := last(); got.Status != (sdktrace.Status{Code: codes.Error, Description: throttle.ErrLeaseLost.Error()}) || !slices.Contains(got.Attributes, errorTypeKey.String("lost")) {
		t.Errorf("lost: %+v, %v", got.Status, got.Attributes)
	}

	// A pick-up that failed ends the wait: the next one of its id is another.
	p.Until = p.At.Add(time.Hour)
	tracing.Waits(t.Context(), p)
	tracing.Ends(t.Context(), p, errors.New("no such account"))
	if _, known := tracing.waits.take(p, p.At); known {
		t.Error("an ended wait is remembered")
	}
}
