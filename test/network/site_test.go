package network

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

// limits has one rule. Its margin is for a machine that runs other tests too: it is part of the
// window that is kept and not of the one that is judged.
var limits = fmt.Sprintf("limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: %d, per: 2s, margin: 500ms}]}}\n", limit)

const margin = 500 * time.Millisecond

// concurrency is that of each worker.
const concurrency = 16

// limit is what the rule admits at once, and quota what it admits in a second.
const (
	limit = 100
	quota = limit / 2.5
)

// site is two workers, each with a network of its own to one Redis, and the API that
// their tasks call.
type site struct {
	*testing.T
	redis     *redistest.Server
	rdb       *redis.Client // beside the networks
	inspector *asynq.Inspector
	api       *countapi.Server
	calls     *http.Client
	policy    *policy.Policy
	tasks     []checker.Task
	workers   []*member

	mu     sync.Mutex
	starts map[string]time.Time // as the handlers saw them, the last of each task
}

// member is one worker.
type member struct {
	net    *Proxy
	server *worker.Server
	ran    atomic.Int64
}

func newSite(t *testing.T) *site {
	t.Helper()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	api, err := countapi.Start("127.0.0.1:0", countapi.Config{})
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	s := &site{
		T: t, redis: redistest.NewServer(t), api: api, policy: policy,
		calls:  &http.Client{Transport: transport, Timeout: bound},
		starts: map[string]time.Time{},
	}
	s.rdb = s.redis.Client(t)
	s.Cleanup(s.explain)
	s.inspector = asynq.NewInspectorFromRedisClient(s.rdb)
	for range 2 {
		s.workers = append(s.workers, s.worker())
	}
	return s
}

// worker makes a worker, which does not run yet.
func (s *site) worker() *member {
	s.Helper()
	m := &member{net: NewProxy(s.T, s.redis.Addr())}
	rdb := redis.NewClient(&redis.Options{
		Addr: m.net.Addr(), ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	s.Cleanup(func() { _ = rdb.Close() })
	limiter, err := throttle.New(rdb, s.policy, throttle.Config{})
	must(s, err)
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter})
	must(s, err)
	m.server = limits.NewServer(asynq.Config{
		Concurrency: concurrency, LogLevel: asynq.FatalLevel,
		// What asynq takes from a dead worker comes back at once, not after some 15 s.
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	})
	return m
}

// start lets workers loose; they stop when the test ends.
func (s *site) start(workers ...*member) {
	s.Helper()
	for _, m := range workers {
		if err := m.server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			s.mu.Lock()
			s.starts[id] = time.Now()
			s.mu.Unlock()
			if err := s.call(ctx, id, task.Headers()[queue.HeaderScope]); err != nil {
				return err
			}
			m.ran.Add(1)
			return nil
		})); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(m.server.Shutdown)
	}
}

// call is what every task does.
func (s *site) call(ctx context.Context, id, scope string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.api.URL(scope), nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Task-Id", id)
	res, err := s.calls.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// enqueue enqueues n tasks beside the networks: each tenth by asynq's own client, with no
// retry, and the others planned.
func (s *site) enqueue(n int) {
	s.Helper()
	ctx := context.Background()
	limiter, err := throttle.New(s.rdb, s.policy, throttle.Config{})
	must(s, err)
	ours, foreign := queue.NewClient(s.rdb, queue.ClientConfig{Limiter: limiter}), asynq.NewClientFromRedisClient(s.rdb)
	for i := range n {
		task := checker.Task{ID: fmt.Sprint("t", i), Scope: "p/x", Queue: "default", Cost: 1, MaxRetry: i % 2}
		if i%10 == 0 {
			task.MaxRetry = 0
			plain := asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: task.Scope})
			_, err = foreign.EnqueueContext(ctx, plain, asynq.TaskID(task.ID), asynq.MaxRetry(0))
		} else {
			_, err = ours.Enqueue(ctx, queue.Task{Type: "work", Scope: task.Scope, ID: task.ID, MaxRetry: queue.Retries(task.MaxRetry)})
		}
		must(s, err)
		s.tasks = append(s.tasks, task)
	}
}

// arrived is how many tasks have called the API.
func (s *site) arrived() int {
	_, n := s.api.Counts()
	return n
}

// perfect fails the test unless every limit was kept at the API, every task arrived once,
// and asynq has nothing left and has counted no failures but those of lost tasks.
func (s *site) perfect(lost []string) {
	s.Helper()
	redistest.WaitAsking(s.T, "asynq to have nothing left", bound, func() bool {
		info, err := s.inspector.GetQueueInfo("default")
		return err == nil && info.Pending+info.Active+info.Scheduled+info.Retry == 0
	})
	// What calls were longer on their way than the margin is for is not the limiter's.
	jitter := max(0, s.transit()-margin)
	rep := checker.Judge(s, limits, checker.Input{Calls: s.api.Log(), Epoch: s.api.Epoch(), Tasks: s.tasks, Jitter: jitter})
	s.Logf("lost on their way: %q\n%s", lost, rep)
	if !rep.OK() {
		s.Errorf("%q", rep.Violations())
	}
	info, err := s.inspector.GetQueueInfo("default")
	if err != nil || info.Archived != 0 || info.FailedTotal > len(lost) {
		s.Errorf("asynq has %+v, %v; want nothing archived and at most %d failures", info, err, len(lost))
	}
}

