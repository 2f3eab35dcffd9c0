package oteltask

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/worker"
)

const (
	// maxWaits bounds how many waiting tasks a process remembers, some 400 bytes each. Beyond it all are forgotten, and the spans of
	// their waits lack the rule.
	maxWaits = 10_000
	// overdue is how long a task is remembered beyond its expected return: it may have run in another process.
	overdue = time.Hour
)

// wait is a wait for limits, as far as it is known.
type wait struct {
	began    time.Time
	rule     string // as label has it; "": unknown
	level    string // at which the rule counts
	ahead    int64  // waiters of its scope before it; -1: unknown
	expected time.Time
	until    time.Time
	span     trace.SpanContext // of the last pick-up
}

// waits are the waits of the tasks that this process has denied.
type waits struct {
	mu    sync.Mutex
	byKey map[waitKey]wait
}

type waitKey struct {
	queue, id string
	retried   int
}

func keyOf(p worker.Pickup) waitKey { return waitKey{p.Queue, p.ID, p.Retried} }

// keep remembers the wait of a denied task. Its beginning stays that of the first denial.
func (w *waits) keep(p worker.Pickup, now wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(p)
	if earlier, known := w.byKey[key]; known && earlier.counts(p.At) && earlier.began.Before(now.began) {
		now.began = earlier.began
	}
	if w.byKey == nil || len(w.byKey) >= maxWaits {
		w.byKey = map[waitKey]wait{}
	}
	w.byKey[key] = now
}

// take returns and forgets the wait of a task.
func (w *waits) take(p worker.Pickup, now time.Time) (wait, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	earlier, known := w.byKey[keyOf(p)]
	delete(w.byKey, keyOf(p))
	return earlier, known && earlier.counts(now)
}

// counts reports whether the task can still be the one that waited.
func (w wait) counts(now time.Time) bool { return now.Before(w.until.Add(overdue)) }
