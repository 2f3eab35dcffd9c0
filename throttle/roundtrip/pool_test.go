package roundtrip

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// Each request is sent with the key of the member that it was granted, and an answer pauses that member alone. The caller's request stays
// as it was.
func TestSign(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Authorization")
		if got[key]++; key == "key-of-a" {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	policy, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  p:
    pool: {members: [a, b], choose: drain}
    scopes: {"@*": {rules: [{name: key, algorithm: sliding-window, limit: 4, per: 1h}]}}
`))
	must(t, err)
	limiter, err := throttle.New(redistest.Client(t), policy, throttle.Config{Prefix: redistest.Prefix(t)})
	must(t, err)
	client := &http.Client{Transport: &Transport{
		Limiter: limiter, Scope: always("p/x"), Refuse: true,
		Sign: func(r *http.Request, member string) { r.Header.Set("Authorization", "key-of-"+member) },
	}}
	for range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		must(t, err)
		resp, err := client.Do(req)
		must(t, err)
		must(t, resp.Body.Close())
		if req.Header.Get("Authorization") != "" {
			t.Error("the caller's request has a key")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if got["key-of-a"] != 1 || got["key-of-b"] != 4 {
		t.Errorf("%v", got)
	}
	if d, err := limiter.Peek(t.Context(), throttle.Request{Scope: "p/x"}); err != nil || d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
}
