package asynqx

import (
	"container/list"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Slots are the places in which a server runs tasks, and which tenant has them. A run cannot be
// taken back when another tenant's task comes. So one tenant counts for half of the slots at most:
// while its runs fill more than that, and last, as many tasks of others run beyond
// Concurrency, up to half as many again. Nobody waits for the slots of one tenant, and one
// tenant alone has all of them.
//
// A run lasts once it has taken slotLasts. Shorter ones make room soon enough by themselves, and so does
// whatever is decided before a run, however long that takes on a busy machine.
//
// slots are safe for concurrent use.
type Slots struct {
	size int // Concurrency
	half int // of it, rounded up

	mu      sync.Mutex
	taken   int                   // by tasks, those that wait or are not decided on included
	started int                   // of them, those that may start
	rests   time.Time             // until when nothing is lent
	rested  time.Duration         // how long that was
	held    map[string]*list.List // of *slot by tenant, the oldest first
	coming  map[string]time.Time  // tasks taken from Redis that no handler has yet, by asynq's key, and since when
	refused map[string]bool       // tenants that might not start another task when they were asked for
	changed chan struct{}         // closed when a look may be due that was held back; nil: nobody waits
}

// Slot is one that a task has.
type Slot struct {
	of     *Slots
	tenant string
	since  atomic.Pointer[time.Time] // it runs; nil: it does not yet
	at     *list.Element             // nil: it was left
	starts bool
}

const (
	// slotLasts is how long a run takes at least for which others need not wait.
	slotLasts = 100 * time.Millisecond
	// slotComes is how long a task may take from Redis to its handler. It is only for those that
	// asynq gives up without a word.
	slotComes = time.Second
	// After a task that was released for nothing, none is taken beyond the slots for a while, twice as
	// long each time: a process that has room may release such tasks without an end.
	slotRest, slotMostRest = 25 * time.Millisecond, time.Second
)

// NewSlots returns the slots of a server that runs size tasks at once.
func NewSlots(size int) *Slots {
	return &Slots{size: size, half: (size + 1) / 2, held: map[string]*list.List{}, coming: map[string]time.Time{}, refused: map[string]bool{}}
}

// Most is how many tasks run at once, where one tenant has all of the slots.
func (s *Slots) Most() int { return 2*s.size - s.half }

// comes notes that a task was taken from Redis, by asynq's key of it.
func (s *Slots) comes(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[key] = time.Now()
}

// ended notes that asynq has ended a task: some never come to a handler, such as one whose deadline
// has passed.
func (s *Slots) ended(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, came := s.coming[key]; came {
		delete(s.coming, key)
		s.tell()
	}
}

// take gives a task that has come a slot; whose it is, is not known yet.
func (s *Slots) take(key string) *Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.coming, key)
	s.taken++
	one := &Slot{of: s}
	one.join("")
	return one
}

// join notes whose slot it is. slots.mu is held.
func (o *Slot) join(tenant string) {
	all := o.of.held[tenant]
	if all == nil {
		all = list.New()
		o.of.held[tenant] = all
	}
	o.tenant, o.at = tenant, all.PushBack(o)
}

// part takes it from its tenant. slots.mu is held.
func (o *Slot) part() {
	all := o.of.held[o.tenant]
	all.Remove(o.at)
	if o.at = nil; all.Len() == 0 {
		delete(o.of.held, o.tenant)
	}
}

// StartsFor says whose slot it is, and whether its task may start: one of a tenant that has half
// of the slots starts in those that are free, and not beyond Concurrency. released says that it had
// its turn.
func (o *Slot) StartsFor(tenant string, released bool) bool {
	if o == nil {
		return true
	}
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	if o.at == nil {
		return true
	}
	o.part()
	o.join(tenant)
	beyond := o.of.started >= o.of.size
	o.starts = o.of.mayStart(tenant, o.of.held[tenant].Len()-1)
	if !o.starts {
		o.of.refused[tenant] = true
		if released {
			o.of.rest()
		}
		return false
	}
	if o.of.started++; beyond {
		o.of.rested = 0 // what was lent is used
	}
	return true
}

