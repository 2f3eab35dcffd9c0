package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type fakeHealth struct {
	redis, limits error
	workers       int
}

func (f fakeHealth) RedisErr(context.Context, time.Duration) error { return f.redis }
func (f fakeHealth) LimitsErr() error                              { return f.limits }
func (f fakeHealth) Workers() int                                  { return f.workers }

func TestHealth(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		down, stopping bool
		workers        int
		code           int
		status, redis  string
	}{
		"well":              {false, false, 2, 200, "ok", "ok"},
		"workers unknown":   {false, false, -1, 200, "ok", "ok"},
		"down":              {true, false, 2, 503, "unavailable", "down"},
		"stopping":          {false, true, 2, 503, "stopping", "ok"},
		"stopping and down": {true, true, 2, 503, "stopping", "down"},
	} {
		of := fakeHealth{workers: tt.workers}
		if tt.down {
			of.redis = errors.New("down")
		}
		h := &health{of: of, started: time.Now(), version: "v1", concurrency: 32, queues: map[string]int{"default": 1}}
		h.stopping.Store(tt.stopping)
		rec := httptest.NewRecorder()
		statusHandler(h, http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var a healthAnswer
		if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if rec.Code != tt.code || a.Status != tt.status || a.Redis != tt.redis || a.Version != "v1" || a.Concurrency != 32 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		if known := a.Workers != nil; known != (tt.workers >= 0 && !tt.down) {
			t.Errorf("%s: workers %v", name, a.Workers)
		}
	}
}

func TestStatusRoutes(t *testing.T) {
	t.Parallel()
	h := statusHandler(&health{of: fakeHealth{}}, http.NotFoundHandler())
	for request, want := range map[string]int{
		"GET /healthz": 200, "HEAD /healthz": 200, "POST /healthz": 405, "GET /": 200, "GET /x": 404, "DELETE /metrics": 405,
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", request, w.Code, want)
		}
	}
}
