package main

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "A 429, or a 503 with a Retry-After, burns no attempt": tasks without retries are called
// again, not before they were told, and succeed.
func TestLimitedAnswerBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second
	var calls atomic.Int32
	var last atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, now := calls.Add(1), time.Now()
		if before := last.Swap(now.UnixNano()); n > 1 && now.Sub(time.Unix(0, before)) < wait {
			t.Errorf("call %d came %s after the one before", n, now.Sub(time.Unix(0, before)))
		}
		w.Header().Set("Retry-After", "2")
		switch n {
		case 1:
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(api.Close)
	server := redistest.NewServer(t)
	r := start(t, whole, nil, "-redis", "redis://"+server.Addr(), "-limits", limitsFile(t, someLimits), "-allow-host", api.Listener.Addr().String())
	r.says("msg=ready")
	enqueue(t, open(t, "redis://"+server.Addr()), queue.Task{
		Type: queue.TypeHTTP, Scope: "payments/a", ID: "x", MaxRetry: queue.Retries(0), HTTP: &queue.HTTP{URL: api.URL},
	})
	redistest.WaitFor(t, "the third call", bound, func() bool { return calls.Load() == 3 })
	r.stop()
	r.ends(cli.ExitOK)
}
