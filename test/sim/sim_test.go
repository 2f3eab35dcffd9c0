package sim

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

const limits = `
limits:
  p:
    rules:
      - {name: account, algorithm: sliding-window, limit: 40, per: 1m}
      - {name: quota, algorithm: calendar, limit: 40, resets: "*/15 * * * *", timezone: Asia/Kathmandu, rollover: 15}
      - {name: trial, algorithm: token-bucket, limit: 0, per: 1s, shadow: true}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 6, per: 1m, burst: 3}
          - {name: parallel, algorithm: concurrency, limit: 2, lease: 10s}
        scopes:
          slow:
            rules:
              - {name: slow, algorithm: fixed-window, limit: 2, per: 1m}
  q:
    scopes:
      "*":
        rules:
          - {name: r, algorithm: token-bucket, limit: 1, per: 1s}
`

var days = flag.Float64("days", 0.02, "how long each simulation lasts, in days of its own")

// "Nothing lost, nothing over, bounded waiting": traffic of 50 tenants, with workers that are killed and restarted, hours with
// none, tasks deleted and run by hand, limits that are paused and lowered, a calendar that moves to another zone, runs that spend
// less or more than they said, and a Redis that is away. SIM_SEEDS=n runs n seeds instead of a few, drawn at random, and
// SIM_SEED=n one again; `make soak` gives each a whole day, of which a processor takes less than a minute.
func TestDays(t *testing.T) {
	seeds := []uint64{6, 9, 12, 23} // which have most of it between them
	if n, err := strconv.Atoi(os.Getenv("SIM_SEEDS")); err == nil {
		seeds = nil
		for range n {
			seeds = append(seeds, rand.Uint64()>>1)
		}
	}
	if one, err := strconv.ParseUint(os.Getenv("SIM_SEED"), 10, 64); err == nil {
		seeds = []uint64{one}
	}
	if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newWorld(t, seed, limits+units).day() })
		})
	}
}

// world is one simulation.
type world struct {
	*testing.T

	random *rand.Rand // what the day brings
	luck   *rand.Rand // what becomes of runs; w.mu is held
	redis  *miniredis.Miniredis
	policy *policy.Policy
	admin  *redis.Client
	client *queue.Client
	plain  *asynq.Client
	looks  *asynq.Inspector
	began  time.Time
	lag    time.Duration // what a request takes on its way to Redis

	mu      sync.Mutex
	down    bool
	starts  []countapi.Call
	wanted  map[string]time.Time // enqueued, by id
	gone    map[string]bool      // deleted by hand before they ran
	ended   map[string]int
	crashed bool
	workers []*process
	made    int
	pauses  []pausing
	kept    []kept // runs of provider u

	limiters []*throttle.Limiter // of all processes, those that have ended included
}

func newWorld(t *testing.T, seed uint64, limits string) *world {
	t.Helper()
	w := &world{
		T: t, random: rand.New(rand.NewPCG(seed, 0)), luck: rand.New(rand.NewPCG(seed, 1)), began: time.Now(),
		wanted: map[string]time.Time{}, gone: map[string]bool{}, ended: map[string]int{},
	}
	w.redis, _ = redistest.Miniredis(t)
	var err error
	w.policy, err = limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	w.admin = w.connect(nil)
	t.Cleanup(func() { _ = w.admin.Close() })
	t.Cleanup(w.stop)
	w.client = queue.NewClient(w.admin, queue.ClientConfig{Limiter: w.limiter(w.admin)})
	w.plain = asynq.NewClientFromRedisClient(w.admin)
	w.looks = asynq.NewInspectorFromRedisClient(w.admin)
	return w
}

func (w *world) limiter(rdb *redis.Client) *throttle.Limiter {
	l, err := throttle.New(rdb, w.policy, throttle.Config{})
	must(w, err)
	w.limiters = append(w.limiters, l)
	return l
}

