package page

import (
	"context"
	"sync"
	"time"
)

const (
	// snapshotEvery is how often open screens are read, and how long a reading counts as fresh.
	snapshotEvery = time.Second
	// restFactor spares a slow Redis: a reading is followed by a rest that is longer by this factor, up to longestRest.
	restFactor, longestRest = 20, 5 * time.Second
	// loadTimeout bounds one reading.
	loadTimeout = 10 * time.Second
	// mostTopics bounds how many topics are kept for a time without Redis.
	mostTopics = 300
)

// topic is one thing that people can look at: its key, how it is read, and how often at most while a screen
// that shows it is open. The zero every is snapshotEvery. load gets the last reading, nil for none.
type topic struct {
	key   string
	every time.Duration
	load  func(ctx context.Context, last any) (any, error)
}

// state is the last reading of a topic. If a later reading failed, err is its error and data is older.
type state struct {
	data  any
	at    time.Time // when data was read
	err   error
	tried time.Time
}

// hub reads each topic once for all its viewers, and only while it has some. It is safe for concurrent use.
type hub struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	topic
	state   state
	viewers map[chan struct{}]bool
	stop    context.CancelFunc // ends the readings for viewers
	reading chan struct{}      // closed at the end of the reading under way; nil for none
	used    time.Time
}

func newHub(now func() time.Time) *hub { return &hub{now: now, entries: map[string]*entry{}} }

// entry returns the entry of a topic. mu is held.
func (h *hub) entry(t topic) *entry {
	e := h.entries[t.key]
	if e == nil {
		if len(h.entries) >= mostTopics {
			h.drop()
		}
		e = &entry{topic: t, viewers: map[chan struct{}]bool{}}
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

// get returns the state of a topic, at most one snapshot old, or an older one with an error if Redis does not answer.
func (h *hub) get(ctx context.Context, t topic) state {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry(t)
	if s := e.state; s.err == nil && !s.tried.IsZero() && h.now().Sub(s.tried) < snapshotEvery {
		return s
	}
	for forgotten := true; forgotten && ctx.Err() == nil; forgotten = e.state.tried.IsZero() {
		if e.reading == nil {
			e.reading = make(chan struct{})
			go h.read(e, e.reading, e.state.data)
		}
		done := e.reading
		h.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		h.mu.Lock()
	}
	return e.state
}

// read reads a topic and notifies its viewers. It drops the result if forget was called meanwhile.
func (h *hub) read(e *entry, done chan struct{}, last any) {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	data, err := e.load(ctx, last)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(done)
	if e.reading != done {
		return
	}
	e.reading = nil
	now := h.now()
	if err == nil {
		e.state = state{data: data, at: now, tried: now}
	} else {
		e.state.err, e.state.tried = err, now
	}
	for viewer := range e.viewers {
		select {
		case viewer <- struct{}{}:
		default: // the notification before is still to be received
		}
	}
}

// forget makes the next get read each topic again, after a change.
func (h *hub) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		e.state.tried, e.reading = time.Time{}, nil
	}
}

// watch reads a topic repeatedly until stop is called. news receives at once, and after each reading.
func (h *hub) watch(t topic) (news <-chan struct{}, stop func()) {
	viewer := make(chan struct{}, 1)
	viewer <- struct{}{}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry(t)
	if e.viewers[viewer] = true; len(e.viewers) == 1 {
		var ctx context.Context
		ctx, e.stop = context.WithCancel(context.Background())
		go h.keepFresh(ctx, t)
	}
	return viewer, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if delete(e.viewers, viewer); len(e.viewers) == 0 {
			e.stop()
		}
	}
}

func (h *hub) keepFresh(ctx context.Context, t topic) {
	for ctx.Err() == nil {
		begun := time.Now()
		h.get(ctx, t)
		rest := min(restFactor*time.Since(begun), longestRest)
		select {
		case <-ctx.Done():
		case <-time.After(max(rest, snapshotEvery, t.every)):
		}
	}
}

func (h *hub) state(key string) state {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.entries[key]; e != nil {
		return e.state
	}
	return state{}
}
