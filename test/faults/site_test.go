//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// servers is what the programs run against: one server, a SentinelSet or a ClusterSet.
type servers interface {
	URL() string
	Client(t testing.TB) redis.UniversalClient
	// TakesWrite says whether whoever is in charge of a key now takes a write of it.
	TakesWrite(key string) bool
}

// single is a server alone.
type single struct{ *redistest.Server }

func (s single) URL() string { return "redis://" + s.Addr() }

func (s single) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return s.Server.Client(t)
}

// 50 starts a second: the margin, which package e2e explains, is part of the window that is kept. No failover on these servers is
// as quick as the window, so whatever a new master has forgotten, no window may hold more than the limit. The hour's rule binds
// nobody: it keeps what has been counted, to be compared with what arrived.
const limits = `
limits:
  %s:
    rules:
      - {name: second, algorithm: sliding-window, limit: 75, per: 1s, margin: 500ms}
      - {name: parallel, algorithm: concurrency, limit: %d, lease: 2m}
      - {name: hour, algorithm: sliding-window, limit: %d, per: 1h}
`

const (
	perSecond = 50
	parallel  = 4
	hourLimit = 100_000
	workers   = 2
)

// site is two workers, two servers of bare asynq, the APIs that each pair calls, and the Redis between them.
type site struct {
	*testing.T
	servers
	rdb        redis.UniversalClient
	inspector  *asynq.Inspector
	ours, bare *fleet
	provider   string
	limits     string // the text
	path       string // the file with it
}

// fleet is those who work off one queue, and the API that they call.
type fleet struct {
	name  string
	queue string
	api   *countapi.Server
	tasks []checker.Task
	more  func() // starts one more of them
}

// names are the provider and the queues, which decide the slots of a cluster.
type names struct{ provider, ours, bare string }

var plainNames = names{"p", "ours", "bare"}

// newSite starts everything and enqueues n tasks for each fleet.
func newSite(t *testing.T, on servers, called names, n int) *site {
	t.Helper()
	s := emptySite(t, on, called, parallel)
	for range workers {
		s.worker()
	}
	s.fill(s.ours, n)
	s.fill(s.bare, n)
	for range workers {
		s.bareServer()
	}
	return s
}

// emptySite has neither tasks nor programs. So many tasks may run at once.
func emptySite(t *testing.T, on servers, called names, parallel int) *site {
	t.Helper()
	s := &site{T: t, servers: on, rdb: on.Client(t), provider: called.provider, limits: fmt.Sprintf(limits, called.provider, parallel, hourLimit)}
	s.inspector = asynq.NewInspectorFromRedisClient(s.rdb)
	s.path = filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(s.path, []byte(s.limits), 0o600))
	s.ours = &fleet{name: "headway", queue: called.ours, api: newAPI(t), more: func() { s.worker() }}
	s.bare = &fleet{name: "asynq", queue: called.bare, api: newAPI(t), more: s.bareServer}
	return s
}

func newAPI(t *testing.T) *countapi.Server {
	t.Helper()
	api, err := countapi.Start("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// worker starts a worker and waits until it takes tasks.
func (s *site) worker(args ...string) *programs.Program {
	s.Helper()
	p := programs.Start(s.T, nil, "worker", append([]string{
		"-redis", s.URL(), "-limits", s.path, "-queues", s.ours.queue + "=1", "-allow-host", s.ours.api.Addr(),
	}, args...)...)
	p.Says("msg=ready")
	return p
}

// bareServer starts a server of asynq alone, whose tasks take as long as lets two of them run
// about as many a second as the limit allows.
func (s *site) bareServer() {
	s.Helper()
	server := asynq.NewServerFromRedisClient(s.Client(s.T), asynq.Config{
		Concurrency: 1, Queues: map[string]int{s.bare.queue: 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
	})
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.bare.api.URL("bare")+"?latency=35ms", nil)
		if err != nil {
			return err
		}
		req.Header.Set("X-Task-Id", string(task.Payload()))
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}))
	must(s, err)
	s.Cleanup(server.Shutdown)
}

