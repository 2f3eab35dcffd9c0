package worker

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/events"
)

// What the limiter decides reaches the metrics, with the trace of its request, and the events: each decision once.
func TestDecisionsReachMetricsAndEvents(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	type key struct{}
	var got reported
	limits, err := New(redistest.NewServer(t).Client(t), Config{
		Limits: policy.PerHour("p", 2), App: "shop", Events: &events.Config{OnEvent: got.onEvent, Thresholds: []int{50, 100}},
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Summary: -1,
		TraceID: func(ctx context.Context) string { id, _ := ctx.Value(key{}).(string); return id },
	})
	must(t, err)
	must(t, limits.Begin(t.Context()))
	t.Cleanup(limits.End)
	traced := context.WithValue(t.Context(), key{}, trace)
	for range 3 {
		if _, err := limits.Limiter().Allow(traced, "p"); err != nil {
			t.Fatal(err)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	limits.MetricsHandler().ServeHTTP(w, r)
	has := func(want ...string) bool {
		for line := range strings.SplitSeq(w.Body.String(), "\n") {
			found := true
			for _, part := range want {
				found = found && strings.Contains(line, part)
			}
			if found {
				return true
			}
		}
		return false
	}
	if !has("headway_decisions_total{", "allowed", " 2.0") || !has("headway_decisions_total{", "denied", " 1.0") {
		t.Errorf("three decisions, two of them allowed:\n%s", w.Body)
	}
	if !has("headway_wait_seconds_bucket", trace) {
		t.Errorf("the wait lacks its trace:\n%s", w.Body)
	}
	redistest.WaitFor(t, "the thresholds", bound, func() bool { return len(got.percents()) == 2 })

	// Decisions without a context reach both too.
	rules := []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Scope: "q", Rule: "r", Pattern: "q", Limit: 10, Window: time.Hour}, Limited: true}}
	(deciding{limits.metrics, limits.events}).Decided(throttle.Decision{Rules: rules, Binding: 0}, time.Millisecond, nil)
	redistest.WaitFor(t, "the threshold of another rule", bound, func() bool { return got.has(events.Threshold, "q") })
	w = httptest.NewRecorder()
	limits.MetricsHandler().ServeHTTP(w, r)
	if !has("headway_decisions_total{", "q:r", " 1.0") {
		t.Errorf("the metrics lack a decision:\n%s", w.Body)
	}
}
