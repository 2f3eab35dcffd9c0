package roundtrip

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// fake is an API in fake time, which answers with a status, or not at all while that is 0.
type fake struct{ status, calls int }

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	f.calls++
	switch err := r.Context().Err(); {
	case err != nil:
		return nil, err
	case f.status == 0:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	return &http.Response{StatusCode: f.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// docs/breaker.md, "What counts": a client that uses package roundtrip needs nothing else. A server that is down opens the breaker, a
// request is the probe, and one that succeeds closes it.
func TestDeadServerOpensBreaker(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]int{"no answer": 0, "502": http.StatusBadGateway} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Miniredis(t)
				pol, err := limitsyaml.Parse("f", []byte(`limits: {p: {hosts: [api.test], breaker: {of: 4, wait: 10s}, rules: [{name: r, algorithm: sliding-window, limit: 100, per: 1s}]}}`))
				must(t, err)
				l, err := throttle.New(rdb, pol, throttle.Config{})
				must(t, err)
				api := &fake{status: down}
				c := &http.Client{Transport: &Transport{Limiter: l, Scope: always("p/x"), Refuse: true, Base: api}}
				ask := func(url string) (limited *LimitedError) {
					_ = errors.As(get(t, c, url), &limited)
					return limited
				}
				pass := func(d time.Duration) { <-time.After(d) }
				for range 4 { // none of these says anything of the API
					ctx, cancel := context.WithCancel(t.Context())
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test", nil)
					must(t, err)
					cancel()
					if resp, err := c.Do(r); err == nil {
						_ = resp.Body.Close()
					}
					if down != 0 {
						_ = ask("http://other.test")
					}
				}
				pass(time.Second)
				before := api.calls
				for range 4 {
					if limited := ask("http://api.test"); limited != nil {
						t.Fatalf("it is open already: %v", limited)
					}
				}
				pass(time.Second)
				if limited := ask("http://api.test"); limited == nil || limited.RetryAfter > 10*time.Second || api.calls != before+4 {
					t.Errorf("it is not open: %v after %d calls", limited, api.calls-before)
				}
				pass(10 * time.Second)
				if limited := ask("http://api.test"); limited != nil || api.calls != before+5 {
					t.Errorf("no probe: %v", limited)
				}
				if limited := ask("http://api.test"); limited == nil || limited.RetryAfter != 20*time.Second {
					t.Errorf("the probe has failed: %+v", limited)
				}
				pass(20 * time.Second)
				api.status = http.StatusOK
				for i := range 20 {
					if limited := ask("http://api.test"); (limited == nil) != (i < 10) {
						t.Errorf("call %d after the probe: %v", i, limited)
					}
				}
			})
		})
	}
}
