package policy

// Share is a name's part of what the rules of the level above it admit, while other names wait there.
type Share struct {
	// Guaranteed is the guaranteed part in percent, 0 for none. The parts of all names are at most 100 together. An unused part
	// is lent at once.
	Guaranteed int64 `json:"part,omitempty"`
	// Weight divides the rest, in proportion to the weights, 1 to 1000. Defaults to 1.
	Weight int64 `json:"weight,omitempty"`
}

const (
	wholePart    = 100 // percent
	defaultShare = 1

	// leastWeight is the lower bound of weights among shares, which matters if many names divide a rest of 1 %.
	leastWeight = 0.001
)

// weightAmong returns the weight of a name among declared shares: its guaranteed part, and its part of the rest by weight. While
// all names wait, each gets at least its guaranteed part. 1 is an equal share. A name that is not declared gets the smallest
// weight of the declared ones.
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

// Weights returns, for each name of a scope's path, its weight among its siblings. It is 0 at a level where no sibling has a
// weight. The result is nil if that is so at every level.
func (p *Policy) Weights(s Scope) (weights []float64) {
	shares, weighs, minded := map[string]Share(nil), false, false
	p.visit(s, func(level Scope, layers []*tree) {
		weight := 0.0
		if weighs {
			weight, minded = defaultShare, true
		}
		if t := lastWith(layers, func(t *tree) bool { return t.Weight > 0 }); t != nil {
			weight = float64(t.Weight)
		}
		if shares != nil {
			weight = weightAmong(shares, level.last())
		}
		weights, shares = append(weights, weight), nil
		weighs = lastWith(layers, func(t *tree) bool { return t.weighs }) != nil
		if t := lastWith(layers, func(t *tree) bool { return t.Shares != nil }); t != nil {
			shares = t.Shares
		}
	})
	if !minded {
		return nil
	}
	return weights
}

// Weight returns the weight of a scope among the waiters for a rule at its first `level` names. That is the weight of the name
// below them, or 1 if that name has none or the scope ends there. Costs as much as Match.
func (p *Policy) Weight(s Scope, level int) float64 {
	weights := p.Weights(s)
	if level < 0 || level >= len(weights) || weights[level] == 0 {
		return defaultShare
	}
	return weights[level]
}
