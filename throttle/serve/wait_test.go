package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// take has three units of pay/a taken, so that the next start comes in a second.
func (a *api) take() {
	a.t.Helper()
	a.wants("decide", `{"scope":"pay/a","cost":3}`, 200, `{}`)
}

func elapsed(t *testing.T, want time.Duration, do func()) {
	t.Helper()
	began := time.Now()
	if do(); time.Since(began) != want {
		t.Errorf("it took %s, want %s", time.Since(began), want)
	}
}

// "The answer comes at the start", and each that waits has a start of its own.
func TestWait(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, a *api) {
		a.take()
		for _, at := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
			go elapsed(t, at, func() { a.wants("decide", `{"scope":"pay/a","wait":"5s"}`, 200, `{"wait_ms":null}`) })
			synctest.Wait()
		}
		elapsed(t, 0, func() { a.wants("decide", `{"scope":"pay/a","wait":"3s"}`, 429, `{"retry_ms":4000}`) })
		<-time.After(3 * time.Second)
		synctest.Wait()
		elapsed(t, time.Second, func() { a.wants("reserve", `{"scope":"pay/a","wait":"20s"}`, 200, `{}`) })
	})
}

// A wait for a place ends when one is released, or denied when its time is over.
func TestWaitForPlace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, a *api) {
		a.wants("lease", `{"scope":"runs","id":"x"}`, 200, `{}`)
		a.wants("lease", `{"scope":"runs","id":"y"}`, 200, `{}`)
		elapsed(t, 3*time.Second, func() { a.wants("lease", `{"scope":"runs","wait":"3s"}`, 429, `{"reason":"run"}`) })
		time.AfterFunc(2*time.Second, func() { a.wants("release", `{"scope":"runs","id":"x"}`, 200, `{}`) })
		a.wants("lease", `{"scope":"runs","wait":"5s","id":"z"}`, 200, `{"lease_ms":10000}`)
	})
}

// A client that goes while it waits gives its start back, unless it may come back for it: "a retry under the same id is not charged
// again", whenever its answer was lost, and another server may have told it of the grant.
func TestClientGoes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		body string
		next time.Duration
	}{
		"without an id": {`{"scope":"pay/a","wait":"5s"}`, time.Second},
		"with an id":    {`{"scope":"pay/a","wait":"5s","id":"x"}`, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, a *api) {
				a.take()
				ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
				defer leave()
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/decide", strings.NewReader(row.body))
				r.Header.Set("Content-Type", "application/json")
				done := make(chan struct{})
				go func() { a.h.ServeHTTP(httptest.NewRecorder(), r); close(done) }()
				<-ctx.Done()
				synctest.Wait()
				began := time.Now()
				if strings.Contains(row.body, "id") {
					elapsed(t, time.Second-time.Millisecond, func() { a.wants("decide", row.body, 200, `{"id":"x"}`) })
					a.wants("decide", row.body, 200, `{"id":"x"}`)
				}
				<-done
				a.wants("decide", `{"scope":"pay/a","wait":"5s"}`, 200, `{}`)
				if took := time.Since(began); took != row.next-time.Millisecond {
					t.Errorf("the next start came after %s", took)
				}
			})
		})
	}
}

func TestMaxWaiting(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *testing.T, a *api) {
		a.h.(*Handler).cfg.MaxWaiting = 1
		a.take()
		go a.wants("decide", `{"scope":"pay/a","wait":"5s"}`, 200, `{}`)
		synctest.Wait()
		a.wants("decide", `{"scope":"pay/a","wait":"5s"}`, 503, `{"error":"too many requests wait at this server"}`)
		a.wants("decide", `{"scope":"pay/a","wait":"5s","at_once":true}`, 200, `{"wait_ms":2000}`)
		<-time.After(2 * time.Second)
		synctest.Wait()
		a.wants("decide", `{"scope":"pay/a","wait":"5s"}`, 200, `{}`)
	})
}
