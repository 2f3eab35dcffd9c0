package asynqx

import (
	"container/list"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Slots are the places in which a server runs tasks, and the tenants that occupy them. A run cannot be interrupted when a task of
// another tenant comes. So one tenant counts for at most half of the slots: while its runs occupy more, and have taken slotLasts, as
// many tasks of other tenants run beyond Concurrency, up to half as many again. No tenant waits for the slots of a single other tenant,
// and one tenant alone may use all of them. Shorter runs free their slots soon enough by themselves.
//
// Slots are safe for concurrent use.
type Slots struct {
	size int // Concurrency
	half int // of it, rounded up

	mu      sync.Mutex
	taken   int                   // by tasks, including those that wait or are not decided on
	started int                   // those of them that may start
	rests   time.Time             // until when nothing is lent
	rested  time.Duration         // how long that was
	held    map[string]*list.List // of *slot by tenant, the oldest first
	coming  map[string]time.Time  // tasks taken from Redis that have not reached a handler, by asynq's key, and since when
	refused map[string]bool       // tenants that were refused another task when checked
	changed chan struct{}         // closed when a poll that was held back may be due; nil: none waits
}

// Slot is the slot of one task.
type Slot struct {
	slots  *Slots
	tenant string
	since  atomic.Pointer[time.Time] // since when it runs; nil: it does not yet
	at     *list.Element             // nil: it was freed
	starts bool
}

const (
	// slotLasts is the shortest duration of a run that counts as one that lasts.
	slotLasts = 100 * time.Millisecond
	// slotComes is how long a task may take from Redis to its handler. It matters only for tasks that asynq drops silently.
	slotComes = time.Second
	// After a task that was released for nothing, no task is taken beyond the slots for a pause that doubles each time.
	slotRest, slotMostRest = 25 * time.Millisecond, time.Second
)

// NewSlots returns the slots of a server that runs size tasks at once.
func NewSlots(size int) *Slots {
	return &Slots{size: size, half: (size + 1) / 2, held: map[string]*list.List{}, coming: map[string]time.Time{}, refused: map[string]bool{}}
}

// Most returns how many tasks run at once if one tenant has all of the slots.
func (s *Slots) Most() int { return 2*s.size - s.half }

// comes records that a task was taken from Redis, by asynq's key of it.
func (s *Slots) comes(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[key] = time.Now()
}

// ended records that asynq has ended a task: some never reach a handler, such as one whose deadline has passed.
func (s *Slots) ended(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, came := s.coming[key]; came {
		delete(s.coming, key)
		s.wake()
	}
}

// take gives a task that has come a slot; its tenant is not known yet.
func (s *Slots) take(key string) *Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.coming, key)
	s.taken++
	slot := &Slot{slots: s}
	slot.join("")
	return slot
}

// join records the tenant of the slot. Slots.mu is held.
func (t *Slot) join(tenant string) {
	all := t.slots.held[tenant]
	if all == nil {
		all = list.New()
		t.slots.held[tenant] = all
	}
	t.tenant, t.at = tenant, all.PushBack(t)
}

// part removes the slot from its tenant. Slots.mu is held.
func (t *Slot) part() {
	all := t.slots.held[t.tenant]
	all.Remove(t.at)
	if t.at = nil; all.Len() == 0 {
		delete(t.slots.held, t.tenant)
	}
}

// StartsFor records the tenant of the slot, and reports whether its task may start: a task of a tenant that has half of the slots may use
// free slots, but none beyond Concurrency. released says that the task was dispatched.
func (t *Slot) StartsFor(tenant string, released bool) bool {
	t.slots.mu.Lock()
	defer t.slots.mu.Unlock()
	if t.at == nil {
		return true
	}
	t.part()
	t.join(tenant)
	beyond := t.slots.started >= t.slots.size
	t.starts = t.slots.mayStart(tenant, t.slots.held[tenant].Len()-1)
	if !t.starts {
		t.slots.refused[tenant] = true
		if released {
			t.slots.rest()
		}
		return false
	}
	if t.slots.started++; beyond {
		t.slots.rested = 0 // what was lent is used
	}
	return true
}

