package page

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// snapshotEvery is the time between two snapshots of what viewers look at, and snapshotCommands the
	// most Redis commands of one snapshot.
	snapshotEvery    = time.Second
	snapshotCommands = 50
	// loadTimeout bounds one reading.
	loadTimeout = 5 * time.Second
	// mostTopics bounds how many topics are kept for a time without Redis.
	mostTopics = 300
	atOnceMost = 4
)

// topic is one thing that viewers can look at: its key, the cost of one reading, and how it is read.
type topic struct {
	key  string
	cost func(last any) int // commands of Redis that the next reading sends, at most
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

// hub reads each topic once for all its viewers, and only while it has viewers.
type hub struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	entries map[string]*entry
	looking int // viewers of all entries
	running bool
}

type entry struct {
	topic
	state   state
	viewers map[chan struct{}]bool
	loading chan struct{} // closed when the current reading ends; nil for none
	used    time.Time
}

func newHub(log *slog.Logger, now func() time.Time) *hub {
	return &hub{log: log, now: now, entries: map[string]*entry{}}
}

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
		if len(e.viewers) == 0 && e.loading == nil && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest != nil {
		delete(h.entries, oldest.key)
	}
}

// get returns the state of a topic, at most one snapshot old. If Redis does not answer, it is the state
// from before, with the error.
func (h *hub) get(ctx context.Context, t topic) state {
	h.mu.Lock()
	e := h.entry(t)
	if fresh := h.now().Sub(e.state.tried); fresh < snapshotEvery && e.loading == nil && !e.state.tried.IsZero() && e.state.err == nil {
		defer h.mu.Unlock()
		return e.state
	}
	done := h.begin(ctx, e)
	h.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return e.state
}

// forget makes the next get read each topic again, after a change.
func (h *hub) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		e.state.tried = time.Time{}
	}
}

// begin starts to read an entry, unless a reading is under way, and returns a channel that is closed at
// the end. mu is held.
func (h *hub) begin(ctx context.Context, e *entry) <-chan struct{} {
	if e.loading != nil {
		return e.loading
	}
	done := make(chan struct{})
	e.loading = done
	last := e.state.data
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		data, err := e.load(ctx, last)
		h.mu.Lock()
		defer h.mu.Unlock()
		now := h.now()
		if err == nil {
			e.state = state{data: data, at: now, tried: now}
		} else {
			e.state.err, e.state.tried = err, now
		}
		e.loading = nil
		close(done)
		for viewer := range e.viewers {
			select {
			case viewer <- struct{}{}:
			default: // it has not received the one before
			}
		}
	}()
	return done
}

// watch reads a topic every second until stop is called. news receives after each reading, and at once.
func (h *hub) watch(t topic) (news <-chan struct{}, stop func()) {
	viewer := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entry(t)
	e.viewers[viewer] = true
	h.looking++
	if !h.running {
		h.running = true
		go h.run()
	}
	viewer <- struct{}{}
	return viewer, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(e.viewers, viewer)
		h.looking--
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

// run takes a snapshot each second while there are viewers.
func (h *hub) run() {
	tick := time.NewTicker(snapshotEvery)
	defer tick.Stop()
	for range tick.C {
		h.mu.Lock()
		if h.looking == 0 {
			h.running = false
			h.mu.Unlock()
			return
		}
		due := h.due()
		h.mu.Unlock()
		h.read(due)
	}
}

// due returns the topics to read in this snapshot: those read longest ago, as many as the commands
// suffice for. mu is held.
func (h *hub) due() (list []*entry) {
	now := h.now()
	for _, e := range h.entries {
		// A reading takes a moment, so the next is due a little before its second has passed.
		if len(e.viewers) > 0 && e.loading == nil && now.Sub(e.state.tried) >= snapshotEvery*3/4 {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Or(a.state.tried.Compare(b.state.tried), cmp.Compare(a.key, b.key)) })
	left := snapshotCommands
	for i, e := range list {
		if left -= e.cost(e.state.data); left < 0 && i > 0 {
			return list[:i]
		}
	}
	return list
}

// read reads entries, a few at a time.
func (h *hub) read(due []*entry) {
	for some := range slices.Chunk(due, atOnceMost) {
		var all []<-chan struct{}
		h.mu.Lock()
		for _, e := range some {
			all = append(all, h.begin(context.Background(), e))
		}
		h.mu.Unlock()
		for _, done := range all {
			<-done
		}
	}
}
