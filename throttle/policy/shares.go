package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/headway-go/headway/internal/diag"
)

// Share is a name's part of what the rules of the level above it admit, while other names wait
// there.
type Share struct {
	// Guaranteed is the guaranteed part in percent, 0 for none. The parts of all names are at most 100
	// together. An unused part is lent at once.
	Guaranteed int64 `json:"part,omitempty"`
	// Weight divides the rest, in proportion to the weights, 1 to 1000. Defaults to 1.
	Weight int64 `json:"weight,omitempty"`
}

const (
	maxWeight    = 1000
	maxClasses   = 100
	wholePart    = 100 // percent
	defaultShare = 1

	// leastWeight is the lower bound of weights among shares, which matters if many names divide a rest
	// of 1 %.
	leastWeight = 0.001
)

// weightAmong returns the weight of a name among declared shares: its guaranteed part, and its part
// of the rest by weight. While all names wait, each gets at least its guaranteed part. 1 is an equal
// share. A name that is not declared gets the smallest weight of the declared ones.
func weightAmong(shares map[string]Share, name string) float64 {
	parts, sum := int64(0), int64(0)
	for _, s := range shares {
		parts, sum = parts+s.Guaranteed, sum+s.weight()
	}
	of := func(s Share) float64 {
		rest := float64(wholePart-parts) * float64(s.weight()) / float64(sum)
		return max(leastWeight, (float64(s.Guaranteed)+rest)/wholePart*float64(len(shares)))
	}
	if s, ok := shares[name]; ok {
		return of(s)
	}
	least := 1.0
	for _, s := range shares {
		least = min(least, of(s))
	}
	return least
}

func (s Share) weight() int64 { return max(s.Weight, defaultShare) }

// draftShare is the share of one name as it was written.
type draftShare struct {
	name         string
	at           diag.Place
	share        Share
	part, weight written
}

// checkShares checks the weight of a scope and the shares of the names below it.
func (s *draftScope) checkShares(path string, level int, faults *diag.Faults) map[string]Share {
	checkWeight(s.weight, s.weighed, path+".weight", faults)
	if len(s.shares) == 0 {
		return nil
	}
	if level >= maxLevels {
		faults.Add(s.shares[0].at, path+".shares", fmt.Sprintf("shares stands at level %d, below which no scope has names; the most is %d", level, maxLevels))
	}
	if len(s.shares) > maxClasses {
		faults.Add(s.shares[maxClasses].at, path+".shares", fmt.Sprintf("shares has %d names; the most is %d", len(s.shares), maxClasses))
	}
	shares, parts, least := make(map[string]Share, len(s.shares)), int64(0), (*draftShare)(nil)
	for i := range s.shares {
		d := &s.shares[i]
		d.check(diag.PathTo(path+".shares", d.name), faults)
		shares[d.name] = Share{Guaranteed: d.share.Guaranteed, Weight: d.share.weight()}
		if d.share.Guaranteed >= 1 && d.share.Guaranteed <= wholePart {
			parts += d.share.Guaranteed
		}
		if d.share.Guaranteed == 0 && least == nil {
			least = d
		}
	}
	switch {
	case parts > wholePart:
		faults.Add(s.shares[0].at, path+".shares", fmt.Sprintf("the parts are %d%% together; the most is %d%%", parts, wholePart))
	case parts == wholePart && least != nil:
		faults.Add(least.at, diag.PathTo(path+".shares", least.name), fmt.Sprintf("the parts are %d%% together, and %s has none: leave it one, or use priorities of tasks",
			parts, diag.Quote(least.name)))
	}
	return shares
}

func (d *draftShare) check(path string, faults *diag.Faults) {
	reason := diag.NameReason(d.name)
	if d.name == anyName {
		reason = `is no name that a scope can have; name each class, and let "*" of scopes carry what they have in common`
	}
	if reason != "" {
		faults.Add(d.at, path, "name "+reason)
	}
	checkWeight(d.share.Weight, d.weight, path+".weight", faults)
	if d.part.good() && (d.share.Guaranteed < 1 || d.share.Guaranteed > wholePart) {
		faults.Add(d.part.at, path+".part", fmt.Sprintf("part is %s; it must be 1%% to %d%%", d.part.text, wholePart))
	}
}

func checkWeight(weight int64, w written, path string, faults *diag.Faults) {
	if w.good() && (weight < 1 || weight > maxWeight) {
		faults.Add(w.at, path, fmt.Sprintf("weight is %s; it must be 1 to %d", w.text, maxWeight))
	}
}

// checkWeighed rejects a weight of a name that has a share, since the share determines what it gets.
func (s *draftScope) checkWeighed(path string, faults *diag.Faults) {
	for _, below := range s.scopes {
		if !below.weighed.good() {
			continue
		}
		if slices.ContainsFunc(s.shares, func(d draftShare) bool { return d.name == below.name }) {
			faults.Add(below.weighed.at, diag.PathTo(path+".scopes", below.name)+".weight",
				fmt.Sprintf("weight of %s is in shares of the scope above; keep one of the two", diag.Quote(below.name)))
		}
	}
}

// draftShares returns the draft of the shares of a level.
func draftShares(source *Source, shares map[string]Share) (drafts []draftShare) {
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		s, from := shares[name], source.under(name)
		drafts = append(drafts, draftShare{
			name: name, at: from.place(), share: s,
			part:   from.field("part", strconv.FormatInt(s.Guaranteed, 10)+"%", s.Guaranteed != 0),
			weight: from.field("weight", strconv.FormatInt(s.Weight, 10), s.Weight != 0),
		})
	}
	return drafts
}
