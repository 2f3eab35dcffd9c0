package policy

import (
	"strings"
)

// Weights returns, for each name of a scope's path, its weight among its siblings. It is 0 at a
// level where no sibling has a weight. The result is nil if that is so at every level.
func (p *Policy) Weights(s Scope) (weights []float64) {
	shares, weighs, minded := map[string]Share(nil), false, false
	p.visit(s, func(level Scope, layers []*tree) {
		name := level.text[strings.LastIndexByte(level.text, '/')+1:]
		weight := 0.0
		if weighs {
			weight, minded = defaultShare, true
		}
		for _, layer := range layers { // that of the name replaces that of "*"
			if layer.weight > 0 {
				weight = float64(layer.weight)
			}
		}
		if shares != nil {
			weight = weightAmong(shares, name)
		}
		weights, shares, weighs = append(weights, weight), nil, false
		for _, layer := range layers {
			weighs = weighs || layer.weighs
			if layer.shares != nil {
				shares = layer.shares
			}
		}
	})
	if !minded {
		return nil
	}
	return weights
}

// Weight returns the weight of a scope among the waiters for a rule at its first `level` names. That
// is the weight of the name below them, or 1 if that name has none or the scope ends there. Costs as
// much as Match.
func (p *Policy) Weight(s Scope, level int) float64 {
	weights := p.Weights(s)
	if level < 0 || level >= len(weights) || weights[level] == 0 {
		return defaultShare
	}
	return weights[level]
}
