package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// polls are the last polls of the providers' queues. A scrape computes their age, so that it grows even if every
// dispatcher is stuck.
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
