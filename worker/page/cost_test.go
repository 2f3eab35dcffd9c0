package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// A reading of an open screen sends some 60 commands at most, whatever the number of scopes and tasks.
func TestSnapshotCost(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, anyProvider, nil)
	s.use("payments")
	for n := range 1200 {
		s.enqueue(fmt.Sprintf("payments/t%d", n), fmt.Sprint("x", n, "-"), 1)
	}
	for n := range 40 {
		s.use(fmt.Sprint("provider", n))
		s.enqueue(fmt.Sprint("provider", n), fmt.Sprint("p", n, "-"), 2)
	}
	sent := countOn(s.rdb, "zcard") // one for each line takes the server a thousandth of a millisecond
	h := pageOfSite(t, s)
	for _, path := range []string{"/", "/scope?scope=payments", "/scope?scope=payments/t1", "/waiters?scope=payments/t1", "/task?id=x7-0", "/workers", "/failures", "/history"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		topic := h.screens()[r.URL.Path].topic(r, s.actor)
		last, err := topic.load(t.Context(), nil)
		must(t, err)
		for range 3 {
			h.following.read = h.following.read.Add(-snapshotEvery)
			if scope, is := last.(*scopeState); is {
				old := *scope
				old.read = time.Time{} // its details are due
				last = &old
			}
			before := sent.Load()
			if last, err = topic.load(t.Context(), last); err != nil {
				t.Error(err)
			}
			if n := int(sent.Load() - before); n > 66 {
				t.Errorf("%s sent %d commands", path, n)
			}
		}
	}
}

// countOn counts the commands that a client sends, but those with some names; those of a script are one.
func countOn(rdb *redis.Client, but ...string) (n *atomic.Int64) {
	n = new(atomic.Int64)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if !slices.Contains(but, cmd.Name()) {
			n.Add(1)
		}
		return send()
	}))
	return n
}

// The workers screen has all of 100 servers and 30 queues at once, and reads each server every 15 seconds.
func TestManyServers(t *testing.T) {
	t.Parallel()
	const many, queues = 100, 30
	s := newSite(t, nil)
	now := time.Now()
	for n := range many {
		key, served := fmt.Sprintf("asynq:servers:{host%d:%d:x}", n, n), map[string]int{fmt.Sprint("q", n%queues): 1 + n}
		must(t, s.rdb.Set(t.Context(), key, serverInfo(fmt.Sprint("host", n), n, now.Add(-time.Duration(n)*time.Minute), served), time.Hour).Err())
		must(t, s.rdb.ZAdd(t.Context(), "asynq:servers", redis.Z{Score: float64(now.Add(time.Hour).Unix()), Member: key}).Err())
	}
	for n := range queues {
		_, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "payments", Queue: fmt.Sprint("q", n)})
		must(t, err)
	}
	h := pageOfSite(t, s)
	state, err := h.loadWorkers(t.Context(), nil, nil)
	must(t, err)
	again := redistest.Total(redistest.Commands(t, s.rdb, func() {
		_, err = h.loadWorkers(t.Context(), nil, state)
		must(t, err)
	}))
	if again > 10+6*(queues+1) {
		t.Errorf("a second reading sent %d commands", again)
	}
	data, _, err := h.workersView(httptest.NewRequest(http.MethodGet, "/workers", nil), s.actor, state)
	must(t, err)
	d := data.(workersData)
	if d.All != many || len(d.Servers) != rowsAPage || d.Pages.Last != 2 || d.Servers[0].Host != "host99" || d.Servers[0].Queues["q9"] != 100 {
		t.Errorf("%d servers, %d of them on the first of %d pages, the oldest %+v", d.All, len(d.Servers), d.Pages.Last, d.Servers[0])
	}
	for _, q := range d.Queues {
		if q.Served != (q.Name != "default") || q.Unserved != (q.Name == "default") {
			t.Errorf("%+v", q)
		}
	}
	s.sees(http.StatusOK, "/workers", "asynq servers: 100")
}

// serverInfo is what a server of asynq writes of itself.
func serverInfo(host string, pid int, started time.Time, queues map[string]int) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), host)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(pid))
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 10)
	for name, weight := range queues {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		entry = protowire.AppendVarint(protowire.AppendTag(entry, 2, protowire.VarintType), uint64(weight))
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), entry)
	}
	b = protowire.AppendString(protowire.AppendTag(b, 7, protowire.BytesType), "active")
	at := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(started.Unix()))
	return protowire.AppendBytes(protowire.AppendTag(b, 8, protowire.BytesType), at)
}

