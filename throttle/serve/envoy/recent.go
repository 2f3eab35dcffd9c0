package envoy

import (
	"context"
	"sync"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// recent is what each client was granted last of each scope, for negative hits: Envoy names no grant that they belong to, and units of one scope are
// alike. It is safe for concurrent use.
type recent struct {
	mu     sync.Mutex
	scopes map[string][]given // by ask.owner
}

// given is a grant, and how many of its units were not given back.
type given struct {
	grant throttle.Grant
	left  int64
	units []string
}

const (
	mostRecent = 32   // of a scope
	mostScopes = 4096 // others make room for those of now
)

// add notes a grant that takes units of rates.
func (r *recent) add(owner string, d throttle.Decision, hits uint64) {
	if d.Grant.Zero() || d.Degraded {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list, known := r.scopes[owner]
	if !known && len(r.scopes) >= mostScopes {
		for other := range r.scopes { // any
			delete(r.scopes, other)
			break
		}
	}
	if len(list) == mostRecent {
		copy(list, list[1:])
		list = list[:mostRecent-1]
	}
	r.scopes[owner] = append(list, given{grant: d.Grant, left: int64(hits), units: unitsOf(d)}) //nolint:gosec // see read
}

func unitsOf(d throttle.Decision) (units []string) {
	for _, rule := range d.Rules {
		if rule.Unit != "" { // else it counts places
			units = append(units, rule.Unit)
		}
	}
	return units
}

// take takes up to n units of the newest grants, and returns what they are to be settled at.
func (r *recent) take(owner string, n int64) (changed []given) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.scopes[owner]
	for n > 0 && len(list) > 0 {
		last := &list[len(list)-1]
		back := min(n, last.left)
		n, last.left = n-back, last.left-back
		changed = append(changed, *last)
		if last.left == 0 {
			list = list[:len(list)-1]
		}
	}
	if r.scopes[owner] = list; len(list) == 0 {
		delete(r.scopes, owner)
	}
	return changed
}

// giveBack gives back up to n units of what this process granted the owner. Units of other processes, and of long ago, stay spent.
func (r *recent) giveBack(ctx context.Context, l *throttle.Limiter, owner string, n int64) {
	for _, g := range r.take(owner, n) {
		if g.left == 0 {
			_ = l.Refund(ctx, g.grant) // if it fails, the units come back by the clock
			continue
		}
		costs := policy.Costs{}
		for _, unit := range g.units {
			costs[unit] = g.left
		}
		_, _ = l.Settle(ctx, g.grant, costs)
	}
}
