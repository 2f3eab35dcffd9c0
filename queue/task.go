package queue

import (
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
)

// TypeHTTP is the type of a task that is one outbound HTTP request.
const TypeHTTP = "http"

// The defaults of a Task's zero fields.
const (
	DefaultQueue    = "default"
	DefaultCost     = 1
	DefaultMaxRetry = 25               // asynq's
	DefaultTimeout  = 30 * time.Second // of a task of type http; others have none
	DefaultMethod   = "GET"
)

const (
	// asynq gets the longest MaxRetry and Timeout, because it archives a task on its last attempt before it checks whether that
	// was a failure, and counts the wait for a turn as run time. The task's own are in its headers.
	neverByAsynq = math.MaxInt32
	neverCut     = maxDuration
)

// Task is one unit of work and its cost. Type and Scope are required, and HTTP for a task of type
// "http"; the other fields have defaults. A Task is a value, and enqueuing does not change it.
type Task struct {
	// Type selects the handler that runs the task. The worker program itself runs TypeHTTP; a handler
	// that a Go program has registered runs any other type.
	Type string

	// Scope is the path of names that the task spends from, outermost first: "payments/acme/refunds".
	Scope string

	// ID names the task within its queue. An id is taken while its task waits or runs, for Remember after it succeeded, and while
	// it is in asynq's archive after it failed for good. Up to 256 bytes without control characters. Defaults to a random UUID.
	ID string

	// Cost is how many units the task takes under every rate rule. Defaults to 1.
	Cost int64

	// Costs is the cost of the task by unit, instead of Cost: each rule counts its own unit, and a rule
	// whose unit the task does not use does not limit it. Requests default to 1. Upgrade all workers
	// before enqueuing the first such task: older ones fail it for good. Defaults to none.
	Costs policy.Costs

	// Queue is the asynq queue: letters, digits, "_", "-" and ".". Defaults to "default".
	Queue string

	// MaxRetry is how many times the task is retried after real failures; a denial by a limit never
	// counts. Use Retries(0) for none. Defaults to 25, asynq's default.
	MaxRetry *int

	// Delay is the time until the task may start. The task is never early: asynq keeps whole seconds, so the start is rounded up
	// to the next second, by the clocks of the hosts that enqueue and that run asynq's forwarder. Defaults to 0, no delay.
	Delay time.Duration

	// Timeout bounds a run from its start; the wait for a turn does not count. Defaults to 30 seconds for
	// a task of type "http" and to none otherwise.
	Timeout time.Duration

	// Deadline is the time after which the task must not start. Defaults to the zero time, none.
	Deadline time.Time

	// MaxWait is the longest time that the task waits for its limits, from when it is due: when it was enqueued, or when its
	// Delay was over. If a rule has a max_wait, the shorter one counts. The worker's Config.OnMaxWait decides what happens then;
	// by default the task keeps waiting. Defaults to 0, no bound.
	MaxWait time.Duration

	// Priority orders the task before waiting tasks of its scope and queue with a lower priority. It means
	// nothing beside tasks of other scopes. Defaults to 0.
	Priority int

	// Remember is how long the id stays taken after the task succeeded, rounded up to a whole second. It
	// is asynq's retention: the finished task stays in Redis for the same time. An NDJSON line does not
	// hold it. Defaults to 0: the id is free as soon as the task has succeeded.
	Remember time.Duration

	// Payload is one JSON value, which the handler gets byte for byte. A task of type "http" has none.
	// Defaults to nil, an empty payload.
	Payload []byte

	// HTTP is the request of a task of type "http", instead of a Payload. Defaults to nil.
	HTTP *HTTP
}

// Retries returns a pointer to n for a Task's MaxRetry: Task{MaxRetry: queue.Retries(0)}.
func Retries(n int) *int { return &n }

// withDefaults returns the task with every default set in place of a zero field. The caller draws the id.
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

// asynqTask returns a valid task with its defaults and its id in asynq's form. app is the enqueuing
// application, as HeaderApp has it. more are headers beside Headway's own.
func (t Task) asynqTask(now time.Time, app string, more map[string]string) (*asynq.Task, error) {
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
		options = append(options, asynq.Retention((t.Remember + time.Second - 1).Truncate(time.Second))) // asynq drops fractions of a second
	}
	headers := t.headers(now, app)
	for name, value := range more {
		if !strings.HasPrefix(name, ownHeaders) {
			headers[name] = value
		}
	}
	return asynq.NewTaskWithHeaders(t.Type, payload, headers, options...), nil
}

// due returns the earliest start of the task.
func (t Task) due(now time.Time) time.Time {
	if t.Delay > 0 {
		return secondAtOrAfter(now.Add(t.Delay))
	}
	return now
}

// secondAtOrAfter rounds up, because asynq drops fractions of a second and no task may start early.
func secondAtOrAfter(at time.Time) time.Time { return at.Add(time.Second - 1).Truncate(time.Second) }

// encodeJSON writes the fields of maps in order, so that equal tasks have equal payloads.
func encodeJSON(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }

// Scope returns the scope of names that come from outside, such as a tenant's id: Scope("payments", tenant). Each name is one
// level, whatever it holds: a '/' in it is escaped. The result is empty if a name is: see [policy.JoinScope]. Source:
// docs/limits-yaml.md#scopes
func Scope(names ...string) string { return policy.JoinScope(names...) }
