package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// labelSet keeps the first max values and replaces all others by Other.
type labelSet struct {
	mu   sync.RWMutex
	seen map[string]bool
	max  int
}

func newLabelSet(bound int) *labelSet {
	return &labelSet{seen: make(map[string]bool), max: bound}
}

func (s *labelSet) of(value string) string {
	s.mu.RLock()
	known := s.seen[value]
	s.mu.RUnlock()
	if known {
		return label(value)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[value] {
		return label(value)
	}
	if len(s.seen) >= s.max {
		return Other
	}
	s.seen[value] = true
	return label(value)
}

// label converts a value into valid UTF-8: Prometheus panics on anything else.
func label(value string) string { return strings.ToValidUTF8(value, "\uFFFD") }

// series are the metrics of one rule, looked up once.
type series struct {
	allowed, denied, failed, degraded prometheus.Counter
	denials                           prometheus.Counter
	wait                              prometheus.Observer
	leases                            prometheus.Gauge
}

// ruleKey identifies a rule by its place in the policy and its name there. It is looked up without
// conversion, so that a decision allocates nothing.
type ruleKey struct{ pattern, name string }

func (k ruleKey) label() string {
	if k.pattern == "" {
		return label(k.name)
	}
	return label(k.pattern + ":" + k.name)
}

// seriesSet holds the series of each rule; the rules beyond the bound share one.
type seriesSet struct {
	mu     sync.RWMutex
	rules  map[ruleKey]*series
	max    int
	other  *series
	create func(rule string) *series
}

func newSeriesSet(bound int, create func(string) *series) *seriesSet {
	return &seriesSet{rules: make(map[ruleKey]*series), max: bound, create: create}
}

func (s *seriesSet) of(rule ruleKey) *series {
	s.mu.RLock()
	known, full := s.rules[rule], s.other
	s.mu.RUnlock()
	switch {
	case known != nil:
		return known
	case full != nil: // no new rule gets its own series any more
		return full
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.rules[rule]; known != nil {
		return known
	}
	if len(s.rules) < s.max {
		s.rules[rule] = s.create(rule.label())
		return s.rules[rule]
	}
	if s.other == nil {
		s.other = s.create(Other)
	}
	return s.other
}

func (m *Metrics) newSeries(rule string) *series {
	return &series{
		allowed:  m.decisions.WithLabelValues(rule, "allowed"),
		denied:   m.decisions.WithLabelValues(rule, "denied"),
		failed:   m.decisions.WithLabelValues(rule, "error"),
		degraded: m.decisions.WithLabelValues(rule, "degraded"),
		denials:  m.denials.WithLabelValues(rule),
		wait:     m.waits.WithLabelValues(rule),
		leases:   m.leases.WithLabelValues(rule),
	}
}
