package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// latency is how long the API takes for a call, where a scenario says nothing else.
const latency = 5 * time.Millisecond

// builtPrograms are worker and enqueue, as people run them.
var builtPrograms = contender{name: "Headway, built programs", outside: true, enqueue: byBatch, serve: byWorkers, pad: pad}

// built runs the programs: workers with their metrics and usage on, and enqueue.
type built struct {
	testing.TB
	limits  string // the file
	api     *countapi.Server
	lasts   time.Duration
	keys    string // the directory with the keys of a pool's members; "" without a pool
	workers []*builtWorker
	batch   *programs.Program // nil until there is one

	mu       sync.Mutex
	memory   []float64  // of all workers, MB, every few seconds
	quarters [4]float64 // the most of it in each quarter of the run
}

// builtWorker is a worker, and what it counted when its metrics were last read.
type builtWorker struct {
	*programs.Program
	metrics string // the address
	counted map[string]float64
}

func newBuilt(t testing.TB, p *policy.Policy, api *countapi.Server, lasts time.Duration) *built {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(path, limitsyaml.Format(p), 0o600))
	return &built{TB: t, limits: path, api: api, lasts: lasts}
}

var listening = regexp.MustCompile(`msg=listening addr=(\S+)`)

// work starts workers at once and waits until each takes tasks.
func (p *built) work(workers int, redisURL string, slots int) {
	p.Helper()
	args := []string{"-redis", redisURL, "-limits", p.limits, "-concurrency", strconv.Itoa(slots), "-listen", "127.0.0.1:0", "-allow-host", p.api.Addr()}
	if p.keys != "" {
		args = append(args, "-secret", "file:"+p.keys+"/{member}@"+p.api.Addr())
	}
	for range workers {
		w := programs.Start(p, nil, "worker", args...)
		p.workers = append(p.workers, &builtWorker{Program: w})
	}
	for _, w := range p.workers {
		w.Says("msg=ready")
		addr := listening.FindStringSubmatch(w.Stderr.String())
		if addr == nil {
			p.Fatal("the worker does not say where its metrics are")
		}
		w.metrics = "http://" + addr[1] + "/metrics"
	}
}

// enqueue begins to enqueue tasks from a file.
func (p *built) enqueue(redisURL string, tasks []job) {
	p.Helper()
	path := filepath.Join(p.TempDir(), "tasks.ndjson")
	must(p, p.write(path, tasks))
	p.batch = programs.Start(p, nil, "enqueue", "batch", "-redis", redisURL, "-limits", p.limits, path)
}

// write makes a file of tasks that each call the API.
func (p *built) write(path string, tasks []job) error {
	file, err := os.Create(path) //nolint:gosec // in the test's directory
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	lines := json.NewEncoder(out)
	for _, j := range tasks {
		call := queue.HTTP{
			Method: http.MethodPost, URL: p.api.URL(j.scope) + "?latency=" + p.lasts.String(),
			Headers: map[string]string{"X-Task-Id": j.id},
		}
		if p.keys != "" {
			call.Headers["X-Task-Id"] += memberMark + "{{secret .member}}"
		}
		if err := lines.Encode(map[string]any{"type": "http", "id": j.id, "scope": j.scope, "http": call}); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), file.Close())
}

var metric = regexp.MustCompile(`(?m)^(headway_pickups_total|headway_rescheduled_total|process_resident_memory_bytes)(?:\{.*\})? (\S+)$`)

// read reads a worker's metrics, as Prometheus would.
func (w *builtWorker) read(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.metrics, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	counted := map[string]float64{}
	for _, m := range metric.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		counted[m[1]] += n
	}
	w.counted = counted
	return nil
}

// read reads the metrics of the workers that still run.
func (p *built) read(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		_ = w.read(ctx) // of one that was killed the last counts stay
	}
	p.memory = append(p.memory, p.sum("process_resident_memory_bytes")/(1<<20))
}

func (p *built) sum(name string) (sum float64) {
	for _, w := range p.workers {
		sum += w.counted[name]
	}
	return sum
}

// watch reads the metrics every five seconds until ctx ends.
func (p *built) watch(ctx context.Context) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.read(ctx)
		}
	}
}

var enqueuedIn = regexp.MustCompile(`enqueued.* in (\S+)`)

