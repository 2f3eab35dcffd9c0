package outbound

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// "A body that drips must not hold the run's slot": once the status is known the run ends, as the status
// says, though the answer never does.
func TestDrippingBody(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		if r.URL.Path == "/500" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("drip ")); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-time.After(time.Millisecond)
		}
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]string{"/200": "", "/500": "500 Internal Server Error: drip"} {
		h := handler(t, Config{}, seams{})
		h.drain = 20 * time.Millisecond
		err := run(t, h, payload{URL: s.URL + path})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		<-ended // the connection is closed
	}
	if h := handler(t, Config{}, seams{}); h.drain != time.Second {
		t.Errorf("a body is read for %v", h.drain)
	}
}