// "100 viewers cost Redis what one does", and without viewers Redis is not read.
func TestHubReadsOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(time.Now)
		var n atomic.Int64
		var away atomic.Bool
		one := topic{key: "a", load: func(context.Context, any) (any, error) {
			if away.Load() {
				return nil, errors.New("gone")
			}
			return n.Add(1), nil
		}}
		var stops []func()
		for range 100 {
			_, stop := h.watch(one)
			stops = append(stops, stop)
			h.get(t.Context(), one)
		}
		if n := n.Load(); n != 1 {
			t.Errorf("100 viewers that came at once: %d readings", n)
		}
		<-time.After(10*time.Second + time.Millisecond)
		synctest.Wait()
		if n := n.Load(); n < 10 || n > 12 {
			t.Errorf("ten seconds later: %d readings", n)
		}
		for _, stop := range stops {
			stop()
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		at := n.Load()
		<-time.After(time.Hour)
		synctest.Wait()
		if n := n.Load(); n != at {
			t.Errorf("%d readings without viewers", n-at)
		}
		away.Store(true)
		if st := h.get(t.Context(), one); st.err == nil || st.data != at {
			t.Errorf("while Redis is away: %+v, want what was read last, %d", st, at)
		}
	})
}

// A reading that takes long is followed by a rest of 20 times as long, and one that began before a change is not kept.
func TestReadingsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(time.Now)
		var n atomic.Int64
		slow := topic{key: "slow", load: func(context.Context, any) (any, error) {
			reading := n.Add(1)
			<-time.After(200 * time.Millisecond)
			return reading, nil
		}}
		_, stop := h.watch(slow)
		<-time.After(42 * time.Second)
		stop()
		if n := n.Load(); n < 9 || n > 11 {
			t.Errorf("%d readings in 42 s, want one each 4.2 s", n)
		}
		go h.get(t.Context(), slow)
		synctest.Wait()
		h.forget()
		if st := h.get(t.Context(), slow); st.data != n.Load() || n.Load() < 11 {
			t.Errorf("after a change: %+v, of %d readings", st, n.Load())
		}
	})
}

// An actor with too many requests that are not answered yet is refused another, also where a stream is asked for.
func TestTooMuchOpen(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := pageOfSite(t, s)
	s.handler = h.mux
	for range mostOpen {
		if _, ok := h.open.enter("root"); !ok {
			t.Fatal("refused")
		}
	}
	for _, path := range []string{"/scope?scope=payments", "/live?at=" + url.QueryEscape("/scope?scope=payments")} {
		code, body, header := s.do(httptest.NewRequest(http.MethodGet, path, nil))
		if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %v", path, code, header)
		}
		has(t, body, "root has 100 screens of this page open, which is the most: close some")
	}
	s.actor.Name = "ben"
	s.sees(http.StatusOK, "/")
}

// Draining pauses a scope, and its screen shows what still runs until nothing does. The failures show what runs by scope, with the task that
// a worker has had for the longest.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{}) // whose tasks wait for no turn
	s.enqueue("payments/acme", "<b>", 2)
	_, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", ID: "elsewhere", Scope: "search"})
	must(t, err)
	end := s.holdsRuns()
	h := pageOfSite(t, s)
	s.handler = h.mux
	shown := func(texts ...string) string {
		t.Helper()
		h.forget() // and reads Redis anew
		return s.sees(http.StatusOK, "/drain?scope=payments/acme", texts...)
	}
	redistest.WaitAsking(t, "both to run", 15*time.Second, func() bool { return strings.Contains(shown(), "2 tasks are with a worker") })
	shown("payments/acme is not paused", `verb=drain`)
	row := regexp.MustCompile(`data-key="runs payments/acme">.* data-label="Tasks" class="n">2<.*>&lt;b&gt;[01]</a>.* data-label="Picked up"><time`)
	redistest.WaitAsking(t, "the server to say what it runs", time.Minute, func() bool {
		h.forget()
		_, body := s.get("/failures")
		return row.MatchString(body)
	})
	s.actor = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	lacks(t, s.sees(http.StatusOK, "/failures"), ">payments/acme<")
	s.actor = Actor{Name: "root", Role: RoleAdmin}
	s.sees(http.StatusOK, "/scope?scope=payments/acme", "verb=drain")
	fields := form("verb", "drain", "scope", "payments/acme", "for", "2h", "reason", "they move")
	s.sends(http.StatusOK, "/change", fields, "Pause and drain it", "Nothing is done yet")
	fields.Set("do", "make")
	fields.Set("expect", fmt.Sprint(s.version()))
	code, _, header := s.do(formTo("/change", fields))
	if to := header.Get("Location"); code != http.StatusSeeOther || to != "/drain?scope=payments%2Facme" {
		t.Fatalf("%d, to %q", code, to)
	}
	lacks(t, shown("2 tasks of payments/acme still run", "&lt;b&gt;0", "verb=resume", "until"), "<b>0", "elsewhere")
	s.sees(http.StatusOK, "/scope?scope=payments/acme", "What still runs")
	end()
	redistest.WaitAsking(t, "them to end", 15*time.Second, func() bool { return strings.Contains(shown(), "No task of payments/acme runs") })
	if v, err := s.store.Current(t.Context()); err != nil || len(v.Overrides) != 1 || v.Reason != "they move" {
		t.Errorf("%+v, %v", v, err)
	}
}
