package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// looks tells for how long it has not been looked whose turn it is. It is worked out
// when it is asked for, so that it grows also where all that would tell is stuck.
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
			"How long ago it was last looked whose turn it is of those who wait for the provider; absent where nobody waits.",
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

// Collect implements prometheus.Collector: of providers with one label the one that
// has not been looked at for longest counts.
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
