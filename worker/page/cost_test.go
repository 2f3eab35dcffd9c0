package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// "≤ 50 Redis commands a snapshot", whatever the number of scopes and tasks.
func TestSnapshotCost(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, anyProvider, nil)
	s.use("payments")
	for n := range 1200 {
		task := queue.Task{Type: "mail", ID: "one", Scope: fmt.Sprintf("payments/t%d", n), Queue: "q"}
		task.ID = fmt.Sprint("x", n)
		if _, err := s.queue.Enqueue(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 40 {
		s.enqueue(fmt.Sprint("provider", n), fmt.Sprint("p", n, "-"), 2)
	}
	h := pageOfSite(t, s)
	for _, path := range []string{"/", "/scope?scope=payments", "/scope?scope=payments/t1", "/waiters?scope=payments/t1", "/task?id=x7", "/workers", "/history"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		screen, _ := h.screenOf(r.URL.Path)
		topic, err := screen.topic(r, s.who)
		must(t, err)
		last, err := topic.load(t.Context(), nil)
		must(t, err)
		for range slowParts + 1 {
			h.following.read = h.following.read.Add(-snapshotEvery)
			if scope, is := last.(*scopeState); is {
				old := *scope
				old.slow = [slowParts]slowPart{}
				last = &old
			}
			n := redistest.Total(redistest.Commands(t, s.rdb, func() {
				if last, err = topic.load(context.WithoutCancel(t.Context()), last); err != nil {
					t.Error(err)
				}
			}))
			if most := topic.cost(last); n > snapshotCommands || n > max(most, quickCost+slowCost[slowUsers]) {
				t.Errorf("%s sent %d commands, and says %d", path, n, most)
			}
		}
	}
}

// "Bound it": the workers screen sends at most 50 commands a snapshot with 100 servers and 30 queues, says how many there are, and has read
// all of them after some snapshots.
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
		if _, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "payments", Queue: fmt.Sprint("q", n)}); err != nil {
			t.Fatal(err)
		}
	}
	h := pageOfSite(t, s)
	clock := now
	h.now = func() time.Time { return clock }
	r := httptest.NewRequest(http.MethodGet, "/workers", nil)
	topic, err := h.workersTopic(r, s.who)
	must(t, err)
	var last any
	rounds := 0
	for ; rounds < 60; rounds++ {
		most := topic.cost(last)
		n := redistest.Total(redistest.Commands(t, s.rdb, func() {
			if last, err = topic.load(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}))
		if n > snapshotCommands || n > most {
			t.Errorf("snapshot %d sent %d commands, and says %d", rounds, n, most)
		}
		clock = clock.Add(snapshotEvery)
		st := last.(*workersState)
		read := 0
		for _, q := range st.queues {
			if q.Known {
				read++
			}
		}
		if st.all != many {
			t.Fatalf("%d servers", st.all)
		}
		if len(st.servers) == many && read == queues {
			break
		}
	}
	if rounds > 12 {
		t.Errorf("not all were read after %d snapshots", rounds)
	}
	data, _, err := h.workersView(r, s.who, last)
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
	_, body := s.get("/workers")
	has(t, body, "asynq servers: 100, of which 20 were read so far")
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