// fill enqueues n tasks. Of ours every tenth comes by asynq's own client, and the rest by
// enqueue; every other task has no retries.
func (s *site) fill(f *fleet, n int) {
	s.Helper()
	client, ctx := asynq.NewClientFromRedisClient(s.rdb), context.Background()
	var batch strings.Builder
	scope := s.provider + "/x"
	for i := range n {
		id, maxRetry := fmt.Sprintf("%s%03d", f.name, i), i/10%2
		f.tasks = append(f.tasks, checker.Task{ID: id, Scope: scope, Queue: f.queue, Cost: 1, MaxRetry: maxRetry})
		call := queue.HTTP{Method: "POST", URL: f.api.URL(scope) + "?latency=60ms", Headers: map[string]string{"X-Task-Id": id}}
		var task *asynq.Task
		switch {
		case f == s.bare:
			task = asynq.NewTask("call", []byte(id))
		case i%10 == 0:
			payload, err := json.Marshal(call)
			must(s, err)
			task = asynq.NewTaskWithHeaders("http", payload, map[string]string{queue.HeaderScope: scope})
		default:
			line, err := json.Marshal(map[string]any{
				"type": "http", "id": id, "scope": scope, "queue": f.queue, "max_retry": maxRetry, "http": call,
			})
			must(s, err)
			batch.Write(append(line, '\n'))
			continue
		}
		if _, err := client.EnqueueContext(ctx, task, asynq.TaskID(id), asynq.Queue(f.queue), asynq.MaxRetry(maxRetry)); err != nil {
			s.Fatal(err)
		}
	}
	if f == s.ours {
		programs.Run(s.T, 0, strings.NewReader(batch.String()), "enqueue", "batch", "-redis", s.URL(), "-limits", s.path, "-")
	}
}

// now is the time by which the fleet's API counts.
func (f *fleet) now() time.Duration { return time.Since(f.api.Epoch()) }

func (f *fleet) succeeded() int {
	_, n := f.api.Counts()
	return n
}

// after returns the calls that arrived after a moment, in order.
func (f *fleet) after(moment time.Duration) []countapi.Call {
	return slices.DeleteFunc(f.api.Log(), func(c countapi.Call) bool { return c.Arrived <= moment })
}

// under waits until a quarter of our tasks has arrived, bare asynq works too, and as many of ours run as may.
func (s *site) under() {
	s.Helper()
	redistest.WaitFor(s.T, "bare asynq to work", bound, func() bool { return s.bare.succeeded() >= flow })
	redistest.WaitFor(s.T, "a quarter of the tasks to arrive", bound, func() bool { return s.ours.succeeded() >= len(s.ours.tasks)/4 })
	redistest.WaitFor(s.T, "tasks to run", bound, func() bool {
		open := 0
		for _, c := range s.ours.after(s.ours.now() - time.Second) {
			if c.Departed == countapi.Open {
				open++
			}
		}
		return open == parallel
	})
}

// takesWrites waits until Redis takes writes of the provider's keys and of the queue's.
func (s *site) takesWrites() {
	s.Helper()
	for _, key := range []string{"{" + s.provider + "}probe", "{" + s.ours.queue + "}probe"} {
		redistest.WaitAsking(s.T, "Redis to take writes", bound, func() bool { return s.TakesWrite(key) })
	}
}

const (
	// flowsBy is within what time of Redis tasks start again.
	flowsBy = 10 * time.Second
	// flow is how many starts make a flow.
	flow = 10
)

