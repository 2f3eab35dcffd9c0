package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// likeScope is a topic that costs what a scope does: parts that it asks for one by one at first, and one of them each time later.
func likeScope(key string, sent *atomic.Int64) topic {
	return topic{key: key, cost: func(last any) int {
		if last == nil {
			return quickCost
		}
		return quickCost + slowCost[slowUsers]
	}, load: func(ctx context.Context, last any) (any, error) {
		sent.Add(quickCost)
		if last != nil {
			sent.Add(int64(slowCost[slowUsers]))
			return last, nil
		}
		for _, n := range slowCost {
			if err := turn(ctx, n); err != nil {
				return nil, err
			}
			sent.Add(int64(n))
		}
		return key, nil
	}}
}

// likeOverview is a topic that costs what the overview does.
func likeOverview(t *testing.T, sent *atomic.Int64) topic {
	t.Helper()
	o, err := (&handler{}).overviewTopic(nil, Actor{})
	must(t, err)
	return topic{key: "overview", cost: o.cost, load: func(context.Context, any) (any, error) {
		sent.Add(int64(o.cost(nil)))
		return "all", nil
	}}
}

// follow counts the updates of a stream, and notes the longest time between two.
func follow(t *testing.T, h *hub, one topic, actor string) (longest, updates *atomic.Int64, stop func()) {
	t.Helper()
	news, end, err := h.watch(one, actor)
	must(t, err)
	longest, updates, done := new(atomic.Int64), new(atomic.Int64), make(chan struct{})
	go func() {
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-news:
				updates.Add(1)
				longest.Store(max(longest.Load(), int64(time.Since(last))))
			case <-done:
				return
			}
		}
	}()
	return longest, updates, func() { end(); close(done) }
}

// spentWithin fails if more was sent than the budget allows for the time since begun.
func spentWithin(t *testing.T, sent int64, begun time.Time) {
	t.Helper()
	if most := budgetMost + int64(snapshotCommands*time.Since(begun).Seconds()) + 1; sent > most {
		t.Errorf("%d commands in %s, more than %d", sent, time.Since(begun), most)
	}
}

// "One viewer starves all": beside 500 streams of another actor, of distinct scopes, an overview is updated every two seconds or so, and
// all together send 50 commands a second.
func TestStreamsShareTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var sent atomic.Int64
		begun := time.Now()
		var stops []func()
		for n := range 500 {
			_, stop, err := h.watch(likeScope(fmt.Sprint("scope", n), &sent), "vic")
			if full := n >= mostOpen; full != errors.As(err, new(*shareError)) {
				t.Fatalf("stream %d: %v", n, err)
			} else if !full {
				stops = append(stops, stop)
			}
		}
		longest, updates, stop := follow(t, h, likeOverview(t, &sent), "anna")
		stops = append(stops, stop)
		for range 60 {
			time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
			spentWithin(t, sent.Load(), begun)
		}
		if n, longest := updates.Load(), time.Duration(longest.Load()); n < 300 || longest > 3*time.Second {
			t.Errorf("the overview had %d updates in 600 s, and none for %s", n, longest)
		}
		for n := range mostOpen {
			if h.state(fmt.Sprint("scope", n)).data == nil {
				t.Errorf("stream %d was never read", n)
			}
		}
		if all := sent.Load(); all < 590*snapshotCommands {
			t.Errorf("the budget was not used: %d commands", all)
		}
		for _, stop := range stops {
			stop()
		}
	})
}

// 200 scopes that one actor loads at once wait for turns, too many of them are refused, and neither the streams nor the loads of others
// wait for them.
func TestLoadsShareTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var sent, answered, refused, late atomic.Int64
		begun := time.Now()
		longest, _, stop := follow(t, h, likeOverview(t, &sent), "anna")
		var all sync.WaitGroup
		for n := range 200 {
			all.Go(func() {
				switch st := h.get(t.Context(), likeScope(fmt.Sprint("scope", n), &sent), "vic"); {
				case st.err == nil:
					answered.Add(1)
				case errors.Is(st.err, errPatience):
					late.Add(1)
				default:
					refused.Add(1)
				}
			})
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a bubble
		asked := time.Now()
		if st := h.get(t.Context(), likeScope("mine", &sent), "ben"); st.err != nil || time.Since(asked) > 8*time.Second {
			t.Errorf("another's load took %s: %v", time.Since(asked), st.err)
		}
		all.Wait()
		spentWithin(t, sent.Load(), begun)
		if d := time.Since(begun); d > loadPatience {
			t.Errorf("a load took %s", d)
		}
		if a, r, l := answered.Load(), refused.Load(), late.Load(); a < 3 || r < 50 || a+r+l != 200 {
			t.Errorf("%d answered, %d refused, %d late", a, r, l)
		}
		if longest := time.Duration(longest.Load()); longest > 4500*time.Millisecond { // three want it for a time
			t.Errorf("the overview had no update for %s", longest)
		}
		stop()
	})
}

