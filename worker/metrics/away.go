package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// away counts the refused tasks that this process has put back and that are not due yet: how many in each second, so that
// a million tasks take no more memory than a hundred. A scrape adds them up, so that the count falls by itself.
type away struct {
	desc *prometheus.Desc

	mu  sync.Mutex
	due map[refusedTasks]map[int64]int // by the second in which they are due
}

// refusedTasks are the labels, of which there are few.
type refusedTasks struct{ queue, why string }

// maxSeconds is how many seconds are remembered before those that are past are deleted: no task is away for longer.
const maxSeconds = 100

func newAway() *away {
	return &away{due: map[refusedTasks]map[int64]int{}, desc: prometheus.NewDesc(namespace+"_refused_tasks",
		"Tasks that this process has put back and that wait until limits change, or another worker takes them.",
		[]string{"queue", "why"}, nil)}
}

func (a *away) add(queue, why string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := refusedTasks{queue, why}
	if a.due[key] == nil {
		a.due[key] = map[int64]int{}
	}
	if len(a.due[key]) > maxSeconds { // it is not scraped
		deletePast(a.due[key], time.Now())
	}
	a.due[key][at.Unix()+1]++ // asynq rounds up to a second, and brings the task in the next one
}

// count removes the tasks that are due, and returns how many are away.
func (a *away) count(now time.Time) map[refusedTasks]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := map[refusedTasks]int{}
	for key, seconds := range a.due {
		deletePast(seconds, now)
		for _, tasks := range seconds {
			counts[key] += tasks
		}
	}
	return counts
}

func deletePast(seconds map[int64]int, now time.Time) {
	maps.DeleteFunc(seconds, func(second int64, _ int) bool { return second < now.Unix() })
}

// Describe implements prometheus.Collector.
func (a *away) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements prometheus.Collector.
func (a *away) Collect(ch chan<- prometheus.Metric) {
	for key, n := range a.count(time.Now()) {
		ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, float64(n), key.queue, key.why)
	}
}