// flows waits until tasks of ours start again after Redis came back, and fails the test if it has taken longer than flowsBy.
func (s *site) flows(back time.Duration) {
	s.Helper()
	before := len(s.ours.api.Log()) - len(s.ours.after(back))
	if left := len(s.ours.tasks) - before; left < 2*flow {
		s.Errorf("only %d tasks were left when Redis came back: the test tested less than it should", left)
		return
	}
	redistest.WaitFor(s.T, "tasks to start again", bound, func() bool { return len(s.ours.after(back)) >= flow })
	calls := s.ours.after(back)
	first, tenth := calls[0].Arrived-back, calls[flow-1].Arrived-back
	s.Logf("the first call arrived %v after Redis was back, the tenth %v; bare asynq made %d calls in that time",
		first.Round(time.Millisecond), tenth.Round(time.Millisecond), len(s.bare.after(s.bare.now()-(s.ours.now()-back))))
	if tenth > flowsBy {
		s.Errorf("tasks flow again %v after Redis was back; %v is promised", tenth, flowsBy)
	}
}

// outcome is what became of a fleet's tasks.
type outcome struct {
	lost, twice []string
	orphans     int // were handed to nobody, and asynq brought them back
}

// ended waits until all tasks of a fleet have ended.
func (s *site) ended(f *fleet) (out outcome) {
	s.Helper()
	if len(f.tasks) == 0 {
		return out
	}
	const still = 2 * time.Second
	last, since, revived := -1, time.Now(), map[string]bool{}
	var held []string // when nothing had come for a while
	redistest.WaitAsking(s.T, f.name+" to have ended all tasks", 2*bound, func() bool {
		if n := f.succeeded(); n != last {
			last, since, held = n, time.Now(), nil
		}
		info, err := s.inspector.GetQueueInfo(f.queue)
		waits := s.rerun(f)
		if err != nil || info.Pending+info.Active+info.Scheduled+info.Retry == 0 {
			return err == nil && !waits
		}
		if time.Since(since) > still {
			since = time.Now()
			// Whoever works at a task, or holds it, has done so before long.
			now := s.leased(f)
			s.revive(f, slices.DeleteFunc(now, func(id string) bool { return !slices.Contains(held, id) }), revived)
			held = s.leased(f)
		}
		return false
	})
	times := map[string]int{}
	for _, c := range f.api.Log() {
		times[c.ID]++
	}
	for _, task := range f.tasks {
		switch times[task.ID] {
		case 0:
			out.lost = append(out.lost, task.ID)
		case 1:
		default:
			out.twice = append(out.twice, task.ID)
		}
	}
	out.orphans = len(revived)
	return out
}

// leases is where asynq keeps what has been picked up, by when its leases end.
func (f *fleet) leases() string { return "asynq:{" + f.queue + "}:lease" }

// leased returns the ids that have been picked up, nil where Redis does not answer.
func (s *site) leased(f *fleet) []string {
	s.Helper()
	return s.rdb.ZRange(context.Background(), f.leases(), 0, -1).Val()
}

// revive has asynq bring back at once what nobody works at: what a server handed out and forgot to say so, or forgot the end of.
// By itself asynq does it within two minutes: when the task's lease has been over for half a minute, and then by its next look.
func (s *site) revive(f *fleet, held []string, revived map[string]bool) {
	s.Helper()
	for _, id := range held {
		revived[id] = true
		s.rdb.ZAddXX(context.Background(), f.leases(), redis.Z{Score: 1, Member: id})
	}
	if len(held) > 0 {
		f.more() // it looks for such tasks when it starts
	}
}

// rerun runs at once what asynq took from a server that had lost it, and says whether there was any. asynq has archived a task of
// ours that its own client enqueued without retries: such a task stays there until somebody runs it.
func (s *site) rerun(f *fleet) (found bool) {
	s.Helper()
	tasks, _ := s.inspector.ListRetryTasks(f.queue, asynq.PageSize(1000))
	if f == s.ours {
		archived, _ := s.inspector.ListArchivedTasks(f.queue, asynq.PageSize(1000))
		tasks = append(tasks, slices.DeleteFunc(archived, func(task *asynq.TaskInfo) bool { return task.MaxRetry > 0 })...)
	}
	for _, task := range tasks {
		if task.LastErr == asynq.ErrLeaseExpired.Error() {
			found = true
			_ = s.inspector.RunTask(f.queue, task.ID) // it may have gone meanwhile
		}
	}
	return found
}

