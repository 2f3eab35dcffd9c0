package outbound

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const benchBody = `{"amount":100,"currency":"EUR","customer":"c-1234567"}`

// BenchmarkRequests compares a task with the same request by a bare http.Client,
// in one run, against one server on loopback.
func BenchmarkRequests(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"id":"ch_1","status":"succeeded"}`)
	}))
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: defaultIdlePerHost}}
	defer client.CloseIdleConnections()
	bare := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "POST", s.URL, strings.NewReader(benchBody))
		if err != nil {
			return err
		}
		req.Header.Set("X-Tenant", "acme")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	h := handler(b, Config{}, seams{})
	t := task(b, payload{Method: "POST", URL: s.URL, Headers: map[string]string{"X-Tenant": "acme"}, Body: benchBody})
	ours := func(ctx context.Context) error { return h.ProcessTask(ctx, t) }

	for _, bench := range []struct {
		name string
		f    func(context.Context) error
	}{{"bare", bare}, {"outbound", ours}} {
		b.Run(bench.name+"/one", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.f(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
		b.Run(bench.name+"/32", func(b *testing.B) {
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := bench.f(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// BenchmarkRefused is a task that fails for good, with secrets to look for.
func BenchmarkRefused(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.Error(w, strings.Repeat(`{"error":"declined"} `, 40), http.StatusPaymentRequired)
	}))
	defer s.Close()
	h := handler(b, Config{}, seams{})
	for name, body := range map[string]string{"small": benchBody, "500KiB": `["` + strings.Repeat("0123456789abcde ", 500<<6) + `"]`} {
		t := task(b, payload{Method: "POST", URL: s.URL, Headers: map[string]string{"Authorization": "Bearer 0123456789"}, Body: body})
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := h.ProcessTask(b.Context(), t); err == nil {
					b.Fatal("no error")
				}
			}
		})
	}
}

// BenchmarkParse is what a task costs before anything is sent.
func BenchmarkParse(b *testing.B) {
	t := task(b, payload{Method: "POST", URL: "https://api.example.com/charge", Headers: map[string]string{"X-Tenant": "acme"}, Body: benchBody})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseCall(t.Payload(), nil, nil, defaultUserAgent); err != nil {
			b.Fatal(err)
		}
	}
}
