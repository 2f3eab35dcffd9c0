package worker

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/events"
)

// reported are the events of a process.
type reported struct {
	mu   sync.Mutex
	list []events.Event
}

func (r *reported) onEvent(e events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
}

func (r *reported) has(kind events.Kind, scope string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if e.Kind == kind && e.Scope == scope && e.App == "shop" {
			return true
		}
	}
	return false
}

func (r *reported) percents() (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		list = append(list, e.Percent)
	}
	return list
}

// Config.Events hears what decisions and answers say, while a server runs.
func TestEventsOfAServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	var got reported
	limits, err := New(rdb, Config{
		Limits: policy.PerHour("p", 2), App: "shop", Events: &events.Config{OnEvent: got.onEvent},
		Logger: slog.New(slog.DiscardHandler), NoMetrics: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := limits.NewServer(asynq.Config{Concurrency: 2, LogLevel: asynq.FatalLevel})
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		return ReportStatus(ctx, http.StatusTooManyRequests, http.Header{"Retry-After": {"60"}})
	})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	if _, err := client.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p/a"}); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the events", bound, func() bool { return got.has(events.Threshold, "p") && got.has(events.Pause, "p/a") })
}

// And what polls say: a process that has ceased to dispatch.
func TestEventsOfTheDispatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait)
		var got reported
		limits, err := New(rdb, Config{
			Limits: policy.PerHour("p", 2), App: "shop", Events: &events.Config{OnEvent: got.onEvent},
			Logger: slog.New(slog.DiscardHandler), NoMetrics: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := limits.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer limits.End()
		limits.observer.DispatcherPolled("p", "p", true)
		<-time.After(13 * time.Second)
		if !got.has(events.Stalled, "") {
			t.Errorf("%+v", got.list)
		}
	})
}