// Runs notes that the slot's task runs from now. It takes no lock, as claims.tell takes none.
func (o *Slot) Runs() {
	if o != nil {
		now := time.Now()
		o.since.Store(&now)
	}
}

// Ran says whether the slot's task has run; true where nobody counts.
func (o *Slot) Ran() bool {
	return o == nil || o.since.Load() != nil
}

// mayStart says whether a task of a tenant may start that has so many slots besides. s.mu is held.
func (s *Slots) mayStart(tenant string, has int) bool {
	return tenant == "" || s.started < s.size || has < s.half && s.counted() <= s.size
}

// rest lends nothing for a while. s.mu is held.
func (s *Slots) rest() {
	if now := time.Now(); !now.Before(s.rests) {
		s.rested = min(max(2*s.rested, slotRest), slotMostRest)
		s.rests = now.Add(s.rested)
	}
}

// Leave frees the slot, once. It says whether a tenant that was refused may start tasks again.
func (o *Slot) Leave() (relieves bool) {
	if o == nil {
		return false
	}
	s := o.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.at == nil {
		return false
	}
	o.part()
	s.taken--
	if o.starts {
		s.started--
	}
	s.tell()
	for tenant := range s.refused {
		if s.mayStart(tenant, s.has(tenant)) {
			delete(s.refused, tenant)
			relieves = true
		}
	}
	return relieves
}

// has is how many slots a tenant has. s.mu is held.
func (s *Slots) has(tenant string) int {
	if all := s.held[tenant]; all != nil {
		return all.Len()
	}
	return 0
}

// refuses says whether none of a tenant's tasks that wait is to be released: there is no slot for it,
// or there are those alone that are lent.
func (s *Slots) refuses(tenant string, lent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tenant == "" || s.has(tenant) < s.half || s.started < s.size && !lent {
		return false // there is room for it, or for nobody
	}
	s.refused[tenant] = true
	return true
}

// counted is how many slots count as taken: half for one tenant at most. s.mu is held.
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

// lent is how many tasks run beyond Concurrency now: as many as one tenant's runs that last are
// above half. Two tenants cannot both have more than half but for a moment, so the larger counts. It
// walks the runs of one that has. s.mu is held.
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

// beyond is lent for who has no lock.
func (s *Slots) beyond() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent()
}

// admit waits until there is a slot for a task that may be anybody's. It returns false when stopped
// is closed before.
func (s *Slots) admit(stopped <-chan struct{}) bool {
	for {
		changed, again := s.full()
		if changed == nil {
			return true
		}
		timer := time.NewTimer(again)
		select {
		case <-changed:
		case <-timer.C:
		case <-stopped:
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}

// full returns what is closed when a slot may be free, and how soon to look again in any case; nil
// when one is free now.
func (s *Slots) full() (changed <-chan struct{}, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken+len(s.coming) >= s.size {
		maps.DeleteFunc(s.coming, func(_ string, since time.Time) bool { return time.Since(since) > slotComes })
	}
	if all := s.taken + len(s.coming); all < s.size || all < s.size+s.lent() {
		return nil, 0
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	again = slotComes
	if s.hogged() {
		again = slotLasts / 4
	}
	return s.changed, again
}

// Free is how many slots are not taken; below 0 where some run beyond them.
func (s *Slots) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size - s.taken - len(s.coming)
}

// hogged says whether one tenant has more than half of the slots. s.mu is held.
func (s *Slots) hogged() bool {
	for tenant, all := range s.held {
		if tenant != "" && all.Len() > s.half {
			return true
		}
	}
	return false
}

// tell lets a look go on that was held back. s.mu is held.
func (s *Slots) tell() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}
