package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/network"
	"github.com/headway-go/headway/test/redistest"
)

const crash = `
limits:
  p:
    rules:
      - {name: all, algorithm: token-bucket, limit: 20, per: 1s, burst: 14, margin: 500ms}
      - {name: parallel, algorithm: concurrency, limit: 12, lease: 2s}
`

// "A task killed before its start runs again at any max retry; one killed while running uses an attempt, as in asynq."
//
// "a last attempt that has reached an API does not run again"
//
// asynq brings the tasks of a dead worker back when their lease is half a minute over, and looks once a minute and when a worker
// starts. So the test takes a little more than a minute.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	// So that several wait for their moment, and none for another to end.
	s := newSite(t, strings.NewReplacer("limit: 20,", "limit: 80,", "limit: 12,", "limit: 40,", "burst: 14", "burst: 48").Replace(crash))
	far := network.NewProxy(t, s.redis.Addr()) // so that it takes tasks long before their starts
	far.Delay(50*time.Millisecond, 0)
	victim := s.worker("-redis", "redis://"+far.Addr(), "-listen", "127.0.0.1:0")
	metrics := "http://" + listening(t, victim) + "/metrics"
	s.worker("-concurrency", "4") // so that most of the tasks are the victim's
	const n = 200
	s.enqueue(s.lines(n, func(i int) task {
		return task{Scope: "p/x", MaxRetry: 2 * (i % 4 / 3), Query: "?latency=1s"}
	}))
	redistest.WaitFor(t, "the victim to run some and to have others wait for their moment", bound, func() bool {
		if s.succeeded() < n/8 {
			return false
		}
		page := get(t, metrics, http.StatusOK)
		return counted(t, page, `headway_leases\{rule="p:parallel"\} (\d+)`) > 1 && s.running() > 8 && len(s.leased()) > s.running()+4
	})
	victim.Kill()
	held := s.leased() // what either worker had taken; the other's go on

	s.leasesEnd(held)
	s.worker()
	redistest.WaitAsking(s.T, "every task to have ended", 2*bound, func() bool {
		s.wake()
		return s.nothingLeft()
	})

	cut := map[string]time.Duration{} // running when their worker was killed: for how long
	for _, c := range s.api.Log() {
		if c.Status == countapi.StatusGone {
			cut[c.ID] = c.Departed - c.Arrived
		}
	}
	rep := s.report()
	if rep.Exceeded() || len(rep.Unknown)+len(rep.Mismatched)+len(rep.OverBudget) > 0 {
		t.Errorf("%q", rep.Violations())
	}
	if len(cut) == 0 {
		t.Error("none was killed while it ran: the test tested less than it should")
	}
	again := 0
	for _, id := range held {
		_, ran := cut[id]
		switch lost := slices.Contains(rep.Lost, id); {
		case s.maxRetry(id) == 0 && ran && !lost:
			t.Errorf("%s was killed in its last attempt, %v after it had reached the API, and ran again", id, cut[id])
		case s.maxRetry(id) == 0 && !lost:
			again++
		}
	}
	if again == 0 {
		t.Error("no task of max retry 0 was taken and had not begun: the test tested less than it should")
	}
	for _, id := range rep.Lost {
		// One that is cut off between its start and the API's first byte is not seen
		// there, and had begun all the same: that is in its error.
		task, err := s.inspector.GetTaskInfo("default", id)
		if err != nil || !slices.Contains(held, id) || s.maxRetry(id) > 0 ||
			task.State != asynq.TaskStateArchived || !strings.Contains(task.LastErr, "a crash ended its last attempt") {
			t.Errorf("%s, of max retry %d, is lost: %+v, %v", id, s.maxRetry(id), task, err)
		}
	}
	// Those lost that the API did not see had begun, each a moment before: others had not.
	if unseen := len(rep.Lost) - len(cut); unseen > len(held)/2 {
		t.Errorf("%d of %d ended with their worker, and only %d were running", len(rep.Lost), len(held), len(cut))
	}
	for _, id := range rep.Duplicates {
		if !slices.Contains(held, id) {
			t.Errorf("%s ran twice, and nobody had killed it", id)
		}
	}
	t.Logf("%d were taken when the worker was killed, %d of them running; %d ended with it, %d of max retry 0 ran later, %d ran twice",
		len(held), len(cut), len(rep.Lost), again, len(rep.Duplicates))
}

// running is how many calls the API has that it has not answered.
func (s *site) running() (n int) {
	for _, c := range s.api.Log() {
		if c.Departed == countapi.Open {
			n++
		}
	}
	return n
}

func (s *site) maxRetry(id string) int {
	for _, task := range s.tasks {
		if task.ID == id {
			return task.MaxRetry
		}
	}
	return -1
}

