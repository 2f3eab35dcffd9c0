package metrics

import (
	"sync"
	"time"
)

// RuleOutcome is what one rule said in a decision.
type RuleOutcome struct {
	// Rule is the rule's place in the policy: payments/*/refunds:refunds.
	Rule string
	// Allowed is whether this rule had room, whatever the others said.
	Allowed bool
	// RetryAfter is how long the rule asks to wait; 0 when not known.
	RetryAfter time.Duration
}

// Decided counts one decision: what each rule that it met said, and how long it
// took. err is why nothing was decided; degraded tells that Redis could not
// answer and the rules' failure policy let the task pass.
func (m *Metrics) Decided(rules []RuleOutcome, took time.Duration, err error, degraded bool) {
	m.deciding.Observe(took.Seconds())
	if len(rules) == 0 {
		m.rules.of(None).decided(RuleOutcome{Allowed: true}, err, degraded)
		return
	}
	for _, r := range rules {
		m.rules.of(r.Rule).decided(r, err, degraded)
	}
}

func (s *series) decided(r RuleOutcome, err error, degraded bool) {
	switch {
	case err != nil:
		s.failed.Inc()
	case degraded:
		s.degraded.Inc()
	case r.Allowed:
		s.allowed.Inc()
	default:
		s.denied.Inc()
		s.denials.Inc()
		if r.RetryAfter > 0 {
			s.wait.Observe(r.RetryAfter.Seconds())
		}
	}
}

// LeaseHeld counts places under a concurrency rule: 1 for one that was taken,
// -1 for one that was freed or lost.
func (m *Metrics) LeaseHeld(rule string, delta int) { m.rules.of(rule).leases.Add(float64(delta)) }

// PickedUp counts a task that was taken from queue.
func (m *Metrics) PickedUp(queue string) { m.pickups.WithLabelValues(m.queues.of(queue)).Inc() }

// Ran counts a run that ended in outcome after took.
func (m *Metrics) Ran(queue, outcome string, took time.Duration) {
	queue = m.queues.of(queue)
	m.runs.WithLabelValues(queue, m.outcomes.of(outcome)).Inc()
	m.running.WithLabelValues(queue).Observe(took.Seconds())
}

// Rescheduled counts a limited task of queue that was put back for wait.
func (m *Metrics) Rescheduled(queue string, wait time.Duration) {
	queue = m.queues.of(queue)
	m.moved.WithLabelValues(queue).Inc()
	m.delays.WithLabelValues(queue).Observe(wait.Seconds())
}

// Holding counts the tasks that wait in a handler: 1 when one begins, -1 when
// it ends.
func (m *Metrics) Holding(delta int) { m.holding.Add(float64(delta)) }

// Held counts a task that waited d in a handler.
func (m *Metrics) Held(d time.Duration) { m.holds.Observe(d.Seconds()) }

// Failed counts something that went wrong. kind is a word of the source, such
// as "release"; never text from an error.
func (m *Metrics) Failed(kind string) { m.errors.WithLabelValues(m.kinds.of(kind)).Inc() }

// redisState is whether Redis answered when it was last asked.
type redisState struct {
	mu    sync.Mutex
	asked bool
	up    bool
}

// RedisUp tells whether Redis answers. An outage is counted once, when it
// begins.
func (m *Metrics) RedisUp(up bool) {
	m.redis.mu.Lock()
	defer m.redis.mu.Unlock()
	if m.redis.asked && m.redis.up == up {
		return
	}
	m.redis.asked, m.redis.up = true, up
	if up {
		m.up.Set(1)
		return
	}
	m.up.Set(0)
	m.outages.Inc()
}
