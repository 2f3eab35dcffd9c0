package page

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// snapshotEvery is the time between two readings of what viewers look at, and snapshotCommands the most
	// Redis commands of one such reading, and of all readings in a second in the long run.
	snapshotEvery    = time.Second
	snapshotCommands = 50
	// loadTimeout bounds one reading, without its waits for turns, and loadPatience how long a request waits
	// for one.
	loadTimeout  = 5 * time.Second
	loadPatience = 15 * time.Second
	// mostTopics bounds how many topics are kept for a time without Redis, and mostOpen how many streams and
	// waiting requests one actor has.
	mostTopics = 300
	mostOpen   = 100
	// atOnceMost is how many readings of one actor are under way at once: those that have begun come first.
	atOnceMost = 4
)

// topic is one thing that viewers can look at: its key, the cost of one reading, and how it is read.
type topic struct {
	key string
	// cost is how many commands of Redis the next reading sends at most, before it asks for more by turn.
	cost func(last any) int
	load func(ctx context.Context, last any) (any, error)
}

// state is the last reading of a topic. err is the error of a later reading that failed; data is then
// older.
type state struct {
	data  any
	at    time.Time // when data was read
	err   error
	tried time.Time
}

// hub reads each topic once for all its viewers, only while it has viewers, and within its budget.
type hub struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	entries map[string]*entry
	budget  budget
	open    map[string]int // streams and waiting requests, by actor
	loads   map[string]int // waiting requests alone
	under   map[string]int // readings under way
	begun   int            // readings so far
	running bool
	wake    chan struct{}
}

type entry struct {
	topic
	state   state
	viewers map[chan struct{}]string // the actors of streams
	loads   map[string]int           // waiting requests, by actor
	reading *reading                 // nil for none
	begun   time.Time                // when it was read last
	used    time.Time
}

// reading is one reading of a topic, under way.
type reading struct {
	hub    *hub
	number int
	done   chan struct{} // closed at the end
	stop   context.CancelCauseFunc
	limit  *time.Timer
	// asks is how many commands it wants next, and waits says that it has not got them yet. granted receives
	// when it gets them, and by is the actor whose first turn it was.
	asks    int
	waits   bool
	granted chan struct{}
	by      *string
}

// shareError is the error for what one actor asks for beyond its share.
type shareError struct{ why string }

func (e *shareError) Error() string { return e.why }

var errPatience = &shareError{fmt.Sprintf("the page reads %d commands of Redis a second at most, and this had no turn within %s: try again a little later, or close other screens of this page",
	snapshotCommands, loadPatience)}

func newHub(log *slog.Logger, now func() time.Time) *hub {
	return &hub{log: log, now: now, entries: map[string]*entry{}, budget: newBudget(), open: map[string]int{}, loads: map[string]int{}, under: map[string]int{}, wake: make(chan struct{}, 1)}
}

// entry returns the entry of a topic. mu is held.
func (h *hub) entry(t topic) *entry {
	e := h.entries[t.key]
	if e == nil {
		if len(h.entries) >= mostTopics {
			h.drop()
		}
		e = &entry{topic: t, viewers: map[chan struct{}]string{}, loads: map[string]int{}}
		h.entries[t.key] = e
	}
	e.used = h.now()
	return e
}

// drop forgets the topic without viewers that was last used longest ago. mu is held.
func (h *hub) drop() {
	var oldest *entry
	for _, e := range h.entries {
		if len(e.viewers) == 0 && e.reading == nil && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest != nil {
		delete(h.entries, oldest.key)
	}
}

// get returns the state of a topic, at most one snapshot old, and waits for the actor's turn to read it. If
// Redis does not answer, it is the state from before, with the error. If no turn comes in time it is that
// state too; the error is a *shareError if there is none.
func (h *hub) get(ctx context.Context, t topic, actor string) state {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry(t)
	if fresh := h.now().Sub(e.state.tried); fresh < snapshotEvery && !e.state.tried.IsZero() && e.state.err == nil {
		return e.state
	}
	if err := h.enter(actor); err != nil {
		return e.state.or(err)
	}
	e.loads[actor]++
	h.loads[actor]++
	if e.reading == nil {
		h.begin(e)
	}
	done := e.reading.done
	h.mu.Unlock()
	var late error
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(loadPatience):
		late = errPatience
	}
	h.mu.Lock()
	less(e.loads, actor)
	less(h.loads, actor)
	h.leave(e, actor)
	return e.state.or(late)
}

// or returns the state, with an error that is why there is nothing to show.
func (s state) or(err error) state {
	if s.data == nil && err != nil {
		s.err = err
	}
	return s
}

// forget makes the next get read each topic again, after a change.
func (h *hub) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		e.state.tried, e.begun = time.Time{}, time.Time{}
	}
	h.turns()
}

// watch reads a topic every second until stop is called. news receives after each reading, and at once. The
// error is a *shareError if the actor has too much open.
func (h *hub) watch(t topic, actor string) (news <-chan struct{}, stop func(), err error) {
	viewer := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.enter(actor); err != nil {
		return nil, nil, err
	}
	e := h.entry(t)
	e.viewers[viewer] = actor
	h.turns()
	viewer <- struct{}{}
	return viewer, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(e.viewers, viewer)
		h.leave(e, actor)
	}, nil
}

// enter counts a stream or a waiting request of an actor. mu is held.
func (h *hub) enter(actor string) error {
	if h.open[actor] >= mostOpen {
		return &shareError{fmt.Sprintf("%s has %d screens of this page open, which is the most: close some", actor, mostOpen)}
	}
	h.open[actor]++
	return nil
}