// leases is where asynq keeps what workers have taken, by when their leases end.
const leases = "asynq:{default}:lease"

// leased returns the ids that workers have taken.
func (s *site) leased() []string {
	s.Helper()
	ids, err := s.rdb.ZRange(context.Background(), leases, 0, -1).Result()
	must(s, err)
	return ids
}

// leasesEnd waits until the leases of what a dead worker had have been over for
// half a minute: then the next worker that starts brings those tasks back. With
// -short the leases are put back instead.
func (s *site) leasesEnd(held []string) {
	s.Helper()
	ctx := context.Background()
	const slack = 30 * time.Second
	redistest.WaitAsking(s.T, "the leases of the dead worker to end", 2*bound, func() bool {
		young := 0
		for _, id := range held {
			ends, err := s.rdb.ZScore(ctx, leases, id).Result()
			if err != nil || time.Since(time.Unix(int64(ends), 0)) > slack {
				continue // it has been done, or its time has come
			}
			young++
			if testing.Short() && (s.succeeded() > len(s.tasks)*3/4 || float64(time.Now().Unix()) > ends) {
				s.rdb.ZAddXX(ctx, leases, redis.Z{Score: 1, Member: id})
			}
		}
		return young == 0
	})
}

// wake brings back at once what asynq has taken from a dead worker: such a task
// waits as one that failed does, and nobody minds when it is woken early.
func (s *site) wake() {
	s.Helper()
	tasks, err := s.inspector.ListRetryTasks("default", asynq.PageSize(1000))
	must(s, err)
	for _, task := range tasks {
		if task.LastErr == asynq.ErrLeaseExpired.Error() {
			_ = s.inspector.RunTask("default", task.ID) // it may have gone meanwhile
		}
	}
}

// "SIGTERM at any moment: exit 0, nothing lost": while it starts, while tasks run and while they wait in their handlers.
func TestTerminatedAtAnyMoment(t *testing.T) {
	t.Parallel()
	s := newSite(t, crash)
	n, rounds := 200, 8 // more than a round can use of the quota
	if testing.Short() {
		n, rounds = 80, 3
	}
	batch := 0
	more := func() {
		batch++
		s.enqueue(s.lines(n/2, func(i int) task {
			return task{ID: fmt.Sprintf("%d-%d", batch, i), Scope: "p/x", MaxRetry: i % 2, Query: "?latency=100ms"}
		}))
	}
	more()
	connected := func() int64 { // since Redis started: those that end stay in CLIENT LIST for a moment
		info, err := s.rdb.InfoMap(context.Background(), "stats").Result()
		must(t, err)
		n, err := strconv.ParseInt(info["Stats"]["total_connections_received"], 10, 64)
		must(t, err)
		return n
	}
	for round := range rounds {
		before := connected()
		w := s.begin()
		// Once it speaks to Redis it heeds signals; before that it is a process that has not begun.
		redistest.WaitFor(t, "it to connect", bound, func() bool { return connected() > before })
		moment := time.Duration(round) * time.Duration(rand.Int64N(int64(200*time.Millisecond)))
		<-time.After(moment)
		w.Terminate()
		w.Ends(0)
		t.Logf("round %d: told to stop %v after it had connected; %d of %d done", round, moment, s.succeeded(), n)
		if text := w.Stderr.String(); strings.Contains(text, "level=ERROR") || strings.Contains(text, "panic") {
			t.Errorf("round %d: %s", round, text)
		}
	}
	w := s.worker("-listen", "127.0.0.1:0")
	metrics := "http://" + listening(t, w) + "/metrics"
	more() // however slow the rounds were, tasks are left to wait
	redistest.WaitFor(t, "tasks to wait in their handlers", bound, func() bool {
		return counted(t, get(t, metrics, http.StatusOK), `headway_held (\d+)`) > 0
	})
	w.Terminate()
	w.Ends(0)
	s.worker()
	s.until(len(s.tasks))
	s.perfect()
}

// A second signal ends a worker at once with 130; what was running is not lost.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	s := newSite(t, crash)
	w := s.worker()
	s.enqueue(s.line(task{ID: "slow", Scope: "p/x", MaxRetry: 3, Query: "?latency=1m"}))
	redistest.WaitFor(t, "the call", bound, func() bool { calls, _ := s.api.Counts(); return calls == 1 })
	w.Terminate()
	w.Says("stopping")
	w.Terminate()
	w.Ends(130)
	info, err := s.inspector.GetTaskInfo("default", "slow")
	if err != nil || info.State != asynq.TaskStateActive {
		t.Errorf("the task is %+v, %v; want it active, for asynq to bring back", info, err)
	}
}
