package queue_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// info returns what asynq knows of a task.
func info(t *testing.T, rdb redis.UniversalClient, queueName, id string) *asynq.TaskInfo {
	t.Helper()
	got, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo(queueName, id)
	if err != nil {
		t.Fatalf("task %q in queue %q: %v", id, queueName, err)
	}
	return got
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	deadline := time.Now().Add(time.Hour).UTC()
	for id, tt := range map[string]struct {
		task    queue.Task
		payload string
		spec    queue.Spec
	}{
		"least": {
			queue.Task{Type: "mail", Scope: "a"}, "",
			queue.Spec{Scope: "a", Cost: 1, Budget: 25},
		},
		"all": {
			queue.Task{
				Type: "mail", Scope: "a/b", Cost: 7, MaxRetry: queue.Retries(0), Timeout: 90 * time.Second,
				Deadline: deadline, Priority: 3, Remember: 1001 * time.Millisecond, MaxWait: time.Minute, Payload: []byte(` {"a" : "<&>"} `),
			}, ` {"a" : "<&>"} `,
			queue.Spec{Scope: "a/b", Cost: 7, Timeout: 90 * time.Second, Deadline: deadline, Priority: 3, MaxWait: time.Minute},
		},
		"http": {
			queue.Task{Type: queue.TypeHTTP, Scope: "a", Remember: time.Second, HTTP: &queue.HTTP{
				Method: "POST", URL: "http://h/?a=1&b=<2>", Headers: map[string]string{"X": "1"}, Body: `{"a":1}`,
			}},
			`{"method":"POST","url":"http://h/?a=1&b=<2>","headers":{"X":"1"},"body":"{\"a\":1}"}`,
			queue.Spec{Scope: "a", Cost: 1, Budget: 25, Timeout: 30 * time.Second},
		},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			tt.task.ID, tt.task.Queue, tt.spec.ID = id, name, id
			got, err := client.Enqueue(t.Context(), tt.task)
			if want := (queue.Result{ID: id, Queue: name, State: queue.Enqueued, Timeout: tt.spec.Timeout}); got != want || err != nil {
				t.Fatalf("got %+v %v", got, err)
			}
			task := info(t, rdb, name, id)
			if task.State != asynq.TaskStatePending || task.Type != tt.task.Type || string(task.Payload) != tt.payload {
				t.Errorf("%v, type %q, payload %s", task.State, task.Type, task.Payload)
			}
			spec, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers))
			if age := time.Since(spec.Due); age < 0 || age > time.Minute {
				t.Errorf("it is due at %v", spec.Due)
			}
			spec.Due = time.Time{}
			if !reflect.DeepEqual(spec, tt.spec) || !ok || err != nil {
				t.Errorf("got  %+v %v %v\nwant %+v", spec, ok, err, tt.spec)
			}
			// asynq shall neither archive a limited task nor cut a waiting one short, nor drop the part of a second.
			kept := (tt.task.Remember + time.Second - 1).Truncate(time.Second)
			if task.MaxRetry != math.MaxInt32 || task.Timeout < 3650*24*time.Hour || !task.Deadline.IsZero() || task.Retention != kept {
				t.Errorf("max retry %d, timeout %v, deadline %v, retention %v", task.MaxRetry, task.Timeout, task.Deadline, task.Retention)
			}
		})
	}
}

// "An id is taken while its task waits or runs, for Remember after it succeeded, and while it is in asynq's archive".
func TestIDIsTaken(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	enqueue := func(want queue.State, ids ...string) {
		t.Helper()
		for _, id := range ids {
			task := queue.Task{Type: "mail", Scope: "a", ID: id, Queue: name}
			switch id {
			case "remembered":
				task.Remember = time.Hour
			case "scheduled":
				task.Delay = time.Hour
			}
			if got, err := client.Enqueue(t.Context(), task); got.State != want || err != nil {
				t.Errorf("%s: %+v %v, want %s", task.ID, got, err, want)
			}
		}
	}
	all := []string{"done", "remembered", "scheduled", "fails"}
	enqueue(queue.Enqueued, all...)
	enqueue(queue.Duplicate, all...)
	other := queue.Task{Type: "mail", Scope: "a", ID: "done", Queue: redistest.Prefix(t)}
	if got, err := client.Enqueue(t.Context(), other); got.State != queue.Enqueued || err != nil {
		t.Errorf("in another queue: %+v %v", got, err)
	}

	running := make(chan string)
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Queues: map[string]int{name: 1}, TaskCheckInterval: 5 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	must(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		running <- id
		running <- id // until the test has looked
		if id == "fails" {
			return asynq.SkipRetry
		}
		return nil
	})))
	t.Cleanup(server.Shutdown)
	for range 3 {
		enqueue(queue.Duplicate, <-running)
		<-running
	}
	redistest.WaitFor(t, "all to have run", 2*time.Minute, func() bool {
		q, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo(name)
		return err == nil && q.Active == 0 && q.Completed == 1 && q.Archived == 1
	})
	enqueue(queue.Duplicate, "scheduled", "remembered", "fails")
	go func() { <-running; <-running }()
	enqueue(queue.Enqueued, "done")
}

