package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// polls are the last polls of the providers' queues. A scrape computes their age, which grows even if every dispatcher is stuck.
type polls struct {
	mu   sync.Mutex
	last map[string]poll // by provider
}

type poll struct {
	label string
	at    time.Time
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

// ages sets the ages by label. If providers share a label, the oldest poll among them counts.
func (p *polls) ages(set func(value float64, labels ...string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ages := map[string]time.Duration{}
	for _, last := range p.last {
		ages[label(last.label)] = max(ages[label(last.label)], time.Since(last.at))
	}
	for label, age := range ages {
		set(age.Seconds(), label)
	}
}

// away counts the refused tasks that this process has put back and that are not due yet, by the second. A scrape adds them up, so that
// the count falls by itself.
type away struct {
	mu  sync.Mutex
	due map[refusedTasks]map[int64]int // by the second in which they are due
}

type refusedTasks struct{ queue, why string }

// maxSeconds is how many seconds are remembered before those that are past are deleted: no task is away for longer.
const maxSeconds = 100

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

// counts removes the tasks that are due, and sets how many are away.
func (a *away) counts(set func(value float64, labels ...string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, seconds := range a.due {
		deletePast(seconds, time.Now())
		n := 0
		for _, tasks := range seconds {
			n += tasks
		}
		if n > 0 {
			set(float64(n), key.queue, key.why)
		}
	}
}

func deletePast(seconds map[int64]int, now time.Time) {
	maps.DeleteFunc(seconds, func(second int64, _ int) bool { return second < now.Unix() })
}

// scraped is a gauge whose values read sets at each scrape.
type scraped struct {
	desc *prometheus.Desc
	read func(set func(value float64, labels ...string))
}

// Describe implements prometheus.Collector.
func (s scraped) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc }

// Collect implements prometheus.Collector.
func (s scraped) Collect(ch chan<- prometheus.Metric) {
	s.read(func(value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, labels...)
	})
}