// judge waits until all has ended, and fails the test where a limit was exceeded, where a task
// is lost or where one ran twice, unless the fault, which struck at a moment by the API's clock
// and made Redis forget its last writes, explains it. It returns how many tasks had been handed to nobody.
func (s *site) judge(struck time.Duration, forgets bool) (orphans int) {
	s.Helper()
	ours, bare := s.ended(s.ours), s.ended(s.bare)
	rep := checker.Judge(s, s.limits, checker.Input{Calls: s.ours.api.Log(), Epoch: s.ours.api.Epoch(), Tasks: s.ours.tasks})
	s.Logf("headway: %d lost %q, %d ran twice, %d brought back by asynq; bare asynq: %d lost %q, %d ran twice, %d brought back\n%s",
		len(ours.lost), ours.lost, len(ours.twice), ours.orphans, len(bare.lost), bare.lost, len(bare.twice), bare.orphans, rep)
	if rep.Exceeded() || len(rep.Unknown)+len(rep.Mismatched) > 0 {
		s.Errorf("%q", rep.Violations())
		s.Logf("the fault struck at %v; calls by id and arrival:\n%s", struck, s.timeline())
	}
	for _, id := range ours.lost {
		s.lost(id, forgets)
	}
	for _, id := range ours.twice {
		s.twice(id, struck, forgets)
	}
	return ours.orphans
}

// timeline lists the calls of both fleets by our API's clock. Where both stood at the same
// time it was the machine that held them up.
func (s *site) timeline() string {
	var lines []string
	for _, f := range []*fleet{s.ours, s.bare} {
		for _, c := range f.api.Log() {
			at := f.api.Epoch().Add(c.Arrived).Sub(s.ours.api.Epoch())
			lines = append(lines, fmt.Sprintf("%9.3fs %s", at.Seconds(), c.ID))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// lost fails the test unless the fault explains why a task never arrived: its server forgot how the task stood, as it would have
// forgotten it of bare asynq's. A task without retries that had begun may have ended with that.
func (s *site) lost(id string, forgets bool) {
	s.Helper()
	info, err := s.inspector.GetTaskInfo(s.ours.queue, id)
	if forgets && err == nil && info.State == asynq.TaskStateArchived && info.MaxRetry == 0 &&
		strings.Contains(info.LastErr, "a crash ended its last attempt") {
		return
	}
	s.Errorf("%s is lost: %+v, %v", id, info, err)
}

// twice fails the test unless the fault explains why a task ran more than once: it ended right
// before the server died, and the new master does not know.
func (s *site) twice(id string, struck time.Duration, forgets bool) {
	s.Helper()
	const lately = time.Second
	for _, c := range s.ours.api.Log() {
		if c.ID == id && (!forgets || c.Arrived < struck-lately) {
			s.Errorf("%s arrived at %v and came again; the fault struck at %v", id, c.Arrived, struck)
		}
		if c.ID == id {
			return
		}
	}
}

// forgotten returns how many of the calls that arrived the hour's rule does not count.
func (s *site) forgotten() int {
	s.Helper()
	policy, err := limitsyaml.Parse("limits.yaml", []byte(s.limits))
	must(s, err)
	limiter, err := throttle.New(s.rdb, policy, throttle.Config{})
	must(s, err)
	d, err := limiter.Peek(context.Background(), throttle.Request{Scope: s.provider + "/x"})
	must(s, err)
	calls, _ := s.ours.api.Counts()
	return calls - int(hourLimit-d.Rules[2].Remaining)
}