// A person who clicks along while an overview is open waits for nothing: streams leave requests their part.
func TestStreamsLeaveLoadsTheirPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var sent atomic.Int64
		_, _, stop := follow(t, h, likeOverview(t, &sent), "anna")
		for n := range 20 {
			_, _, end := follow(t, h, likeScope(fmt.Sprint("open", n), &sent), "anna")
			defer end()
		}
		time.Sleep(10 * time.Minute) //nolint:forbidigo // in a bubble
		asked := time.Now()
		for n := range 2 {
			if st := h.get(t.Context(), likeScope(fmt.Sprint("scope", n), &sent), "anna"); st.err != nil || time.Since(asked) > 0 {
				t.Errorf("load %d took %s: %v", n, time.Since(asked), st.err)
			}
		}
		stop()
	})
}

// A request that comes while the reading of one that was given up still hangs begins its own.
func TestGivenUpReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var readings atomic.Int64
		hangs := make(chan struct{})
		one := topic{key: "one", cost: fixed(0), load: func(context.Context, any) (any, error) {
			if readings.Add(1) == 1 {
				<-hangs
				return "old", nil
			}
			return "new", nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		h.get(ctx, one, "anna")
		if st := h.get(t.Context(), one, "anna"); st.data != "new" {
			t.Errorf("%+v", st)
		}
		close(hangs)
		synctest.Wait()
		if st := h.state("one"); st.data != "new" || len(h.open)+len(h.loads)+len(h.under) > 0 {
			t.Errorf("%+v, %v, %v, %v", st, h.open, h.loads, h.under)
		}
	})
}

// 200 scopes loaded at once cost Redis no more than the budget, counted by Redis.
func TestScopesAtOnceCost(t *testing.T) {
	t.Parallel()
	limits := "limits: {payments: {rules: [{name: account, algorithm: fixed-window, limit: 2, per: 30d}], scopes: {"
	for n := range 200 {
		limits += fmt.Sprintf("t%d: {}, ", n)
	}
	s := newSiteUnder(t, limits+"}}}", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	var codes [600]atomic.Int64
	n := redistest.Total(redistest.Commands(t, s.rdb, func() {
		var all sync.WaitGroup
		for n := range 200 {
			all.Go(func() {
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, fmt.Sprintf("/scope?scope=payments/t%d", n), nil).WithContext(ctx))
				codes[w.Code].Add(1)
				if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
			})
		}
		redistest.WaitFor(t, "answers", time.Minute, func() bool {
			return codes[http.StatusOK].Load() > 5 && codes[http.StatusTooManyRequests].Load() >= 50
		})
		cancel()
		all.Wait()
	}))
	own := snapshotCommands + int64(2*limitsCost*time.Since(begun).Seconds()) // of the limits by which rights are checked
	spentWithin(t, int64(n)-own, begun)
	if codes[http.StatusInternalServerError].Load() > 0 {
		t.Error("some failed")
	}
}

// An actor that has too much open is told so, also where a stream is asked for.
func TestTooMuchOpen(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := pageOfSite(t, s)
	s.handler = h.mux
	for range mostOpen {
		must(t, h.hub.enter("root"))
	}
	for _, path := range []string{"/scope?scope=payments", "/live?at=" + url.QueryEscape("/scope?scope=payments")} {
		code, body, header := s.do(httptest.NewRequest(http.MethodGet, path, nil))
		if code != http.StatusTooManyRequests || header.Get("Retry-After") != retryAfter {
			t.Errorf("%s: %d %v", path, code, header)
		}
		has(t, body, "root has 100 screens of this page open, which is the most: close some")
	}
}
