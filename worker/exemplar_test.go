package worker

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/worker/metrics"
)

var _ ContextObserver = (*metrics.Metrics)(nil)

// A wait and a run have the trace in which the task was enqueued, and a run the one that TraceID names.
func TestExemplarsOfTasks(t *testing.T) {
	t.Parallel()
	const enqueued, run = "4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000abc"
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	traced := false
	limits, err := New(rdb, Config{
		LimitsFile: writeLimits(t, "", strings.Replace(mailLimits, "limit: 100, per: 1s", "limit: 1, per: 1h", 1)),
		Spends:     spendsMail, Registerer: prometheus.NewRegistry(), Summary: -1,
		TraceID: func(context.Context) string {
			if traced {
				return run
			}
			return ""
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	s := limits.NewServer(asynq.Config{Concurrency: 1})
	if err := s.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { close(ran); return nil })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	client := asynq.NewClientFromRedisClient(rdb)
	page := func() string {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		w := httptest.NewRecorder()
		limits.MetricsHandler().ServeHTTP(w, r)
		return w.Body.String()
	}
	has := func(metric, id string) {
		t.Helper()
		redistest.WaitFor(t, metric+" with its trace", bound, func() bool {
			for line := range strings.SplitSeq(page(), "\n") {
				if strings.HasPrefix(line, metric) && strings.Contains(line, `# {trace_id="`+id+`"}`) {
					return true
				}
			}
			return false
		})
	}
	for range 2 {
		task := asynq.NewTaskWithHeaders("mail:send", nil, map[string]string{"traceparent": "00-" + enqueued + "-00f067aa0ba902b7-01"})
		if _, err := client.Enqueue(task); err != nil {
			t.Fatal(err)
		}
	}
	<-ran // the other waits for an hour
	has("headway_run_seconds_bucket", enqueued)
	has("headway_wait_seconds_bucket", enqueued)

	traced = true
	if got := limits.traceID(t.Context()); got != run {
		t.Errorf("Config.TraceID is %s", got)
	}
	for _, parent := range []string{"00-" + enqueued + "-00f067aa0ba902b7-00", "00-" + strings.ToUpper(enqueued) + "-00f067aa0ba902b7-01", "x", "00--00-01"} {
		task := asynq.NewTaskWithHeaders("mail:send", nil, map[string]string{"traceparent": parent})
		if id, is := withTrace(t.Context(), task).Value(traceKey{}).(string); is {
			t.Errorf("%s: trace %s", parent, id)
		}
	}
}
