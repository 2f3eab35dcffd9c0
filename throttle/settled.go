package throttle

import (
	"cmp"
	"github.com/headway-go/headway/throttle/policy"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// settled is what this process knows of a grant's settlements: Redis lets its record go some
// minutes after the last one, and a run may settle again much later. Copies of a grant share
// it. It is safe for concurrent use; nil knows nothing. Most grants are never settled, and pay a
// word for it.
type settled struct{ known atomic.Pointer[settlements] }

type settlements struct {
	mu    sync.Mutex
	rules map[string]held // by key, those that were settled
	kept  time.Time       // until then Redis keeps the grant
}

// open returns what is known, to note something there.
func (s *settled) open() *settlements {
	if s.known.Load() == nil {
		s.known.CompareAndSwap(nil, &settlements{rules: map[string]held{}})
	}
	return s.known.Load()
}

// held is what a grant is charged under a rule.
type held struct {
	algorithm policy.Algorithm
	unit      string
	units     int64
	place     int64
	over      int64 // spent besides, and charged to nobody
}

// note notes what was settled under a rule. Where its units stand is known to the record
// alone, which is there for as long as any can come back.
func (s *settled) note(key string, h held) {
	if s == nil {
		return
	}
	k := s.open()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rules[key] = h
}

// all returns what was settled, by key.
func (s *settled) all() map[string]held {
	if s == nil || s.known.Load() == nil {
		return nil
	}
	k := s.known.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.rules)
}

// keep notes until when the grant is kept, at least.
func (s *settled) keep(until time.Time) {
	if s == nil {
		return
	}
	k := s.open()
	k.mu.Lock()
	defer k.mu.Unlock()
	if until.After(k.kept) {
		k.kept = until
	}
}

// left is for how long the grant will be kept yet.
func (s *settled) left() time.Duration {
	if s == nil || s.known.Load() == nil {
		return 0
	}
	k := s.known.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(0, time.Until(k.kept))
}

// held is what the grant is charged under rate rules, by key: what was settled, or else what it
// was granted.
func (l *Limiter) held(g Grant) map[string]held {
	p, all := g.plan, map[string]held{}
	_, places := l.rulesNow(p, g.places)
	for i, b := range p.bounds {
		if b.Rule.Algorithm != policy.Concurrency && !everybodys(b.Rule) {
			all[p.keys[i]] = held{b.Rule.Algorithm, b.Rule.Unit, g.cost.at(i), places[i], 0}
		}
	}
	maps.Copy(all, g.told.all())
	return all
}

// remembered is for how long what was settled of a grant stays in Redis: for longer than any of
// it can come back, and than the grant is kept.
func (g Grant) remembered(p *compiledScope) time.Duration {
	return max(g.holds(p), p.settles()) + 2*MaxDelayLimit + g.told.left()
}

// holds is for how long after its start units of a grant may come back.
func (g Grant) holds(p *compiledScope) time.Duration { return cmp.Or(g.lasts, p.settles()) }

// nowhere takes the places of those rules away under which the grant was settled: the record
// knows them.
func (s *settled) nowhere(keys []string, places []int64) []int64 {
	rules := s.all()
	if len(rules) == 0 {
		return places
	}
	places = slices.Clone(places)
	for i, key := range keys {
		if _, known := rules[key]; known {
			places[i] = 0
		}
	}
	return places
}
