package queue

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
)

// TypeHTTP is the type of a task that is one outbound HTTP request.
const TypeHTTP = "http"

// What a Task's zero fields stand for.
const (
	DefaultQueue    = "default"
	DefaultCost     = 1
	DefaultMaxRetry = 25               // asynq's
	DefaultTimeout  = 30 * time.Second // of a task of type http; others have none
	DefaultMethod   = "GET"
)

const (
	// neverByAsynq is the MaxRetry given to asynq. asynq archives a limited task
	// on its last attempt before it asks whether that was a failure, so the
	// user's budget stands in a header and asynq's own never ends. It is the
	// largest that asynq can store.
	neverByAsynq = math.MaxInt32

	// neverCut is the Timeout given to asynq, which counts waiting for a turn
	// inside the handler as running. The task's own time-out is a header.
	neverCut = maxDuration
)

// Task is one piece of work: what to do and what it spends. Type and Scope are
// required, and HTTP for a task of type "http"; the rest has defaults. It is a
// value and is not changed by enqueuing it.
type Task struct {
	// Type names the handler that runs the task. TypeHTTP is run by the worker
	// program itself, any other by a handler that a Go program has registered.
	Type string

	// Scope is the path of names from which the task spends, outermost first:
	// "payments/acme/refunds".
	Scope string

	// ID names the task within its queue. An id is taken while its task waits or
	// runs, for Remember after it succeeded, and while it lies in asynq's archive
	// after it failed for good. Up to 256 bytes without control characters.
	// Defaults to a random UUID.
	ID string

	// Cost is how many units the task takes under every rate rule.
	// Defaults to 1.
	Cost int64

	// Costs is what the task takes by unit, instead of a Cost: a rule counts its own unit,
	// and one of which the task takes nothing does not limit it. Requests that are not
	// given are 1. Upgrade all workers before the first such task: older ones fail it for
	// good.
	// Defaults to none.
	Costs policy.Costs

	// Queue is the asynq queue: letters, digits, "_", "-" and ".".
	// Defaults to "default".
	Queue string

	// MaxRetry is how many times the task is retried after real failures; being
	// limited never counts. Write Retries(0) for none.
	// Defaults to 25, as asynq's.
	MaxRetry *int

	// Delay is how long to wait before the task may start. It is never early:
	// asynq keeps whole seconds, so the moment is rounded up to the next one, by
	// the clocks of the hosts that enqueue and that run asynq's forwarder.
	// Defaults to 0, no delay.
	Delay time.Duration

	// Timeout bounds a run from its start; waiting for a turn does not count.
	// Defaults to 30 seconds for a task of type "http" and to none otherwise.
	Timeout time.Duration

	// Deadline is the moment after which the task shall not start.
	// Defaults to the zero time, none.
	Deadline time.Time

	// MaxWait is how long the task waits for its limits, from the moment when it is
	// due: it was enqueued, or its Delay was over. Where a rule has a max_wait of its
	// own, the shorter one counts. What then becomes of the task is the worker's
	// Config.OnMaxWait: unless told it waits on.
	// Defaults to 0, as long as it takes.
	MaxWait time.Duration

	// Priority puts the task before those of its scope that wait and have a lower
	// one, and its scope before others where they share a rule. One above max_priority of
	// its scope in limits.yaml counts as that.
	// Defaults to 0; where workers serve queues with asynq's StrictPriority, to that of
	// its queue, which is 0 for the heaviest and lower for others.
	Priority int

	// Remember is how long the id stays taken after the task succeeded, rounded
	// up to a whole second. It is asynq's retention: the finished task stays in
	// Redis as long. It is no field of an NDJSON line.
	// Defaults to 0: the id is free as soon as the task has succeeded.
	Remember time.Duration

	// Payload is one JSON value, handed to the handler byte for byte. A task of
	// type "http" has none.
	// Defaults to nil, an empty payload.
	Payload []byte

	// HTTP is the request of a task of type "http", instead of a Payload.
	// Defaults to nil.
	HTTP *HTTP
}

// Retries returns a Task's MaxRetry of n: Task{MaxRetry: queue.Retries(0)}.
func Retries(n int) *int { return &n }

// withDefaults returns the task with every zero field that has a default set.
// The id is the caller's to draw.
func (t Task) withDefaults() Task {
	if t.Cost == 0 && len(t.Costs) == 0 {
		t.Cost = DefaultCost
	}
	if t.Queue == "" {
		t.Queue = DefaultQueue
	}
	if t.MaxRetry == nil {
		t.MaxRetry = Retries(DefaultMaxRetry)
	}
	if t.Type == TypeHTTP && t.Timeout == 0 {
		t.Timeout = DefaultTimeout
	}
	if t.HTTP != nil && t.HTTP.Method == "" {
		request := *t.HTTP
		request.Method = DefaultMethod
		t.HTTP = &request
	}
	return t
}

// asynqTask returns the task in asynq's form. t is valid, has its defaults and
// an id. app is who enqueues it, as HeaderApp has it.
func (t Task) asynqTask(now time.Time, app string) (*asynq.Task, error) {
	payload := t.Payload
	if t.HTTP != nil {
		var err error
		if payload, err = encodeJSON(t.HTTP); err != nil {
			return nil, err
		}
	}
	options := []asynq.Option{
		asynq.TaskID(t.ID),
		asynq.Queue(t.Queue),
		asynq.MaxRetry(neverByAsynq),
		asynq.Timeout(neverCut),
	}
	if t.Delay > 0 {
		options = append(options, asynq.ProcessAt(t.due(now)))
	}
	if t.Remember > 0 {
		options = append(options, asynq.Retention(wholeSeconds(t.Remember)))
	}
	return asynq.NewTaskWithHeaders(t.Type, payload, t.headers(now, app), options...), nil
}

// due is the moment from which on the task may start.
func (t Task) due(now time.Time) time.Time {
	if t.Delay > 0 {
		return secondAtOrAfter(now.Add(t.Delay))
	}
	return now
}

// secondAtOrAfter rounds up: asynq drops what is below a second, and a task that
// asked for 1.9 s must not start after 1 s.
func secondAtOrAfter(at time.Time) time.Time {
	whole := at.Truncate(time.Second)
	if whole.Before(at) {
		whole = whole.Add(time.Second)
	}
	return whole
}

// wholeSeconds rounds up, for the same reason.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// encodeJSON is json.Marshal that leaves <, > and & as they are.
func encodeJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func randomID() string { return uuid.NewString() }
