package oteltask

import (
	"container/list"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/headway-go/headway/worker"
)

const (
	// maxWaits bounds how many waiting tasks a process remembers, some 400 bytes each. For others the span of the wait lacks the rule.
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

// waits are the tasks that this process has last denied, oldest first.
type waits struct {
	mu    sync.Mutex
	byKey map[waitKey]*list.Element
	order list.List
}

type waitKey struct {
	queue, id string
	retried   int
}

type kept struct {
	key  waitKey
	wait wait
}

func keyOf(p worker.Pickup) waitKey { return waitKey{p.Queue, p.ID, p.Retried} }

// keep remembers the wait of a denied task. Its beginning stays that of the first denial.
func (w *waits) keep(p worker.Pickup, now wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(p)
	if earlier, known := w.remove(key, p.At); known && earlier.began.Before(now.began) {
		now.began = earlier.began
	}
	if w.byKey == nil {
		w.byKey = map[waitKey]*list.Element{}
	}
	w.byKey[key] = w.order.PushBack(kept{key, now})
	if oldest := w.order.Front(); len(w.byKey) > maxWaits {
		w.remove(oldest.Value.(kept).key, p.At)
	}
}

// take returns and forgets the wait of a task.
func (w *waits) take(p worker.Pickup, now time.Time) (wait, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.remove(keyOf(p), now)
}

func (w *waits) remove(key waitKey, now time.Time) (wait, bool) {
	element, known := w.byKey[key]
	if !known {
		return wait{}, false
	}
	delete(w.byKey, key)
	earlier := w.order.Remove(element).(kept).wait
	return earlier, now.Before(earlier.until.Add(overdue))
}
