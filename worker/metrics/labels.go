package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// bounded keeps a value for each of the first most keys, and another one, labeled Other, for all further keys.
type bounded[K comparable, V any] struct {
	most   int
	label  func(K) string
	create func(label string) V

	mu    sync.RWMutex
	known map[K]V
	other *V // nil: there were no further keys
}

func newBounded[K comparable, V any](most int, label func(K) string, create func(label string) V) *bounded[K, V] {
	return &bounded[K, V]{most: most, label: label, create: create, known: map[K]V{}}
}

func (b *bounded[K, V]) of(key K) V {
	b.mu.RLock()
	known, is := b.known[key]
	other := b.other
	b.mu.RUnlock()
	switch {
	case is:
		return known
	case other != nil:
		return *other
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, is := b.known[key]; is {
		return known
	}
	if len(b.known) < b.most {
		b.known[key] = b.create(b.label(key))
		return b.known[key]
	}
	if b.other == nil {
		v := b.create(Other)
		b.other = &v
	}
	return *b.other
}

// newLabels returns the bounded label values of something that has names.
func newLabels(most int) *bounded[string, string] {
	return newBounded(most, label, func(label string) string { return label })
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

// ruleKey is the place of a rule in the policy and its name there. It is looked up as it is, so that a decision allocates nothing.
type ruleKey struct{ pattern, name string }

func (k ruleKey) label() string {
	if k.pattern == "" {
		return label(k.name)
	}
	return label(k.pattern + ":" + k.name)
}

// memberKey is the place of a pool in the policy, and the alias of a member.
type memberKey struct{ pool, member string }

func (k memberKey) label() string { return label(k.pool + "/@" + k.member) }

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
