package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/survey"
)

// Snapshot is what one moment's limits and queues in Redis are, which every worker reads alike.
type Snapshot struct {
	// Survey is the state of the rules. Oldest is when the longest wait under each of its rules began, by the same index; the
	// zero Time where none is known.
	Survey        survey.Survey
	Oldest        []time.Time
	Queues        []QueueTasks // of which at most 100 have series
	UsefulWorkers float64      // how many workers of this process's concurrency have something to do in its queues
	PolicyVersion int64        // the newest version of the limits, 0 if there is none
}

// QueueTasks counts the tasks of a queue of asynq's.
type QueueTasks struct {
	Name     string
	Runnable int64 // that could start now had they a worker
	Active   int64 // that have a worker
}

const (
	// snapshotStays is how long a snapshot answers further scrapes, and snapshotBound how long one may take.
	snapshotStays = 5 * time.Second
	snapshotBound = 3 * time.Second
)

// shared are the series that every worker reads from Redis, when it is scraped.
type shared struct {
	read func(context.Context) (Snapshot, error)

	limit, used, waiting, oldest, done *prometheus.Desc // by rule
	runnable, active                   *prometheus.Desc // by queue
	useful, version, partial           *prometheus.Desc

	mu   sync.Mutex // held while one scrape reads: others wait for it
	at   time.Time  // when the last was read; zero if it could not be
	last Snapshot
}

func newShared(read func(context.Context) (Snapshot, error)) *shared {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_shared_"+name, help+" The same in every worker: take the maximum, not the sum.", labels, nil)
	}
	return &shared{
		read:     read,
		limit:    desc("rule_limit", "The most units of the rule at once.", "rule"),
		used:     desc("rule_used", "Units taken of the rule, where most waits for it.", "rule"),
		waiting:  desc("rule_waiting", "Units that wait under the rule.", "rule"),
		oldest:   desc("rule_oldest_wait_seconds", "How long the task that waits longest under the rule has waited.", "rule"),
		done:     desc("rule_done_timestamp_seconds", "When the rule has admitted all that waits for it, as expected.", "rule"),
		runnable: desc("runnable_tasks", "Tasks that could start now had they a worker.", "queue"),
		active:   desc("active_tasks", "Tasks that are with a worker.", "queue"),
		useful:   desc("useful_workers", "How many workers like this one have something to do."),
		version:  desc("policy_version", "The newest version of the limits."),
		partial:  desc("partial", "1 while there is more than a snapshot reads, 0 otherwise."),
	}
}

// Describe implements prometheus.Collector.
func (s *shared) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.limit, s.used, s.waiting, s.oldest, s.done, s.runnable, s.active, s.useful, s.version, s.partial} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Without a snapshot the series are absent.
func (s *shared) Collect(ch chan<- prometheus.Metric) {
	now, ok := s.snapshot()
	if !ok {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	rules, queues := now.Survey.Rules, now.Queues
	for i, r := range rules[:min(maxRules, len(rules))] {
		var oldest time.Time
		if i < len(now.Oldest) {
			oldest = now.Oldest[i]
		}
		s.rule(gauge, r, now.Survey.At, oldest)
	}
	for _, q := range queues[:min(maxQueues, len(queues))] {
		gauge(s.runnable, float64(q.Runnable), label(q.Name))
		gauge(s.active, float64(q.Active), label(q.Name))
	}
	gauge(s.useful, now.UsefulWorkers)
	gauge(s.version, float64(now.PolicyVersion))
	gauge(s.partial, flag(now.Survey.Partial || len(rules) > maxRules || len(queues) > maxQueues))
}

func (s *shared) rule(gauge func(*prometheus.Desc, float64, ...string), r survey.Rule, at, oldest time.Time) {
	name := ruleKey{r.Pattern, r.Rule}.label()
	gauge(s.limit, float64(r.Limit), name)
	gauge(s.waiting, float64(r.Waiting), name)
	if !oldest.IsZero() {
		gauge(s.oldest, max(0, time.Since(oldest).Seconds()), name)
	}
	if !r.Read {
		return
	}
	gauge(s.used, float64(r.Used), name)
	if r.Waiting > 0 && r.DoneIn != throttle.Never {
		gauge(s.done, float64(at.Add(r.DoneIn).UnixMilli())/1000, name)
	}
}

// snapshot returns the last one while it is new, and reads another otherwise.
func (s *shared) snapshot() (Snapshot, bool) {
	if s.read == nil {
		return Snapshot{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && time.Since(s.at) < snapshotStays {
		return s.last, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), snapshotBound)
	defer cancel()
	var err error
	if s.last, err = s.read(ctx); err != nil {
		s.at = time.Time{}
		return Snapshot{}, false
	}
	s.at = time.Now()
	return s.last, true
}
