package network

import (
	"os"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// longVariable, when set, makes partitions 20 s long, and others' faults last ten times as long.
const longVariable = "HEADWAY_NETWORK_LONG"

func long() bool { return os.Getenv(longVariable) != "" }

// partition is how long one lasts, and backAgain how soon after it tasks start again.
func partition() time.Duration {
	if long() {
		return 20 * time.Second // more, and asynq would take running tasks for a dead worker's
	}
	return 5 * time.Second
}

const backAgain = 10 * time.Second

// many is how many tasks a test of lasting faults has.
func many() int {
	if long() {
		return 3000
	}
	return 300
}

// One of two workers cannot reach Redis for 5 s or more, and nothing tells it: the other goes on with what the limits
// admit meanwhile, and when it is over both go on.
func TestOneIsPartitioned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := int(quota*partition().Seconds()) + 250
	s.enqueue(n)
	s.start(s.workers...)
	lost := s.until(50)
	away, other := s.workers[0], s.workers[1]

	away.net.Partition()
	began, before, ran, others := time.Now(), s.arrived(), away.ran.Load(), other.ran.Load()
	// More than a limit, so that the last of these was granted when all that was charged before had left the window. How
	// long that takes is the machine's: the other used 68 to 101 % of the quota beside nothing else, and 25 beside the tests
	// of five packages.
	redistest.WaitFor(t, "the other to go on alone", bound, func() bool {
		return time.Since(began) >= partition() && other.ran.Load() > others+limit
	})
	used := float64(s.arrived()-before) / (quota * time.Since(began).Seconds())
	t.Logf("%.0f %% of the quota was used in %s; the one that was away has started %d", 100*used, time.Since(began), away.ran.Load()-ran)

	ran = away.ran.Load()
	away.net.Heal()
	redistest.WaitFor(t, "the one that was away to start tasks again", backAgain, func() bool { return away.ran.Load() > ran })
	s.perfect(append(lost, s.until(n)...))
}

// Neither worker can reach Redis for 5 s: nothing starts that was not granted before, and
// when it is over both go on.
func TestBothArePartitioned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const n = 250
	s.enqueue(n)
	s.start(s.workers...)
	lost := s.until(50)
	for _, m := range s.workers {
		m.net.Partition()
	}
	before := s.arrived()
	<-time.After(partition())
	after := s.arrived()
	for _, m := range s.workers {
		m.net.Heal()
	}
	t.Logf("%d started meanwhile", after-before)
	if most := 2 * concurrency; after-before > most {
		t.Errorf("%d tasks started without Redis; the workers had room for %d", after-before, most)
	}
	redistest.WaitFor(t, "tasks to start again", backAgain, func() bool { return s.arrived() > after })
	s.perfect(append(lost, s.until(n)...))
}