// TestDelayIsNeverEarly lets asynq release delayed tasks as fast as it can.
func TestDelayIsNeverEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		client := queue.NewClient(rdb, queue.ClientConfig{})
		due := map[string]time.Time{}
		for _, delay := range []time.Duration{time.Microsecond, time.Millisecond, 999 * time.Millisecond, time.Second, 1001 * time.Millisecond, 1900 * time.Millisecond, 5 * time.Second} {
			for range 5 { // at different parts of a second
				at := time.Now().Add(delay)
				got, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "a", Delay: delay})
				must(t, err)
				due[got.ID] = at
				<-time.After(211 * time.Millisecond)
			}
		}
		var ran atomic.Int32
		server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
			TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond, LogLevel: asynq.FatalLevel,
		})
		must(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			ran.Add(1)
			id, _ := asynq.GetTaskID(ctx)
			if late := time.Since(due[id]); late < 0 || late > 8*time.Second { // the first ones waited for the server
				t.Errorf("%s: %v late", id, late)
			}
			return nil
		})))
		<-time.After(8 * time.Second)
		server.Shutdown()
		if int(ran.Load()) != len(due) {
			t.Errorf("%d of %d ran", ran.Load(), len(due))
		}
	})
}

func TestEnqueueRefuses(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := queue.NewClient(rdb, queue.ClientConfig{Policy: policy.PerSecond("a", 5)})
	const cost = `can never pass: rule "limit" admits 5 at most; split the task, or raise the rule's burst or limit`
	for want, task := range map[string]queue.Task{
		`type: required; "http" for an outbound request, or a type that a Go program has registered`:                               {Scope: "a"},
		`scope: "b" meets no rule and the policy denies such scopes; correct the scope, give it a rule, or write unmatched: allow`: {Type: "mail", Scope: "b"},
		"cost: 6 " + cost: {Type: "mail", Scope: "a/x", Cost: 6},
		"priority: -2000000 is below -1000000; cost: 9 " + cost: {Type: "mail", Scope: "a", Cost: 9, Priority: -2e6},
	} {
		task.ID, task.Queue = "x", name
		got, err := client.Enqueue(t.Context(), task)
		if err == nil || err.Error() != "queue: invalid task: "+want || got.State != queue.Invalid || got.ID != "x" || got.Err == nil {
			t.Errorf("got  %v\nwant %s\n%+v", err, want, got)
		}
		if ce, ok := errors.AsType[*policy.CostError](err); ok != (task.Cost > 0) || ok && ce.Capacity != 5 {
			t.Errorf("%v wraps %+v", err, ce)
		}
		if unmatched := errors.As(err, new(*policy.UnmatchedError)); unmatched != (task.Scope == "b") {
			t.Errorf("%v wraps an UnmatchedError: %t", err, unmatched)
		}
	}
	if n, err := rdb.Exists(t.Context(), "asynq:{"+name+"}:pending").Result(); n != 0 || err != nil {
		t.Errorf("something was enqueued: %d %v", n, err)
	}
	if got, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "a", Cost: 5, Queue: name}); got.State != queue.Enqueued || err != nil {
		t.Errorf("what just fits: %+v %v", got, err)
	}
}

// The error of Enqueue has Redis's own words, or is the error of a context that has ended.
func TestEnqueueFails(t *testing.T) {
	t.Parallel()
	full := redistest.NewServer(t, redistest.Options{Args: []string{"--maxmemory", "1"}}).Client(t)
	task := queue.Task{Type: "mail", Scope: "a", ID: "x"}
	got, err := queue.NewClient(full, queue.ClientConfig{}).Enqueue(t.Context(), task)
	if err == nil || !strings.Contains(err.Error(), "OOM") || got.State != queue.Failed || got.Err == nil {
		t.Errorf("full: %+v %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err = queue.NewClient(redistest.Client(t), queue.ClientConfig{}).Enqueue(ctx, task)
	if err != context.Canceled || got.State != queue.Failed { //nolint:errorlint // exactly this one
		t.Errorf("cancelled: %+v %v", got, err)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.Cluster(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	names := []string{redistest.Prefix(t), redistest.Prefix(t), redistest.Prefix(t)}
	var entries []queue.Entry
	for i := range 300 {
		entries = append(entries, queue.Entry{Task: queue.Task{Type: "mail", Scope: "a", Queue: names[i%len(names)]}})
	}
	sum, err := client.EnqueueBatch(t.Context(), slices.Values(entries), nil)
	if (sum != queue.Summary{Enqueued: 300, Random: 300}) || err != nil {
		t.Errorf("%+v %v", sum, err)
	}
	for _, name := range names {
		if n, err := rdb.LLen(t.Context(), "asynq:{"+name+"}:pending").Result(); n != 100 || err != nil {
			t.Errorf("queue %s: %d %v", name, n, err)
		}
	}
}

// A method that "workers would refuse" is refused before it is enqueued, and by a forecast.
func TestClientRefusesMethods(t *testing.T) {
	t.Parallel()
	client := queue.NewClient(redistest.Client(t), queue.ClientConfig{AllowMethods: []string{"PROPFIND", "TRACE"}})
	for method, want := range map[string]string{
		"GET": "", "PROPFIND": "", "TRACE": "credentials",
		"DEL": `http.method: "DEL": not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PROPFIND, TRACE; if it is meant, name it with -allow-method`,
	} {
		task := queue.Task{Type: queue.TypeHTTP, Scope: "a", Queue: redistest.Prefix(t), HTTP: &queue.HTTP{Method: method, URL: "http://h"}}
		check := func(r queue.Result) {
			if (r.State == queue.Invalid) != (want != "") || want != "" && !strings.Contains(r.Err.Error(), want) {
				t.Errorf("%s: %+v, want %q", method, r, want)
			}
		}
		got, _ := client.Enqueue(t.Context(), task)
		check(got)
		_, err := client.Forecast(t.Context(), slices.Values([]queue.Entry{{Task: task}}), check)
		must(t, err)
		if task.CheckMethod(nil) == nil != (method == "GET") || (task.Validate() == nil) != (method != "TRACE") {
			t.Errorf("%s: %v, %v", method, task.CheckMethod(nil), task.Validate())
		}
	}
}
