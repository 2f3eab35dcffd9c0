package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// site is all that a test runs programs against: a Redis and an API of its own, and the limits between them.
type site struct {
	*testing.T
	redis     *redistest.Server
	rdb       *redis.Client
	inspector *asynq.Inspector
	api       *countapi.Server
	limits    string // the file
	text      string // what is in it
	tasks     []checker.Task
}

func newSite(t *testing.T, limits string) *site {
	t.Helper()
	s := &site{T: t, redis: redistest.NewServer(t), text: limits, limits: filepath.Join(t.TempDir(), "limits.yaml")}
	must(t, os.WriteFile(s.limits, []byte(limits), 0o600))
	s.rdb = s.redis.Client(t)
	s.inspector = asynq.NewInspectorFromRedisClient(s.rdb)
	api, err := countapi.Start("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	s.api = api
	t.Cleanup(s.tellWhatIsLeft)
	return s
}

// tellWhatIsLeft logs where the tasks are of a test that has failed.
func (s *site) tellWhatIsLeft() {
	if !s.Failed() {
		return
	}
	info, err := s.inspector.GetQueueInfo("default")
	if err != nil {
		s.Logf("%d of %d tasks succeeded; of the others nothing is known: %v", s.succeeded(), len(s.tasks), err)
		return
	}
	s.Logf("%d of %d tasks succeeded; pending %d, active %d, scheduled %d, retry %d, archived %d",
		s.succeeded(), len(s.tasks), info.Pending, info.Active, info.Scheduled, info.Retry, info.Archived)
}

func (s *site) url() string { return "redis://" + s.redis.Addr() }

// worker starts a worker and waits until it takes tasks.
func (s *site) worker(args ...string) *programs.Program {
	s.Helper()
	p := s.begin(args...)
	p.Says("msg=ready")
	return p
}

// begin starts a worker.
func (s *site) begin(args ...string) *programs.Program {
	s.Helper()
	return programs.Start(s.T, nil, "worker", append([]string{
		"-redis", s.url(), "-limits", s.limits, "-allow-host", s.api.Addr(),
	}, args...)...)
}

// task is a line of a batch. Its zero MaxRetry is none.
type task struct {
	ID, Scope string
	MaxRetry  int
	Query     string // tells the API how to answer
}

// line is what enqueue batch reads; the site remembers the task.
func (s *site) line(k task) string {
	s.Helper()
	s.tasks = append(s.tasks, checker.Task{ID: k.ID, Scope: k.Scope, Queue: "default", Cost: 1, MaxRetry: k.MaxRetry})
	line, err := json.Marshal(map[string]any{
		"type": "http", "id": k.ID, "scope": k.Scope, "max_retry": k.MaxRetry,
		"http": queue.HTTP{Method: "POST", URL: s.api.URL(k.Scope) + k.Query, Headers: map[string]string{"X-Task-Id": k.ID}},
	})
	must(s, err)
	return string(line) + "\n"
}

// lines are n tasks in a row.
func (s *site) lines(n int, each func(i int) task) string {
	s.Helper()
	var b strings.Builder
	for i := range n {
		k := each(i)
		if k.ID == "" {
			k.ID = fmt.Sprint("t", i)
		}
		b.WriteString(s.line(k))
	}
	return b.String()
}

// enqueue puts a batch into Redis.
func (s *site) enqueue(lines string) {
	s.Helper()
	programs.Run(s.T, 0, strings.NewReader(lines), "enqueue", "batch", "-redis", s.url(), "-limits", s.limits, "-")
}

// succeeded is how many ids the API has answered with success.
func (s *site) succeeded() int {
	_, n := s.api.Counts()
	return n
}

// until waits until n ids have arrived with success.
func (s *site) until(n int) {
	s.Helper()
	redistest.WaitFor(s.T, fmt.Sprintf("%d tasks to arrive", n), bound, func() bool { return s.succeeded() >= n })
}

// report judges all that has arrived.
func (s *site) report() *checker.Report {
	s.Helper()
	return checker.Judge(s, s.text, checker.Input{Calls: s.api.Log(), Epoch: s.api.Epoch(), Tasks: s.tasks})
}

// nothingLeft says whether asynq has no task left to run.
func (s *site) nothingLeft() bool {
	info, err := s.inspector.GetQueueInfo("default")
	return err == nil && info.Pending+info.Active+info.Scheduled+info.Retry == 0
}

// perfect fails the test unless every limit was kept and every task arrived
// once, and asynq has nothing left and counts no failure.
func (s *site) perfect() {
	s.Helper()
	redistest.WaitAsking(s.T, "asynq to have nothing left", bound, s.nothingLeft)
	rep := s.report()
	s.Logf("\n%s", rep)
	if !rep.OK() {
		s.Errorf("%q", rep.Violations())
	}
	info, err := s.inspector.GetQueueInfo("default")
	if err != nil || info.Archived != 0 || info.FailedTotal != 0 {
		s.Errorf("asynq has %+v, %v; want nothing archived and no failure", info, err)
	}
}
