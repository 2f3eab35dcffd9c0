package asynqx

import (
	"maps"
	"slices"
	"sync"
)

// Servers are the pacers and slots of a Middleware's servers. They are safe for concurrent use.
type Servers struct {
	mu  sync.Mutex
	all map[*Pacer]*Slots
}

// Add adds a server, by its pacer and its slots.
func (g *Servers) Add(one *Pacer, its *Slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[*Pacer]*Slots{}
	}
	g.all[one] = its
}

// Remove removes a server, which polls for tasks no more.
func (g *Servers) Remove(one *Pacer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, one)
}

// Serving returns the pacer of a server that polls a queue and has a free slot: the one with the most
// to spare besides what is to be handed out; nil if there is none.
func (g *Servers) Serving(name string) (found *Pacer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := 0
	for one, its := range g.all {
		free := its.Free()
		if asks, has := one.serves(name); asks && free > 0 && (found == nil || free-has > most) {
			found, most = one, free-has
		}
	}
	return found
}

// Kick makes every server poll for tasks at once: something was put into pending. It does not block,
// and costs an idle server one round of polls.
func (g *Servers) Kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for one := range g.all {
		one.Kick()
	}
}

// Lent returns how many tasks may run beyond the servers' Concurrency now.
func (g *Servers) Lent() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, its := range g.all {
		n += its.beyond()
	}
	return n
}

// Refuse reports whether no server may start a further task of a tenant now; lent is true if only lent
// slots are free.
func (g *Servers) Refuse(tenant string, lent bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	refuses := len(g.all) > 0
	for _, its := range g.all {
		refuses = its.refuses(tenant, lent) && refuses // each records which tenant it refused
	}
	return refuses
}

// None reports whether there is no server that still polls for tasks.
func (g *Servers) None() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all) == 0
}

// LockAll holds the locks of all slots until unlock is called, for tests of what must not wait for
// them.
func (g *Servers) LockAll() (unlock func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.Collect(maps.Values(g.all))
	for _, its := range all {
		its.mu.Lock()
	}
	return func() {
		for _, its := range all {
			its.mu.Unlock()
		}
	}
}
