package policy

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
)

// Digest returns a hash of all that decisions depend on: policies of the same limits have the same digest, in any process. It
// visits each rule.
func (p *Policy) Digest() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n", p.Unmatched())
	p.root.write(h)
	return h.Sum64()
}

func (t *tree) write(h io.Writer) {
	fmt.Fprintf(h, "%q %s %d %d %v\n", t.path, t.pause, t.until.UnixMicro(), t.weight, t.apps)
	for _, name := range slices.Sorted(maps.Keys(t.shares)) {
		fmt.Fprintf(h, "%q %+v\n", name, t.shares[name])
	}
	for _, r := range t.rules {
		if r.Resets != nil {
			fmt.Fprintf(h, "%v ", textOf(r.Resets))
		}
		if r.Active != nil {
			fmt.Fprintf(h, "%v ", textOf(r.Active))
		}
		r.Resets, r.Active = nil, nil
		fmt.Fprintf(h, "%+v\n", r)
	}
	if t.every != nil {
		t.every.write(h)
	}
	for _, name := range slices.Sorted(maps.Keys(t.scopes)) {
		t.scopes[name].write(h)
	}
}
