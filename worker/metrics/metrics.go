// Package metrics counts for Prometheus what the limiter and the workers do.
//
// A *Metrics is their observer, and a prometheus.Collector. Programs with a registry of their own register it there. For others, Handler
// serves it together with the metrics of the Go runtime. The global registry is never used.
//
// Labels are bounded and contain nothing personal. rule is the place of a rule in the policy, such as payments/*/refunds:refunds, never
// the tenant that the star stands for. Rules beyond the first thousand are counted together as rule="other".
package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Label values that stand for many. No rule can have such a name: names of rules have a colon.
const (
	Other = "other" // all beyond the bound
	None  = "none"  // no decision, so the rule is unknown
)

// maxRules and maxQueues are how many rules and queues have label values of their own. A rule costs about 25 series.
const (
	maxRules  = 1000
	maxQueues = 100
)

// Config configures a Metrics. The zero value works.
type Config struct {
	// Version is the version label of headway_build_info. Defaults to none, and then that metric is absent.
	Version string
	// Snapshot reads what the series headway_shared_… say. A scrape calls it, at most once in five seconds, with three seconds to
	// answer; after an error these series are absent. See worker.Middleware.Snapshot. Defaults to none, and then they are absent.
	Snapshot func(context.Context) (Snapshot, error)
	// TraceID returns the id of the trace that a context belongs to, "" for none. The buckets of headway_wait_seconds and
	// headway_run_seconds have it as an exemplar, trace_id. It must be quick. Defaults to none.
	TraceID func(context.Context) string
}

// Metrics counts what the limiter and the workers do. It is safe for concurrent use; a call costs well under a microsecond and never
// waits for a scrape.
type Metrics struct {
	decisions  *prometheus.CounterVec
	denials    *prometheus.CounterVec
	waits      *prometheus.HistogramVec
	leases     *prometheus.GaugeVec
	deciding   prometheus.Observer
	shadows    *prometheus.CounterVec
	shadowed   *prometheus.HistogramVec
	pickups    *prometheus.CounterVec
	runs       *prometheus.CounterVec
	running    *prometheus.HistogramVec
	moved      *prometheus.CounterVec
	delays     *prometheus.HistogramVec
	refused    *prometheus.CounterVec
	away       *away
	maxWaits   *prometheus.CounterVec
	holding    prometheus.Gauge
	lead       prometheus.Gauge
	holds      prometheus.Observer
	late       prometheus.Observer
	errors     *prometheus.CounterVec
	up         prometheus.Gauge
	faulty     prometheus.Gauge
	outages    prometheus.Counter
	polls      *polls
	version    prometheus.Gauge
	signals    *prometheus.CounterVec
	tiers      *prometheus.CounterVec
	events     *prometheus.CounterVec
	deliveries *prometheus.CounterVec
	collectors []prometheus.Collector

	rules       *bounded[ruleKey, *series]
	members     *bounded[memberKey, prometheus.Counter]
	shadowRules *bounded[string, string]
	queues      *bounded[string, string]
	traceID     func(context.Context) string
}

// Buckets in seconds, in steps of about three.
var (
	decisionBuckets = []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3}
	waitBuckets     = []float64{.001, .01, .03, .1, .3, 1, 3, 10, 30, 60, 300, 1800, 7200, 86400}
	lateBuckets     = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, 1}
	runBuckets      = []float64{.001, .01, .03, .1, .3, 1, 3, 10, 30, 60, 300, 1800}
)

// New returns a Metrics with all counts at zero.
func New(cfg Config) *Metrics {
	if cfg.TraceID == nil {
		cfg.TraceID = func(context.Context) string { return "" }
	}
	m := &Metrics{traceID: cfg.TraceID, shadowRules: newLabels(maxRules), queues: newLabels(maxQueues)}
	m.rules = newBounded(maxRules, ruleKey.label, m.newSeries)
	m.makeRuleMetrics()
	starts := counters(m, "member_starts_total", "Starts that were granted with the member of a pool.", "member")
	m.members = newBounded(maxRules, memberKey.label, func(member string) prometheus.Counter { return starts.WithLabelValues(member) })
	m.makeTaskMetrics()
	m.makeHealthMetrics(cfg.Version)
	add(m, newShared(cfg.Snapshot))
	return m
}

