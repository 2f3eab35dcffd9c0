package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
)

// "-trace-context: send the W3C trace context that a task carries on with its request"; and without it, not.
func TestTraceContextFlag(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, flags := range [][]string{nil, {"-trace-context"}} {
		got := make(chan string, 1)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Traceparent") }))
		t.Cleanup(s.Close)
		url := ownRedis(t)
		client := queue.NewClient(open(t, url), queue.ClientConfig{
			OnEnqueue: func(context.Context, queue.Task) (map[string]string, func(queue.Result)) {
				return map[string]string{"traceparent": parent}, nil
			},
		})
		if _, err := client.Enqueue(t.Context(), queue.Task{Type: queue.TypeHTTP, Scope: "payments/a", HTTP: &queue.HTTP{URL: s.URL}}); err != nil {
			t.Fatal(err)
		}
		start(t, whole, nil, append(flags, "-redis", url, "-limits", limitsFile(t, someLimits), "-allow-host", strings.TrimPrefix(s.URL, "http://"))...)
		want := ""
		if flags != nil {
			want = parent
		}
		select {
		case header := <-got:
			if header != want {
				t.Errorf("%v: %q arrived, want %q", flags, header, want)
			}
		case <-time.After(bound):
			t.Fatal("nothing arrived")
		}
	}
}
