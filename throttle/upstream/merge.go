package upstream

import (
	"cmp"
	"slices"
	"strings"
)

// A rank orders sources by precedence if an answer gives the same quota twice.
type rank int

const (
	currentRank rank = iota // the IETF draft, with names
	earlierRank             // the IETF draft, earlier forms
	vendorRank              // vendors' own fields
)

// maxFindings bounds the work of merging.
const maxFindings = 64

// A finding is a quota on its way to the Advice.
type finding struct {
	Quota
	rank  rank
	plain bool // no policy's and of no window: it may speak of any limit on its unit
}

// merge leaves each quota once, in an order of its own.
func merge(found []finding) []Quota {
	found = slices.DeleteFunc(found, finding.saysNothing)
	slices.SortFunc(found, finding.compare)
	found = found[:min(len(found), maxFindings)]
	found = joinTwins(found)
	found = dropLesser(found)
	if len(found) == 0 {
		return nil
	}
	quotas := make([]Quota, min(len(found), MaxQuotas))
	for i := range quotas {
		quotas[i] = found[i].Quota
	}
	return quotas
}

// saysNothing is true of a quota without numbers, and of one of 0: that is how
// APIs write that they have none.
func (f finding) saysNothing() bool {
	return f.Limit == 0 || f.Limit == Unknown && f.Remaining == Unknown
}

func (f finding) compare(g finding) int {
	return cmp.Or(
		cmp.Compare(f.rank, g.rank),
		strings.Compare(f.Unit, g.Unit),
		cmp.Compare(f.Window, g.Window),
		strings.Compare(f.Name, g.Name),
		strings.Compare(f.Source, g.Source),
		cmp.Compare(f.Limit, g.Limit),
		cmp.Compare(f.Remaining, g.Remaining),
		cmp.Compare(f.Reset, g.Reset),
	)
}

// joinTwins makes one quota of a plain one and one that says the same and more:
// Kong tells the limit of its shortest window a second time, with the reset.
func joinTwins(found []finding) []finding {
	twinOf := func(f finding) int {
		return slices.IndexFunc(found, func(g finding) bool { return f.plain && !g.plain && g.isTwin(f) })
	}
	var kept []finding
	for _, f := range found {
		if at := twinOf(f); at >= 0 {
			found[at].fill(f)
		}
	}
	for _, f := range found {
		if twinOf(f) < 0 {
			kept = append(kept, f)
		}
	}
	return kept
}

// isTwin reports whether f and g may be the same quota: neither says what the
// other denies.
func (f finding) isTwin(g finding) bool {
	return f.Unit == g.Unit && f.Limit != Unknown && f.Limit == g.Limit &&
		(f.Remaining == g.Remaining || f.Remaining == Unknown || g.Remaining == Unknown) &&
		(f.Window == 0 || g.Reset <= f.Window)
}

func (f *finding) fill(g finding) {
	if f.Remaining == Unknown {
		f.Remaining = g.Remaining
	}
	if f.Reset == Unknown {
		f.Reset = g.Reset
	}
}

// dropLesser leaves out what a higher rank tells: a plain quota, where that tells
// one on its unit, and one with a window, where it tells one on its unit and
// window. What is left of a limit is not left out for a limit alone.
func dropLesser(found []finding) []finding {
	kept := found[:0]
	for _, f := range found {
		told := slices.ContainsFunc(kept, func(g finding) bool {
			return g.rank < f.rank && g.Unit == f.Unit && (f.plain || f.Window != 0 && f.Window == g.Window) &&
				(g.Remaining != Unknown || f.Remaining == Unknown)
		})
		if !told {
			kept = append(kept, f)
		}
	}
	return kept
}
