package usage

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/inbound"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/roundtrip"
)

// recording is a limiter whose recorder is wired by one line.
func recording(t *testing.T, rdb redis.UniversalClient, rules string) (l *throttle.Limiter, r *Recorder, prefix string) {
	t.Helper()
	prefix = redistest.Prefix(t)
	r = newRecorder(t, rdb, prefix, "shop")
	l, err := throttle.New(rdb, policy.PerHour(rules, 10), throttle.Config{Prefix: prefix, OnSpent: r.Record})
	must(t, err)
	return l, r, prefix
}

// "throttle.Config{OnSpent: recorder.Record} records what requests are granted by Allow, Decide and Wait, and by packages
// roundtrip and inbound. A refund takes it back, Settle corrects it": nothing for those that are denied, or that only look.
func TestRecord(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"Redis": redistest.Client(t), "miniredis": mini, "a cluster": redistest.Cluster(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, r, prefix := recording(t, rdb, "p")
			ctx := t.Context()
			want := func(step string, sum Sum, lines ...string) {
				t.Helper()
				flush(t, r)
				if got := read(t, rdb, prefix, "p", time.Hour); got.All != sum || !slices.Equal(byUnit(got), lines) {
					t.Errorf("%s: %+v by %q, want %+v by %q", step, got.All, byUnit(got), sum, lines)
				}
			}
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
			defer api.Close()
			client := &http.Client{Transport: &roundtrip.Transport{
				Limiter: l, Scope: func(*http.Request) string { return "p/out" },
				Costs:  func(*http.Request) policy.Costs { return policy.Costs{"tokens": 900} },
				Settle: func(*http.Response) (policy.Costs, bool) { return policy.Costs{"requests": 2, "tokens": 120}, true },
			}}
			resp, err := client.Get(api.URL)
			must(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			must(t, errors.Join(err, resp.Body.Close()))
			want("roundtrip", Sum{2, 1}, "shop  2/1 map[tokens:120]")

			served := inbound.Wrap(http.NotFoundHandler(), l, func(*http.Request) string { return "p/in" })
			served.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			want("inbound", Sum{3, 2}, "shop  3/2 map[tokens:120]")

			if _, err := l.Peek(ctx, throttle.Request{Scope: "p"}); err != nil {
				t.Fatal(err)
			}
			d, err := l.Decide(ctx, throttle.Request{Scope: "p", Cost: 4})
			must(t, err)
			if refused, err := l.Decide(ctx, throttle.Request{Scope: "p", Cost: 9}); err != nil || refused.Allowed {
				t.Fatalf("%+v, %v", refused, err)
			}
			want("Decide", Sum{7, 3}, "shop  7/3 map[tokens:120]")
			must(t, l.Refund(ctx, d.Grant))
			want("Refund", Sum{3, 2}, "shop  3/2 map[tokens:120]")
			if n := r.Lost(); n != 0 {
				t.Errorf("%d units are lost", n)
			}
		})
	}
}

// "It costs what Spent does": no more than that is allocated for it.
func TestRecordAllocatesNothing(t *testing.T) {
	r := newRecorder(t, redistest.Client(t), "hw", "app")
	one := throttle.Spent{Scope: "p/x", Tasks: 1, Units: 1}
	r.Record(one)
	if got := testing.AllocsPerRun(100, func() { r.Record(one) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
