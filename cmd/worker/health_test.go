package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

type fakeHealth struct {
	redis, limits error
	workers       int
}

func (f fakeHealth) RedisErr(context.Context, time.Duration) error { return f.redis }
func (f fakeHealth) LimitsErr() error                              { return f.limits }
func (fakeHealth) FileErr() error                                  { return nil }
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
		statusHandler(h, http.NotFoundHandler(), false).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var a healthAnswer
		must(t, json.Unmarshal(rec.Body.Bytes(), &a))
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
	h := statusHandler(&health{of: fakeHealth{}}, http.NotFoundHandler(), false)
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

// docs/operations.md: "the limits of before stay in force until the file is mended": /healthz and a metric say so, and the log does
// not say that nothing was started.
func TestFaultyEdit(t *testing.T) {
	t.Parallel()
	path := limitsFile(t, someLimits)
	r := start(t, whole, nil, "-redis", ownRedis(t), "-limits", path, "-listen", "127.0.0.1:0")
	r.says("msg=ready")
	base := "http://" + r.found("addr")
	is := func(faulty int, parts ...string) {
		t.Helper()
		redistest.WaitFor(t, "the metric to be there", bound, func() bool {
			return strings.Contains(get(t, base+"/metrics", http.StatusOK), fmt.Sprintf("\nheadway_limits_file_faulty %d\n", faulty))
		})
		a := getHealth(t, base, http.StatusOK)
		if a.Status != "ok" || a.Limits != "ok" {
			t.Errorf("%+v", a)
		}
		says(t, a.LimitsFile, parts...)
	}
	is(0, "ok")
	write(t, path, someLimits+"      - {name: other, algorithm: later}\n")
	is(1, "invalid limits file; keeping the current limits: "+path+":5:", ", and 1 more; the log has all")
	says(t, r.stderr.String(), "!nothing was started")
	write(t, path, strings.Replace(someLimits, "200", "300", 1))
	is(0, "ok")
}