// Runs records that the slot's task runs from now. It takes no lock, so that the run is not late.
func (t *Slot) Runs() {
	now := time.Now()
	t.since.Store(&now)
}

// Ran reports whether the slot's task has run.
func (t *Slot) Ran() bool { return t.since.Load() != nil }

// mayStart reports whether a task may start of a tenant that has that many other slots. s.mu is held.
func (s *Slots) mayStart(tenant string, has int) bool {
	return tenant == "" || s.started < s.size || has < s.half && s.counted() <= s.size
}

// rest lends no slot for a while. s.mu is held.
func (s *Slots) rest() {
	if now := time.Now(); !now.Before(s.rests) {
		s.rested = min(max(2*s.rested, slotRest), slotMostRest)
		s.rests = now.Add(s.rested)
	}
}

// Leave frees the slot, once. It reports whether a tenant that was refused may start tasks again.
func (t *Slot) Leave() (relieves bool) {
	s := t.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.at == nil {
		return false
	}
	t.part()
	s.taken--
	if t.starts {
		s.started--
	}
	s.wake()
	for tenant := range s.refused {
		if s.mayStart(tenant, s.has(tenant)) {
			delete(s.refused, tenant)
			relieves = true
		}
	}
	return relieves
}

// has returns how many slots a tenant has. s.mu is held.
func (s *Slots) has(tenant string) int {
	if all := s.held[tenant]; all != nil {
		return all.Len()
	}
	return 0
}

// refuses reports whether no waiting task of a tenant is to be released: there is no slot for it, or only slots that are lent.
func (s *Slots) refuses(tenant string, lent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tenant == "" || s.has(tenant) < s.half || s.started < s.size && !lent {
		return false // there is a slot for it, or for no tenant at all
	}
	s.refused[tenant] = true
	return true
}

// counted returns how many slots count as taken: at most half for one tenant. s.mu is held.
func (s *Slots) counted() (n int) {
	for tenant, all := range s.held {
		if tenant != "" {
			n += min(all.Len(), s.half)
			continue
		}
		n += all.Len()
	}
	return n
}

// lent returns how many tasks may run beyond Concurrency now: by how many the lasting runs of one tenant exceed half. Two tenants can
// both have more than half only for a moment, so the larger counts. s.mu is held.
func (s *Slots) lent() int {
	if s.started < s.half || time.Now().Before(s.rests) {
		return 0
	}
	most := 0
	for tenant, all := range s.held {
		if tenant == "" || all.Len() <= s.half {
			continue
		}
		last := 0
		for at := all.Front(); at != nil; at = at.Next() {
			if since := at.Value.(*Slot).since.Load(); since != nil && time.Since(*since) >= slotLasts { //nolint:forcetypeassert // see join
				last++
			}
		}
		most = max(most, last-s.half)
	}
	return min(most, s.size-s.half)
}

// beyond is lent for callers without the lock.
func (s *Slots) beyond() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent()
}

// admit waits until there is a slot for a task of any tenant. It returns false if stopped is closed first.
func (s *Slots) admit(stopped <-chan struct{}) bool {
	for {
		changed := s.full()
		if changed == nil {
			return true
		}
		select {
		case <-changed:
		case <-time.After(slotLasts / 4): // a run may last by then, so that a slot is lent
		case <-stopped:
			return false
		}
	}
}

// full returns a channel that is closed when a slot may be free; nil if one is free now.
func (s *Slots) full() (changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken+len(s.coming) >= s.size {
		maps.DeleteFunc(s.coming, func(_ string, since time.Time) bool { return time.Since(since) > slotComes })
	}
	if all := s.taken + len(s.coming); all < s.size || all < s.size+s.lent() {
		return nil
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Free returns how many slots are not taken; negative if tasks run beyond them.
func (s *Slots) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size - s.taken - len(s.coming)
}

// wake lets a poll go on that was held back. s.mu is held.
func (s *Slots) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}
