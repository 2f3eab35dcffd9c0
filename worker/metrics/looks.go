package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// looks is the age of the last poll of each provider's queues. A scrape computes it, so
// that it grows even if every dispatcher is stuck.
type looks struct {
	desc   *prometheus.Desc
	labels *labelSet

	mu   sync.Mutex
	last map[string]look // by provider
}

type look struct {
	label string
	at    time.Time
}

func newLooks() *looks {
	return &looks{
		desc: prometheus.NewDesc(namespace+"_dispatcher_last_poll_age_seconds",
			"Seconds since the last poll of the provider's queues; absent if no task waits.",
			[]string{"provider"}, nil),
		labels: newLabelSet(maxQueues),
		last:   map[string]look{},
	}
}

func (l *looks) note(provider, label string, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !again {
		delete(l.last, provider)
		return
	}
	l.last[provider] = look{label, time.Now()}
}

// Describe implements prometheus.Collector.
func (l *looks) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect implements prometheus.Collector. If providers share a label, the oldest poll
// among them counts.
func (l *looks) Collect(ch chan<- prometheus.Metric) {
	for label, longest := range l.longest() {
		ch <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, longest.Seconds(), label)
	}
}

func (l *looks) longest() map[string]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	by := map[string]time.Duration{}
	for _, one := range l.last {
		label := l.labels.of(one.label)
		by[label] = max(by[label], time.Since(one.at))
	}
	return by
}
