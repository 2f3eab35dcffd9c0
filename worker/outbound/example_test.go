package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/worker/outbound"
)

// A worker runs tasks of type http by giving a Handler to its mux.
func ExampleHandler() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "slow down, "+r.Header.Get("X-Api-Key"), http.StatusTooManyRequests)
	}))
	defer api.Close()

	h, err := outbound.New(outbound.Config{AllowHosts: []string{"127.0.0.1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	mux := asynq.NewServeMux()
	mux.Handle("http", h)

	task := asynq.NewTask("http", fmt.Appendf(nil, `{"method":"POST","url":"%s/charge","headers":{"X-Api-Key":"k-123"}}`, api.URL))
	err = mux.ProcessTask(context.Background(), task)
	var status *outbound.StatusError
	if errors.As(err, &status) {
		fmt.Println(status.Status, status.RetryAfter, status.Snippet)
		fmt.Println("for good:", errors.Is(err, asynq.SkipRetry))
	}
	// Output:
	// 429 30s slow down, [redacted]
	// for good: false
}
