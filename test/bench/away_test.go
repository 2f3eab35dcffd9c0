package bench

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkAway asks how much of a quota is used where Redis is some milliseconds away each
// way, as in another data centre.
func BenchmarkAway(b *testing.B) {
	n := 1000
	if !long() {
		n = 150
	}
	for _, away := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		s := calling(single(fmt.Sprintf("%d at 50/s, two processes, Redis %v away each way", n, away), n, sliding("r", 50, time.Second)))
		s.away = away
		two := contender{name: planned.name, enqueue: byQueue, serve: byTwoProcesses, pad: pad}
		measure(b, s, two)
	}
}
