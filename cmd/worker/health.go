package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"
)

// healthAge is how old an answer of Redis may be for /healthz, so that many
// askers do not become many pings.
const healthAge = 250 * time.Millisecond

// health answers /healthz.
type health struct {
	of          wellbeing
	stopping    atomic.Bool
	started     time.Time
	version     string
	concurrency int
	queues      map[string]int
}

// wellbeing is what worker.Limits knows of itself.
type wellbeing interface {
	RedisErr(ctx context.Context, maxAge time.Duration) error
	LimitsErr() error
	FileErr() error
	Workers() int
}

// healthAnswer is the body of /healthz. Fields may be added.
type healthAnswer struct {
	Status        string         `json:"status"`            // ok, unavailable or stopping
	Redis         string         `json:"redis"`             // ok, or why it cannot be used
	Workers       *int           `json:"workers,omitempty"` // live workers on this Redis; absent while unknown
	Concurrency   int            `json:"concurrency"`
	Queues        map[string]int `json:"queues"`
	Limits        string         `json:"limits"`      // ok, or why those in Redis are not in force
	LimitsFile    string         `json:"limits_file"` // ok, or why the changed file cannot be used
	UptimeSeconds int64          `json:"uptime_seconds"`
	Version       string         `json:"version"`
}

// ServeHTTP answers 200 when tasks are taken, and 503 with the reason when
// Redis does not answer or the worker is stopping.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := healthAnswer{
		Status: "ok", Redis: "ok", Limits: "ok", LimitsFile: "ok", Concurrency: h.concurrency, Queues: h.queues, Version: h.version,
		UptimeSeconds: int64(time.Since(h.started).Seconds()),
	}
	code := http.StatusOK
	if err := h.of.LimitsErr(); err != nil {
		a.Limits = err.Error()
	}
	if err := h.of.FileErr(); err != nil {
		a.LimitsFile = err.Error()
	}
	if err := h.of.RedisErr(r.Context(), healthAge); err != nil {
		a.Status, a.Redis, code = "unavailable", err.Error(), http.StatusServiceUnavailable
	} else if n := h.of.Workers(); n >= 0 {
		a.Workers = &n
	}
	if h.stopping.Load() {
		a.Status, code = "stopping", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(a) // the asker may have gone
}

// statusHandler routes what -listen serves.
func statusHandler(h *health, metrics http.Handler, paged bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", h)
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		paths := "worker: /healthz, /metrics"
		if paged {
			paths += ", " + pagePath + "/"
		}
		_, _ = w.Write([]byte(paths + "\n"))
	})
	return mux
}