// transit returns by how much the calls' times on the way to the API differed.
func (s *site) transit() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	shortest, longest := bound, time.Duration(0)
	for _, c := range s.api.Log() {
		took := s.api.Epoch().Add(c.Arrived).Sub(s.starts[c.ID])
		shortest, longest = min(shortest, took), max(longest, took)
	}
	return longest - shortest
}

// explain tells of a test that failed what arrived when, and where the others are.
func (s *site) explain() {
	if !s.Failed() {
		return
	}
	at := map[string][]time.Duration{}
	var all []string
	for _, c := range s.api.Log() {
		at[c.ID] = append(at[c.ID], c.Arrived)
		all = append(all, fmt.Sprintf("%s %.3f", c.ID, c.Arrived.Seconds()))
	}
	s.Logf("arrived: %s", strings.Join(all, ", "))
	for _, task := range s.tasks {
		if len(at[task.ID]) == 0 {
			info, err := s.inspector.GetTaskInfo("default", task.ID)
			s.Logf("%s has not arrived: %+v, %v", task.ID, info, err)
		}
	}
	held, err := s.rdb.ZRangeWithScores(context.Background(), leases, 0, -1).Result()
	s.Logf("leases at %d: %v, %v", time.Now().Unix(), held, err)
}

// leases is where asynq keeps what workers have taken, by when their leases end.
const leases = "asynq:{default}:lease"

const (
	// leaseTime is for how long asynq gives a task to a worker, which renews that every
	// leaseRenewal; leaseSlack is how long it waits after that.
	leaseTime, leaseRenewal, leaseSlack = 30 * time.Second, 5 * time.Second, 30 * time.Second
)

// orphans returns the tasks that Redis has handed out and no worker has: a worker would
// have renewed their leases.
func (s *site) orphans() (ids []string) {
	s.Helper()
	// Longer than it takes: the worker may be slow, or have been away.
	unrenewed := time.Now().Add(leaseTime - 2*leaseRenewal - partition()).Unix()
	ids, err := s.rdb.ZRangeArgs(context.Background(), redis.ZRangeArgs{Key: leases, ByScore: true, Start: "-inf", Stop: unrenewed}).Result()
	must(s, err)
	return ids
}

// recover has asynq bring orphans back. It does so by itself when the leases have been
// over for half a minute, and looks once a minute and when a server starts: so the time is
// taken from the leases, and a server started.
func (s *site) recover(ids []string) {
	s.Helper()
	if len(ids) == 0 {
		return
	}
	over := time.Now().Add(-2 * leaseSlack).Unix()
	for _, id := range ids {
		must(s, s.rdb.ZAddXX(context.Background(), leases, redis.Z{Score: float64(over), Member: id}).Err())
	}
	s.start(s.worker())
	redistest.WaitAsking(s.T, "asynq to bring them back", bound, func() bool {
		n, err := s.rdb.ZCount(context.Background(), leases, "-inf", fmt.Sprint(over)).Result()
		must(s, err)
		return n == 0
	})
}

// until waits until n tasks have called the API. It returns those that were handed out and
// got lost on their way, as happens where a client gives up waiting for the reply.
//
// asynq fails such a task, and archives it where that was its last attempt: a foreign one
// without retries. It has not run, and stays in the archive until somebody runs it, which
// is done here.
func (s *site) until(n int) (all []string) {
	s.Helper()
	redistest.WaitAsking(s.T, fmt.Sprintf("%d tasks to arrive", n), bound, func() bool {
		if s.arrived() >= n {
			return true
		}
		found := s.orphans()
		all = append(all, found...)
		s.recover(found)
		s.runArchived(all)
		return false
	})
	return all
}

// runArchived runs what asynq has archived, and fails the test unless that was lost on its
// way, and could not be retried.
func (s *site) runArchived(lost []string) {
	s.Helper()
	list, err := s.inspector.ListArchivedTasks("default", asynq.PageSize(1000))
	must(s, err)
	for _, info := range list {
		if info.LastErr != asynq.ErrLeaseExpired.Error() || info.MaxRetry > 0 || !slices.Contains(lost, info.ID) {
			s.Fatalf("asynq has archived %+v", info)
		}
		must(s, s.inspector.RunTask("default", info.ID))
		s.Logf("%s was archived by asynq: the reply that handed it out was lost, and it has no retries", info.ID)
	}
}