// connect returns a client, whose connections a process may cut.
func (w *world) connect(p *process) *redis.Client {
	options := redistest.MiniredisOptions(w.redis)
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.down || p != nil && p.cut {
			return nil, fmt.Errorf("connection refused")
		}
		conn, err := dial(ctx, network, addr)
		if err == nil && p != nil {
			p.keep(conn)
		}
		return slow{conn, w.lag}, err
	}
	options.DialerRetries, options.ContextTimeoutEnabled = 1, true
	return redis.NewClient(options)
}

// slow is a connection on which a request takes a while until it arrives.
type slow struct {
	net.Conn

	lag time.Duration
}

func (s slow) Write(p []byte) (int, error) {
	if s.lag > 0 {
		<-time.After(s.lag)
	}
	return s.Conn.Write(p)
}

// process is a worker.
type process struct {
	w      *world
	rdb    *redis.Client
	server *worker.Server

	mu    sync.Mutex
	cut   bool // from Redis, for ever: what a kill looks like from there
	conns []net.Conn
}

func (p *process) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

func (w *world) start() {
	p := &process{w: w}
	p.rdb = w.connect(p)
	p.serve(worker.MiddlewareConfig{}, asynq.Config{TaskCheckInterval: 2 * time.Second, DelayedTaskCheckInterval: 5 * time.Second}, p.run)
	w.workers = append(w.workers, p)
}

// serve starts the process's server.
func (p *process) serve(cfg worker.MiddlewareConfig, serving asynq.Config, handler asynq.HandlerFunc) {
	cfg.Redis, cfg.Limiter = p.rdb, p.w.limiter(p.rdb)
	limits, err := worker.NewMiddleware(cfg)
	must(p.w, err)
	if serving.Concurrency == 0 {
		serving.Concurrency = 8
	}
	serving.LogLevel, serving.ShutdownTimeout = asynq.FatalLevel, 5*time.Second
	p.server = limits.NewServer(serving)
	must(p.w, p.server.Start(handler))
}

// stop ends all workers. A test must not end without it, not even one that fails: no time passes in its bubble from then on, and
// a worker that still runs is a deadlock, which ends the program before the failure is reported.
func (w *world) stop() {
	for _, p := range w.workers {
		p.stop()
	}
	w.workers = nil
}

func (p *process) stop() {
	p.server.Shutdown()
	_ = p.rdb.Close()
}

// run is the handler: a call that takes a while and seldom fails.
func (p *process) run(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	spec, _, err := queue.ReadSpec(task)
	if err != nil {
		return err
	}
	w := p.w
	began := time.Since(w.began)
	if ofUnits(spec.Scope) {
		defer p.spend(ctx, spec, id)
	}
	w.mu.Lock()
	// A call that took no time would overlap with whoever begins at the same instant of fake time: the checker counts places so.
	took, fails := time.Duration(1+w.luck.IntN(800))*time.Millisecond, w.luck.IntN(100) == 0
	w.mu.Unlock()
	timer := time.NewTimer(took)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts = append(w.starts, countapi.Call{
		Seq: int64(len(w.starts)), ID: id, Scope: spec.Scope, Cost: max(1, spec.Cost), Costs: spec.Costs, Arrived: began, Departed: time.Since(w.began), Status: 200,
	})
	if err == nil && fails {
		err = fmt.Errorf("it failed")
	}
	if err == nil {
		w.ended[id]++
	}
	return err
}

// day is a day of traffic with faults, and then as much time as it takes.
func (w *world) day() {
	w.start()
	w.start()
	length := time.Duration(*days * float64(24*time.Hour))
	for time.Since(w.began) < length {
		<-time.After(time.Duration(1+w.random.IntN(240)) * time.Second)
		w.hear()
		w.traffic()
		if w.random.IntN(12) == 0 {
			w.fault()
		}
	}
	for len(w.workers) < 1 {
		w.start()
	}
	w.settle()
	w.stop()
	w.judge()
}

