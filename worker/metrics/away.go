package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/worker/internal/awaycount"
)

// away counts the refused tasks that this process has put back and that are not due yet. A scrape
// computes it, so that it falls by itself when they come due.
type away struct {
	desc  *prometheus.Desc
	tasks awaycount.Counts[refusedTasks]
}

type refusedTasks struct{ queue, why string }

func newAway() *away {
	return &away{desc: prometheus.NewDesc(namespace+"_refused_tasks",
		"Tasks that this process has put back and that wait until limits change, or another worker takes them.",
		[]string{"queue", "why"}, nil)}
}

func (a *away) add(queue, why string, wait time.Duration) {
	now := time.Now()
	a.tasks.Add(refusedTasks{queue, why}, now.Add(wait), now)
}

// Describe implements prometheus.Collector.
func (a *away) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements prometheus.Collector.
func (a *away) Collect(ch chan<- prometheus.Metric) {
	for of, n := range a.tasks.All(time.Now()) {
		ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, float64(n), of.queue, of.why)
	}
}
