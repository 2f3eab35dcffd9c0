package policy

import (
	"fmt"
	"strconv"

	"github.com/headway-go/headway/internal/diag"
)

// MaxPriority is the largest priority; -MaxPriority is the smallest.
const MaxPriority = 1_000_000

// MaxPriority returns the highest priority that counts for tasks of a scope, and whether there is a
// cap: the lowest max_priority on its path. At each level a name's own value replaces that of "*".
// Costs as much as Match.
func (p *Policy) MaxPriority(s Scope) (limit int, limited bool) {
	if limit := p.maxPriority(s); limit != nil {
		return *limit, true
	}
	return 0, false
}

func (p *Policy) maxPriority(s Scope) (lowest *int) {
	p.visit(s, func(_ Scope, layers []*tree) {
		var own *int
		for _, layer := range layers {
			if layer.maxPriority != nil {
				own = layer.maxPriority
			}
		}
		if own != nil && (lowest == nil || *own < *lowest) {
			lowest = own
		}
	})
	return lowest
}

// draftMaxPriority returns the draft of a cap.
func draftMaxPriority(source *Source, n ScopeConfig) (int64, written) {
	var highest int
	if n.MaxPriority != nil {
		highest = *n.MaxPriority
	}
	return int64(highest), source.field("max_priority", strconv.Itoa(highest), n.MaxPriority != nil)
}

// checkMaxPriority checks the cap of a level and returns it, nil for none.
func (s *draftScope) checkMaxPriority(path string, faults *diag.Faults) *int {
	if !s.capped.good() {
		return nil
	}
	if s.maxPriority < -MaxPriority || s.maxPriority > MaxPriority {
		faults.Add(s.capped.at, path+".max_priority",
			fmt.Sprintf("max_priority is %s; it must be %d to %d", s.capped.text, -MaxPriority, MaxPriority))
		return nil
	}
	return new(int(s.maxPriority))
}
