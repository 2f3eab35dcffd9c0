package bench

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

const (
	busyTasks = 300
	// busyConcurrency is more handlers than there are processors, as where most of them wait for an API and these don't.
	busyConcurrency = 8
	busyWork        = 10 * time.Millisecond
)

// BenchmarkBusy runs tasks that use a processor all the time, on their last attempt, under
// one rule that is never reached, and with asynq alone. They take turns, and the medians of
// the ratios count. A start is late here as a rule, since its goroutine waits for a processor.
func BenchmarkBusy(b *testing.B) {
	name := fmt.Sprintf("%d tasks of %s of processor, no limit in the way", busyTasks, busyWork)
	ways := []struct {
		who  string
		rule policy.Rule
	}{
		{who: "asynq alone"},
		{"Headway, sliding window", sliding("r", neverFull, time.Second)},
		{"Headway, token bucket of burst 1", bucket("r", neverFull, time.Second, 1)},
		{"Headway, concurrency", parallel},
		{"Headway, sliding window of 1000 per s", sliding("r", 1000, time.Second)},
		{"Headway, token bucket of 1000 per s", bucket("r", 1000, time.Second, 1000)},
	}
	work := busyLoop(busyWork)
	b.Run(label(name), func(b *testing.B) {
		took, ratios := make([][]float64, len(ways)), make([][]float64, len(ways))
		picked, back := make([]int64, len(ways)), make([]int64, len(ways))
		for b.Loop() {
			for i := range rounds() * len(ways) {
				i %= len(ways)
				seconds, counts := workOff(b, ways[i].rule, work)
				took[i] = append(took[i], seconds)
				ratios[i] = append(ratios[i], seconds/took[0][len(took[i])-1])
				picked[i], back[i] = picked[i]+counts.picked.Load(), back[i]+counts.back.Load()
			}
		}
		for i, way := range ways {
			row := figures.NewRow(name, way.who)
			row.Rate = busyTasks / figures.Median(took[i])
			if i > 0 {
				ratio := figures.Median(ratios[i])
				row.PickUps = perTask(picked[i], busyTasks*len(took[i]))
				row.Note = fmt.Sprintf("%.2f × asynq's time, %d put back", ratio, back[i])
				b.ReportMetric(ratio, "x-"+unit(way.who))
				b.ReportMetric(float64(back[i]), "back-"+unit(way.who))
			}
			table.add(row)
		}
	})
}

// BenchmarkBehind asks what a backlog costs where the workers' slots, and not the limit, hold it back: each task is later
// than its limits admit it.
func BenchmarkBehind(b *testing.B) {
	n, lasts := 12_000, 50*time.Millisecond
	if !long() {
		n = 400
	}
	const slots, workers = 10, 2
	s := crowd(50, 100, 1000, n)
	s.name = fmt.Sprintf("%d of 50 tenants at 1000/s together, two workers that run %.0f/s together", n, slots*workers/lasts.Seconds())
	s.slots, s.workers, s.lasts = slots, workers, lasts
	behind := builtPrograms
	behind.spell = 2*time.Duration(n)*lasts/(slots*workers) + 5*time.Second
	measure(b, s, behind)
}

// busyLoop returns what uses a processor for so long when nobody else does.
func busyLoop(d time.Duration) func() {
	var sink atomic.Uint64
	spin := func(n int) {
		x := uint64(1)
		for range n {
			x = x*6364136223846793005 + 1442695040888963407
		}
		sink.Store(x)
	}
	const probe = 10_000_000
	least := time.Hour
	for range 5 { // of which the shortest was disturbed least
		began := time.Now()
		spin(probe)
		least = min(least, time.Since(began))
	}
	n := int(float64(probe) * float64(d) / float64(least))
	return func() { spin(n) }
}

// busyCounts counts what becomes of tasks on their way to their runs.
type busyCounts struct {
	worker.NoObserver
	picked, back atomic.Int64
}

func (c *busyCounts) PickedUp(string)                   { c.picked.Add(1) }
func (c *busyCounts) Rescheduled(string, time.Duration) { c.back.Add(1) }

// workOff returns in how many seconds a server works off a full queue: asynq's own where there is no rule.
func workOff(b *testing.B, rule policy.Rule, work func()) (seconds float64, counts *busyCounts) {
	b.Helper()
	limits := map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{rule}}}
	if rule.Name == "" {
		limits = neverReached(parallel)
	}
	st := newStage(b, scenario{tasks: jobs(busyTasks, "p"), limits: limits}, nil)
	defer st.end()
	client := asynq.NewClientFromRedisClient(st.rdb)
	must(b, each(st.tasks, func(j job) error {
		_, err := client.Enqueue(asynq.NewTaskWithHeaders("work", nil, map[string]string{queue.HeaderScope: j.scope}), asynq.TaskID(j.id), asynq.MaxRetry(0))
		return err
	}))
	counts = &busyCounts{}
	cfg := asynq.Config{Concurrency: busyConcurrency, LogLevel: asynq.FatalLevel}
	took, _ := st.workOff(b, cfg, rule.Name != "", counts, work)
	return took.Seconds(), counts
}
