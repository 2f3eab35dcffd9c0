package metrics

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/throttle"
)

// Decided counts one decision of a limiter: the result of each rule on its path, and how long it took. The trace of a denied request is
// the exemplar of its wait. It implements throttle.Observer.
func (m *Metrics) Decided(ctx context.Context, d throttle.Decision, took time.Duration, err error) {
	if !d.Handed { // else no call was made
		m.deciding.Observe(took.Seconds())
	}
	switch {
	case errors.Is(err, context.Canceled):
		return // the caller had gone
	case err != nil:
		m.rules.of(ruleKey{name: None}).failed.Inc()
		return
	}
	trace := ""
	if d.Allowed && d.Member != "" {
		m.members.of(memberKey{d.Pool, d.Member}).Inc()
	}
	if !d.Allowed {
		trace = m.traceID(ctx)
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		m.rules.of(ruleKey{r.Pattern, r.Rule}).decided(r, d.Degraded, trace)
	}
}

// Overspent implements throttle.Observer.
func (m *Metrics) Overspent([]throttle.RuleState) {}

// Upstream implements throttle.Observer.
func (m *Metrics) Upstream(c throttle.UpstreamChange) { m.signals.WithLabelValues(c.What).Inc() }

// TierTrouble implements throttle.Observer.
func (m *Metrics) TierTrouble(t throttle.TierTrouble) {
	why := "unknown"
	if t.Err != nil {
		why = "error"
	}
	m.tiers.WithLabelValues(why).Inc()
}

func (s *series) decided(r *throttle.RuleState, degraded bool, trace string) {
	switch {
	case degraded:
		s.degraded.Inc()
	case r.Limited:
		s.denied.Inc()
	default:
		s.allowed.Inc()
	}
	if !r.Limited {
		return
	}
	s.denials.Inc()
	if r.RetryAfter < throttle.Never {
		observe(s.wait, r.RetryAfter, trace)
	}
}

// Shadowed counts the decision of a shadow rule about a start. Set it as throttle.Config.OnShadow.
func (m *Metrics) Shadowed(s throttle.Shadowed) {
	rule := m.shadowRules.of(ruleKey{s.Pattern, s.Rule}.label())
	m.shadows.WithLabelValues(rule, string(s.Outcome)).Inc()
	if s.Outcome == throttle.ShadowDenied && s.RetryAfter < throttle.Never {
		m.shadowed.WithLabelValues(rule).Observe(s.RetryAfter.Seconds())
	}
}

// LeaseHeld counts places under a concurrency rule: 1 for a place taken, -1 for one freed or lost. rule is as in the label.
func (m *Metrics) LeaseHeld(rule string, delta int) {
	key := ruleKey{name: rule}
	if i := strings.LastIndexByte(rule, ':'); i >= 0 {
		key = ruleKey{rule[:i], rule[i+1:]}
	}
	m.rules.of(key).leases.Add(float64(delta))
}

// PickedUp counts a task taken from queue.
func (m *Metrics) PickedUp(queue string) { m.pickups.WithLabelValues(m.queues.of(queue)).Inc() }

// Ran counts a run that ended in outcome after took, with its trace as an exemplar.
func (m *Metrics) Ran(ctx context.Context, queue, outcome string, took time.Duration) {
	queue = m.queues.of(queue)
	m.runs.WithLabelValues(queue, outcome).Inc()
	observe(m.running.WithLabelValues(queue), took, m.traceID(ctx))
}

// maxTrace is the longest id that an exemplar takes: OpenMetrics bounds one to 128 characters, its label's name included.
const maxTrace = 100

// observe adds a duration to a histogram, with the trace that it belongs to, if any.
func observe(to prometheus.Observer, d time.Duration, trace string) {
	exemplars, can := to.(prometheus.ExemplarObserver)
	if trace == "" || !can || len(trace) > maxTrace || !utf8.ValidString(trace) {
		to.Observe(d.Seconds())
		return
	}
	exemplars.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": trace})
}

// Rescheduled counts a limited task of queue that was put back for wait.
func (m *Metrics) Rescheduled(queue string, wait time.Duration) {
	queue = m.queues.of(queue)
	m.moved.WithLabelValues(queue).Inc()
	m.delays.WithLabelValues(queue).Observe(wait.Seconds())
}

// MaxWaitExceeded counts a task of queue that waited too long, by its outcome.
func (m *Metrics) MaxWaitExceeded(queue, became string, _ time.Duration) {
	m.maxWaits.WithLabelValues(m.queues.of(queue), became).Inc()
}

// Refused counts a task of queue that was put back for wait, until limits change or another worker may run it.
func (m *Metrics) Refused(queue, why string, wait time.Duration) {
	queue = m.queues.of(queue)
	m.refused.WithLabelValues(queue, why).Inc()
	m.away.add(queue, why, time.Now().Add(wait))
}

// Holding counts the tasks that wait in a handler: 1 when one begins, -1 when it ends.
func (m *Metrics) Holding(delta int) { m.holding.Add(float64(delta)) }

// Began counts a run by how much it began after its granted start.
func (m *Metrics) Began(late time.Duration) { m.late.Observe(late.Seconds()) }

// Held counts a wait of d in a handler.
func (m *Metrics) Held(d time.Duration) { m.holds.Observe(d.Seconds()) }

// DispatchLead records how long before their starts tasks are granted.
func (m *Metrics) DispatchLead(lead time.Duration) { m.lead.Set(lead.Seconds()) }

// DispatcherPolled records a poll of a provider's queue, and in how long the next one is due; negative for none. label is the
// provider's name in labels.
func (m *Metrics) DispatcherPolled(provider, label string, next time.Duration) {
	m.polls.note(provider, label, next)
}

// Failed counts a fault. kind is a constant in the source, such as "release", never the text of an error.
func (m *Metrics) Failed(kind string) { m.errors.WithLabelValues(kind).Inc() }

// Event counts an event that was reported, by a kind of package events.
func (m *Metrics) Event(kind string) { m.events.WithLabelValues(kind).Inc() }

// EventDelivery counts what became of a delivery to the webhook.
func (m *Metrics) EventDelivery(outcome string) { m.deliveries.WithLabelValues(outcome).Inc() }

// LimitsFileFaulty records whether the limits file was changed into one that cannot be used.
func (m *Metrics) LimitsFileFaulty(faulty bool) { m.faulty.Set(flag(faulty)) }

// PolicyInForce records the version of the limits that is in force in this process.
func (m *Metrics) PolicyInForce(version int64) { m.version.Set(float64(version)) }

// RedisUp records a change of whether Redis answers.
func (m *Metrics) RedisUp(up bool) {
	m.up.Set(flag(up))
	if !up {
		m.outages.Inc()
	}
}

func flag(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
