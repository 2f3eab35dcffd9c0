package bench

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkAway asks how much of a quota is used where Redis is some milliseconds away each
// way, as in another data centre, and each piece takes up to a quarter more or less.
func BenchmarkAway(b *testing.B) {
	if !long() {
		distant(b, single("", 100, sliding("r", 50, time.Second)), 50, 20*time.Millisecond)
		return
	}
	for _, away := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond} {
		distant(b, single("", 1000, sliding("r", 50, time.Second)), 50, away)
		distant(b, nested(1000, 50), 50, away)
		distant(b, single("", 5000, sliding("r", 500, time.Second)), 500, away)
		distant(b, nested(5000, 500), 500, away)
	}
}

// distant has two processes work a scenario off, so far from Redis. At hundreds a second they have
// more slots: a task keeps one for some round trips.
func distant(b *testing.B, s scenario, rate int, away time.Duration) {
	b.Helper()
	rules := "one rule"
	if s.level > 0 && s.binding == "provider" {
		rules = "three rules"
	}
	s.name = fmt.Sprintf("%d at %d/s, %s, two processes, Redis %v ± %v away each way", len(s.tasks), rate, rules, away, away/4)
	s.away, s.jitter, s.workers = away, away/4, 2
	if rate > 100 {
		s.slots = 200
	}
	measure(b, s, builtPrograms)
}
