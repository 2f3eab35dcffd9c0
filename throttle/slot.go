package throttle

import (
	"strconv"
	"sync"
)

// slot is where the record of an attempt stands that has no id of its caller's.
// The next attempt writes over it, so that a process has as many records as it
// ever had attempts on their way at once: a new key for each costs Redis about
// 1 µs, and some 100 bytes for half a minute.
//
// A slot is used again only when what became of its attempt is known, and it was
// sent but once. Otherwise the attempt may yet arrive, and must then find its own
// record.
type slot struct {
	name  string // what follows the provider in its key; no id can be written so
	spent bool

	provider, key string // its key at the provider that it was used for last
	keyArg        any    // the same, as the client takes it
}

// at returns the slot's key at a provider. Only who has taken the slot may ask.
func (one *slot) at(provider string) string {
	if one.provider != provider {
		one.provider, one.key = provider, provider+one.name
		one.keyArg = one.key
	}
	return one.key
}

// slots are those of one Limiter.
type slots struct {
	client string

	mu    sync.Mutex
	idle  []*slot
	taken uint64 // how many there have ever been
}

func newSlots() *slots { return &slots{client: NewID()[:10]} }

func (s *slots) take() *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		one := s.idle[last]
		s.idle = s.idle[:last]
		return one
	}
	s.taken++
	return &slot{name: "@#" + s.client + "." + strconv.FormatUint(s.taken, 36)}
}

func (s *slots) put(one *slot) {
	if one.spent {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, one)
}

// answered says what is known of the attempt in the slot; a nil slot is none.
func (one *slot) answered(a *attempt, err error) {
	if one != nil && (err != nil || a.sends.Load() > 1) {
		one.spent = true
	}
}

// record returns the key of an attempt's record.
func (p *compiledScope) record(req *Request) string {
	if req.slot != nil {
		return req.slot.at(p.provider)
	}
	return p.attempt(p.attemptID(req))
}