// figures ends the run's quarters, and returns how often tasks were picked up, and what has no column.
func (p *built) figures() (pickUps int64, notes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, mb := range p.memory {
		most := &p.quarters[i*len(p.quarters)/len(p.memory)]
		*most = max(*most, mb)
	}
	memory := fmt.Sprintf("the workers' memory %.0f MB", slices.Max(p.memory))
	if len(p.memory) >= len(p.quarters) {
		memory = fmt.Sprintf("the workers' memory %.0f MB in each quarter", p.quarters)
	}
	notes = []string{fmt.Sprintf("%.0f put back", p.sum("headway_rescheduled_total")), memory}
	if took := enqueuedIn.FindStringSubmatch(p.batch.Stdout.String() + p.batch.Stderr.String()); took != nil {
		notes = append(notes, "enqueued in "+took[1])
	} else {
		notes = append(notes, "not all enqueued")
	}
	return int64(p.sum("headway_pickups_total")), notes
}

// end ends the programs.
func (p *built) end() {
	p.batch.Kill()
	for _, w := range p.workers {
		w.Kill()
	}
}

// byBatch enqueues with the program, unless the scenario has it run beside the workers.
func byBatch(st *stage) error {
	if !st.later {
		st.built.enqueue("redis://"+st.server.Addr(), st.tasks)
		st.built.batch.Ends(0)
	}
	return nil
}

// byWorkers serves with the program.
func byWorkers(st *stage) (stop func() error, err error) {
	st.built.work(max(1, st.workers), "redis://"+st.addr(), st.concurrency())
	if st.later {
		st.built.enqueue("redis://"+st.server.Addr(), st.tasks)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		st.built.watch(ctx)
	}()
	return func() error {
		cancel()
		<-watched
		st.built.end()
		return nil
	}, nil
}

// follow notes what arrives at the API as starts, until what it returns is called.
func (st *stage) follow() (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n, more := 0, true; more; {
			select {
			case <-over:
				more = false
			case <-tick.C:
			}
			calls := st.at.Since(n)
			n += len(calls)
			starts := make([]start, len(calls))
			for i, c := range calls {
				starts[i] = start{job: calledAs(c), at: st.at.Epoch().Add(c.Arrived)}
			}
			st.starts.note(starts...)
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// measureBuilt has the built programs work a scenario off, and asynq alone some of it before: a machine may not reach the limit.
func measureBuilt(b *testing.B, s scenario) {
	b.Helper()
	alone := aloneRate(b, s)
	builtPrograms.into(b, s, func(o *outcome) figures.Row { return beside(o.row(), alone) })
}

// beside says in a row how its rate compares with that of asynq alone.
func beside(row figures.Row, alone float64) figures.Row {
	if alone > 0 {
		row.Note = fmt.Sprintf("%.2f × asynq alone; ", row.Rate/alone) + row.Note
	}
	return row
}

// BenchmarkKilled asks what is left of the quota when one of two workers is killed at full rate. What it had taken is stranded
// until asynq finds that its lease is over, half a minute later and more: those tasks are missing among the started, and not lost.
func BenchmarkKilled(b *testing.B) {
	for _, s := range []scenario{
		single("2000 at 100/s, one of two workers killed", 2000, bucket("r", 100, time.Second, 1)),
		single("5000 at 1000/s, one of two workers killed", 5000, bucket("r", 1000, time.Second, 1)),
	} {
		if !long() {
			s.tasks = s.tasks[:len(s.tasks)/10]
		}
		s.workers = 2
		killed := builtPrograms
		killed.serve = besideAVictim
		measure(b, s, killed)
	}
}

// besideAVictim has one of the workers killed after a third of the time.
func besideAVictim(st *stage) (stop func() error, err error) {
	end, err := byWorkers(st)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	rule, _ := ruleNamed(st.limits, st.binding)
	go st.endCalm(ctx, plain(rule).Ideal(int64(len(st.tasks)))/3, func() {
		st.built.read(ctx)
		st.built.workers[0].Kill()
	})
	return func() error { cancel(); return end() }, nil
}

// endCalm kills after a while, and ends the run when nothing has started for a
// second and no more are missing than one worker can have taken with it.
func (st *stage) endCalm(ctx context.Context, after time.Duration, kill func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	began, missing, since := time.Now(), -1, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if kill != nil && time.Since(began) > after {
			kill()
			kill = nil
		}
		if n := len(st.starts.missing()); n != missing {
			missing, since = n, time.Now()
		}
		if kill == nil && missing <= concurrency && time.Since(since) > time.Second {
			st.starts.finish()
			return
		}
	}
}
