package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// polls are the last polls of the providers' queues. A scrape computes their age, which grows even if every dispatcher is stuck.
type polls struct {
	desc *prometheus.Desc

	mu   sync.Mutex
	last map[string]poll // by provider
}

type poll struct {
	label string
	at    time.Time
}

func newPolls() *polls {
	return &polls{last: map[string]poll{}, desc: prometheus.NewDesc(namespace+"_dispatcher_last_poll_age_seconds",
		"Seconds since the last poll of the provider's queues; absent if no task waits.", []string{"provider"}, nil)}
}

func (p *polls) note(provider, label string, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next < 0 {
		delete(p.last, provider)
		return
	}
	p.last[provider] = poll{label, time.Now()}
}

// Describe implements prometheus.Collector.
func (p *polls) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc }

// Collect implements prometheus.Collector. If providers share a label, the oldest poll among them counts.
func (p *polls) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ages := map[string]time.Duration{}
	for _, last := range p.last {
		ages[label(last.label)] = max(ages[label(last.label)], time.Since(last.at))
	}
	for label, age := range ages {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, age.Seconds(), label)
	}
}

// away counts the refused tasks that this process has put back and that are not due yet, by the second. A scrape adds them up, so that
// the count falls by itself.
type away struct {
	desc *prometheus.Desc

	mu  sync.Mutex
	due map[refusedTasks]map[int64]int // by the second in which they are due
}

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