// leave undoes enter, and ends a reading that nobody waits for. mu is held.
func (h *hub) leave(e *entry, actor string) {
	less(h.open, actor)
	h.turns() // run ends if that was the last
	if e.reading != nil && len(e.viewers) == 0 && len(e.loads) == 0 {
		e.reading.stop(nil)
		e.reading = nil // whoever comes now does not wait for its end
	}
}

// less takes one of an actor's count.
func less(counts map[string]int, actor string) {
	if counts[actor]--; counts[actor] == 0 {
		delete(counts, actor)
	}
}

// state returns the state of a topic without reading it.
func (h *hub) state(key string) state {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[key]; e != nil {
		return e.state
	}
	return state{}
}

// begin starts to read an entry, which has no reading under way. mu is held.
func (h *hub) begin(e *entry) {
	ctx, stop := context.WithCancelCause(context.Background())
	h.begun++
	r := &reading{hub: h, number: h.begun, done: make(chan struct{}), stop: stop, granted: make(chan struct{}, 1)}
	r.limit = time.AfterFunc(loadTimeout, func() { stop(context.DeadlineExceeded) })
	e.reading, e.begun = r, time.Now()
	last := e.state.data
	r.ask(e.cost(last))
	go func() {
		defer stop(nil)
		var data any
		err := r.wait(ctx)
		if err == nil {
			data, err = e.load(context.WithValue(ctx, readingKey{}, r), last)
		}
		r.limit.Stop()
		h.end(e, r, data, err, context.Cause(ctx))
	}()
}

// end keeps the result of a reading, unless nobody waits for it any more. cause says why it was stopped, nil
// if it was not.
func (h *hub) end(e *entry, r *reading, data any, err, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.by != nil {
		less(h.under, *r.by)
	}
	close(r.done)
	h.turns()
	if e.reading != r {
		return
	}
	e.reading = nil
	now := h.now()
	if err == nil {
		e.state = state{data: data, at: now, tried: now}
	} else {
		e.state.err, e.state.tried = errOr(cause, err), now
	}
	for viewer := range e.viewers {
		select {
		case viewer <- struct{}{}:
		default: // it has not received the one before
		}
	}
}

type readingKey struct{}

// turn waits until the reading of ctx may send n more commands.
func turn(ctx context.Context, n int) error {
	r, is := ctx.Value(readingKey{}).(*reading)
	if !is {
		return nil
	}
	r.hub.mu.Lock()
	r.ask(n)
	r.hub.mu.Unlock()
	return r.wait(ctx)
}

// ask asks for the next commands. mu is held.
func (r *reading) ask(n int) {
	r.limit.Stop()
	r.asks, r.waits = n, true
	r.hub.turns()
}

func (r *reading) wait(ctx context.Context) error {
	select {
	case <-r.granted:
		r.limit.Reset(loadTimeout)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turns has the hub look whose turn it is. mu is held.
func (h *hub) turns() {
	if !h.running && len(h.open) > 0 {
		h.running = true
		go h.run()
	}
	select {
	case h.wake <- struct{}{}:
	default: // it looks in a moment anyway
	}
}

// run gives turns while there are viewers.
func (h *hub) run() {
	for {
		h.mu.Lock()
		if len(h.open) == 0 {
			h.running = false
			h.mu.Unlock()
			return
		}
		in := h.grant()
		h.mu.Unlock()
		select {
		case <-time.After(in):
		case <-h.wake:
		}
	}
}

// grant begins the readings that streams are due, and gives turns as far as the budget reaches. It returns
// when to look again. mu is held.
func (h *hub) grant() time.Duration {
	now, in := time.Now(), snapshotEvery
	for _, e := range h.entries {
		if len(e.viewers) == 0 || e.reading != nil {
			continue
		}
		if left := e.begun.Add(snapshotEvery).Sub(now); left > 0 {
			in = min(in, left)
		} else {
			h.begin(e)
		}
	}
	for {
		next := h.next()
		r, keep := next.reading, 0
		if r == nil {
			return in
		}
		if others := len(h.loads) - min(1, h.loads[next.actor]); next.stream && others == 0 {
			keep = streamsKeep
		}
		if lacks := h.budget.lacks(r.asks, keep, now); lacks > 0 {
			return min(in, lacks)
		}
		h.budget.spend(next.actor, r.asks)
		if r.by == nil {
			r.by = &next.actor
			h.under[next.actor]++
		}
		r.waits = false
		r.granted <- struct{}{}
	}
}

// claim is a claim of an actor to have a reading go on.
type claim struct {
	reading *reading
	actor   string
	stream  bool // no request waits for it
}

// next returns whose claim is next: of each actor requests come before streams, and earlier readings first.
// mu is held.
func (h *hub) next() (first claim) {
	best := map[string]claim{}
	for _, e := range h.entries {
		r := e.reading
		if r == nil || !r.waits {
			continue
		}
		take := func(c claim) {
			if r.by == nil && h.under[c.actor] >= atOnceMost {
				return
			}
			b, is := best[c.actor]
			if !is || b.stream && !c.stream || b.stream == c.stream && r.number < b.reading.number {
				best[c.actor] = c
			}
		}
		for actor := range e.loads {
			take(claim{r, actor, false})
		}
		for _, actor := range e.viewers {
			take(claim{r, actor, true})
		}
	}
	for _, c := range best {
		if first.reading == nil || cmp.Or(cmp.Compare(h.budget.start(c.actor), h.budget.start(first.actor)), cmp.Compare(c.actor, first.actor)) < 0 {
			first = c
		}
	}
	return first
}