// traffic enqueues a few tasks: most tenants are quiet, some have a backlog.
func (w *world) traffic() {
	n := 1 + w.random.IntN(4)
	if w.random.IntN(20) == 0 {
		n = 30 + w.random.IntN(60)
	}
	tenant := w.random.IntN(50)
	var tasks []queue.Task
	for range n {
		if w.random.IntN(3) == 0 {
			tenant = w.random.IntN(50)
		}
		scope := []string{"p/t%d", "p/t%d/fast", "p/t%d/slow", "q/t%d", "u/t%d", "u/t%d/chat"}[w.random.IntN(6)]
		task := queue.Task{
			Type: "work", Scope: fmt.Sprintf(scope, tenant), ID: strconv.Itoa(w.made), Cost: 1, Priority: w.random.IntN(2),
		}
		if strings.HasPrefix(task.Scope, "p") && !strings.HasSuffix(task.Scope, "slow") && w.random.IntN(5) == 0 {
			task.Cost = int64(1 + w.random.IntN(3))
		}
		if ofUnits(task.Scope) {
			task.Scope = fmt.Sprintf(scope, tenant%5)
			if w.random.IntN(5) > 0 {
				task.Cost, task.Costs = 0, w.costsOf()
			}
		}
		w.made++
		tasks = append(tasks, task)
	}
	now := time.Now()
	note := func(id string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wanted[id] = now
	}
	if w.random.IntN(3) == 0 { // by asynq alone, which does not plan
		for _, task := range tasks {
			headers := map[string]string{queue.HeaderScope: task.Scope, queue.HeaderCost: strconv.FormatInt(task.Cost, 10)}
			if task.Costs != nil {
				headers[queue.HeaderCost] = task.Costs.String()
			}
			_, err := w.plain.Enqueue(asynq.NewTaskWithHeaders("work", nil, headers), asynq.TaskID(task.ID), asynq.MaxRetry(w.random.IntN(3)+2))
			if err == nil {
				note(task.ID)
			}
		}
		return
	}
	_, _ = w.client.EnqueueBatch(w.Context(), queue.Number(slices.Values(tasks)), func(r queue.Result) {
		if r.State == queue.Enqueued {
			note(r.ID)
		}
	})
}

func (w *world) each(f func(*asynq.TaskInfo)) {
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){w.looks.ListScheduledTasks, w.looks.ListRetryTasks} {
		tasks, err := list("default", asynq.PageSize(1000))
		if err != nil {
			continue
		}
		for _, info := range tasks {
			f(info)
		}
	}
}

// settle waits until all that was enqueued has ended, for a bounded time.
func (w *world) settle() {
	for range 24 * 60 {
		<-time.After(time.Minute)
		if len(w.left()) == 0 {
			return
		}
	}
}

// left returns what was enqueued and has neither ended nor been deleted.
func (w *world) left() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.wanted {
		if w.ended[id] == 0 && !w.gone[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// runsOf returns when a task ran.
func (w *world) runsOf(id string) (at []string) {
	for _, c := range w.starts {
		if c.ID == id {
			at = append(at, c.Arrived.String())
		}
	}
	return at
}

// judge asks the checker, which shares no code with the limiter, and looks for what was left behind.
func (w *world) judge() {
	for _, id := range w.left() {
		info, err := w.looks.GetTaskInfo("default", id)
		if err == nil && info.State == asynq.TaskStateArchived && strings.Contains(info.LastErr, "it failed") {
			continue // it failed as often as it may
		}
		w.Errorf("task %s never ended: %+v, %v", id, info, err)
	}
	for id, n := range w.ended {
		if n > 1 && !w.crashed {
			w.Errorf("task %s ended %d times: %v", id, n, w.runsOf(id))
		}
	}
	w.judgePauses()
	report := checker.Judge(w, limits+units, checker.Input{Calls: w.starts, Jitter: 5 * time.Millisecond, Epoch: w.began})
	for _, row := range report.Rows {
		// A killed worker's run goes on here after its lease has ended, as no process's would.
		if row.Exceeded && (row.Algorithm != "concurrency" || !w.crashed) {
			w.Errorf("over: %+v", row)
		}
	}
	<-time.After(25 * time.Hour) // longer than anything is kept
	for _, key := range w.redis.Keys() {
		if strings.HasPrefix(key, "hw:") {
			w.Errorf("key %s was left", key)
		}
	}
	w.Logf("%d tasks, %d runs", w.made, len(w.starts))
}

var must = redistest.Must
