package worker

import (
	"maps"
	"slices"
	"sync"
)

// gates are those of a Middleware's servers. They are safe for concurrent use.
type gates struct {
	mu  sync.Mutex
	all map[*dequeuePacer]*slots
}

func (g *gates) add(one *dequeuePacer, its *slots) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[*dequeuePacer]*slots{}
	}
	g.all[one] = its
}

func (g *gates) remove(one *dequeuePacer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, one)
}

// serving returns a server that asks for tasks of a queue and has a slot, that with the most to spare beside what is to be
// handed out; nil where there is none.
func (g *gates) serving(name string) (found *dequeuePacer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := 0
	for one, its := range g.all {
		free := its.free()
		if asks, has := one.serves(name); asks && free > 0 && (found == nil || free-has > most) {
			found, most = one, free-has
		}
	}
	return found
}

// shut has no server ask for tasks of a queue until open is called. settled returns when no answer is on its way.
func (g *gates) shut(name string) (open, settled func()) {
	g.mu.Lock()
	all, prefix := slices.Collect(maps.Keys(g.all)), queuePrefix(name)
	g.mu.Unlock()
	each := func(do func(*dequeuePacer, string)) func() {
		return func() {
			for _, one := range all {
				do(one, prefix)
			}
		}
	}
	each((*dequeuePacer).shut)()
	return sync.OnceFunc(each((*dequeuePacer).open)), each((*dequeuePacer).settled)
}

// atHand says whether a server has tasks that are to be handed out now.
func (g *gates) atHand() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for one := range g.all {
		if one.atHand() {
			return true
		}
	}
	return false
}

// kick has every server look for tasks at once: something was put into pending.
// It does not block, and costs an idle server one round of looks.
func (g *gates) kick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for one := range g.all {
		one.kick()
	}
}

// lent is how many tasks may run beyond the servers' Concurrency now.
func (g *gates) lent() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, its := range g.all {
		n += its.beyond()
	}
	return n
}

// refuse says whether no server may start a further task of a tenant now; lent, that there are those slots
// alone that are lent.
func (g *gates) refuse(tenant string, lent bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	refuses := len(g.all) > 0
	for _, its := range g.all {
		refuses = its.refuses(tenant, lent) && refuses // each is to know whom it held up
	}
	return refuses
}

// none says whether there is no server, or none that asks for tasks any more.
func (g *gates) none() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all) == 0
}