func (m *Metrics) makeRuleMetrics() {
	m.decisions = counters(m, "decisions_total",
		"Decisions under the rule, by outcome: allowed, denied, degraded (Redis could not answer, and the failure policy decided) or error (nothing was decided).",
		"rule", "outcome")
	m.denials = counters(m, "denials_total", "Decisions that the rule denied.", "rule")
	m.waits = histograms(m, "wait_seconds", "How long a denial by this rule asked the task to wait.", waitBuckets, "rule")
	m.leases = gauges(m, "leases", "Places under a concurrency rule that this process holds.", "rule")
	m.shadows = counters(m, "shadow_decisions_total",
		"Starts under the shadow rule, by outcome: allowed, denied (the start would have waited), dropped (too many starts at once to count) or error.",
		"rule", "outcome")
	m.shadowed = histograms(m, "shadow_wait_seconds", "How long a start would have had to wait for the shadow rule.", waitBuckets, "rule")
	m.deciding = histograms(m, "decision_seconds", "How long a decision took, round trip included.", decisionBuckets).WithLabelValues()
}

func (m *Metrics) makeTaskMetrics() {
	m.pickups = counters(m, "pickups_total", "Times that a task was taken from the queue.", "queue")
	m.runs = counters(m, "runs_total", "Runs of a handler, by outcome.", "queue", "outcome")
	m.running = histograms(m, "run_seconds", "How long a handler ran.", runBuckets, "queue")
	m.moved = counters(m, "rescheduled_total", "Times that a limited task was put back, to come again later.", "queue")
	m.delays = histograms(m, "rescheduled_seconds", "How far ahead a limited task was put back.", waitBuckets, "queue")
	m.refused = counters(m, "refused_total", "Times that a task was put back until limits change, or another worker takes it.", "queue", "why")
	m.away = &away{due: map[refusedTasks]map[int64]int{}}
	scrapedGauge(m, "refused_tasks", "Tasks that this process has put back and that wait until limits change, or another worker takes them.",
		m.away.counts, "queue", "why")
	m.maxWaits = counters(m, "max_wait_exceeded_total", "Tasks that waited too long, by what then happened to them.", "queue", "outcome")
	m.lead = gauges(m, "dispatch_lead_seconds", "How long before their starts tasks are granted.").WithLabelValues()
	m.holding = gauges(m, "held", "Tasks that wait in a handler for a start that is near.").WithLabelValues()
	m.late = histograms(m, "start_lateness_seconds", "How long after its granted start a run began.", lateBuckets).WithLabelValues()
	m.holds = histograms(m, "hold_seconds", "How long a task waited in a handler.", runBuckets).WithLabelValues()
}

func (m *Metrics) makeHealthMetrics(version string) {
	m.errors = counters(m, "errors_total", "Errors inside Headway, by kind.", "kind")
	m.up = gauges(m, "redis_up", "1 while Redis answers, 0 while it does not.").WithLabelValues()
	m.faulty = gauges(m, "limits_file_faulty", "1 while the limits file was changed into one that cannot be used, 0 otherwise.").WithLabelValues()
	m.version = gauges(m, "policy_version", "The version of the limits that is in force in this process, 0 if it is not from Redis.").WithLabelValues()
	m.outages = counters(m, "redis_outages_total", "Times that Redis stopped answering.").WithLabelValues()
	m.polls = &polls{last: map[string]poll{}}
	scrapedGauge(m, "dispatcher_last_poll_age_seconds", "Seconds since the last poll of the provider's queues; absent if no task waits.", m.polls.ages, "provider")
	m.signals = counters(m, "upstream_signals_total", "Changes that followed from APIs' answers: pauses of scopes, cuts of rules, limits of the APIs' own.", "what")
	m.tiers = counters(m, "tier_troubles_total", "Tiers that could not be asked for (error), or that the limits do not have (unknown).", "why")
	m.events = counters(m, "events_total", "Events that this process reported, by kind.", "kind")
	m.deliveries = counters(m, "event_deliveries_total", "Deliveries of events to the webhook, by outcome.", "outcome")
	if version != "" {
		info := gauges(m, "build_info", "Always 1; the version is the label.", "version")
		info.WithLabelValues(label(version)).Set(1)
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}

// Handler serves the metrics, and those of the Go runtime and the process, in the Prometheus text format, and in OpenMetrics, which has
// exemplars, to scrapers that ask for it. It answers at most four scrapes at once, each within ten seconds.
func (m *Metrics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4,
		EnableOpenMetrics:   true,
		Timeout:             10 * time.Second,
	})
}

const namespace = "headway"

func counters(m *Metrics, name, help string, labels ...string) *prometheus.CounterVec {
	return add(m, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func gauges(m *Metrics, name, help string, labels ...string) *prometheus.GaugeVec {
	return add(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func histograms(m *Metrics, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}
	return add(m, prometheus.NewHistogramVec(opts, labels))
}

func scrapedGauge(m *Metrics, name, help string, read func(set func(float64, ...string)), labels ...string) {
	add(m, scraped{prometheus.NewDesc(namespace+"_"+name, help, labels, nil), read})
}

func add[C prometheus.Collector](m *Metrics, c C) C {
	m.collectors = append(m.collectors, c)
	return c
}
