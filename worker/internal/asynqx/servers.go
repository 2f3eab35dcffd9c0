package asynqx

import "sync"

// Servers are the pacers and slots of a Middleware's servers. They are safe for concurrent use.
type Servers struct {
	mu  sync.Mutex
	all map[*Pacer]*Slots
}

// Add adds a server, by its pacer and its slots.
func (s *Servers) Add(pacer *Pacer, slots *Slots) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Pacer]*Slots{}
	}
	s.all[pacer] = slots
}

// Remove removes a server, which polls for tasks no more.
func (s *Servers) Remove(pacer *Pacer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, pacer)
}

// Serving returns the pacer of a server that polls a queue and has a free slot: the one with the most
// to spare besides what is to be handed out; nil if there is none.
func (s *Servers) Serving(name string) (found *Pacer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := 0
	for pacer, slots := range s.all {
		free := slots.Free()
		if asks, has := pacer.serves(name); asks && free > 0 && (found == nil || free-has > most) {
			found, most = pacer, free-has
		}
	}
	return found
}

// Kick makes every server poll for tasks at once: something was put into pending. It does not block,
// and costs an idle server one round of polls.
func (s *Servers) Kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pacer := range s.all {
		pacer.Kick()
	}
}

// Lent returns how many tasks may run beyond the servers' Concurrency now.
func (s *Servers) Lent() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slots := range s.all {
		n += slots.beyond()
	}
	return n
}

// Refuse reports whether no server may start a further task of a tenant now; lent is true if only lent slots are free.
func (s *Servers) Refuse(tenant string, lent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	refuses := len(s.all) > 0
	for _, slots := range s.all {
		refuses = slots.refuses(tenant, lent) && refuses // each records which tenant it refused
	}
	return refuses
}

// None reports whether there is no server that still polls for tasks.
func (s *Servers) None() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 0
}
