package throttle

import (
	"strconv"
	"strings"
)

// weights returns, for each name of a scope's path, its weight among the names beside it,
// 0 where none of them has any; nil where that is so at every level.
func (p *Policy) weights(s Scope) (weights []float64) {
	shares, weighs, minded := map[string]Share(nil), false, false
	p.visit(s, func(level Scope, layers []*tree) {
		name := level.text[strings.LastIndexByte(level.text, '/')+1:]
		weight := 0.0
		if weighs {
			weight, minded = defaultShare, true
		}
		for _, layer := range layers { // that of the name lies over that of "*"
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

// Weight returns the weight of a scope among those that wait for a rule of its first
// `level` names: that of the name below them, 1 where it has no weight or the scope ends
// there. Costs as much as Match.
func (p *Policy) Weight(s Scope, level int) float64 {
	weights := p.weights(s)
	if level < 0 || level >= len(weights) || weights[level] == 0 {
		return defaultShare
	}
	return weights[level]
}

// weigh notes the weights of the names of a path, nil for none: among those that wait for a rule
// counts that of the name below the rule's level.
func (p *compiledScope) weigh(weights []float64) {
	p.named, p.weights = weights, make([]string, len(p.bounds))
	var levels []string
	for i, b := range p.bounds {
		p.weights[i] = noWeight
		if level := b.Scope.Len(); level < len(weights) && weights[level] > 0 {
			p.weights[i] = strconv.FormatFloat(weights[level], 'f', weightDigits, 64)
			p.weights[i] = strings.TrimSuffix(strings.TrimRight(p.weights[i], "0"), ".")
		}
		if i > 0 && b.Scope == p.bounds[i-1].Scope {
			continue
		}
		level := strconv.Itoa(b.Scope.Len() - 1)
		if p.weights[i] != noWeight {
			level += "*" + p.weights[i]
		}
		levels = append(levels, level)
	}
	p.levels = strings.Join(levels, ",")
}

// noWeight stands at a level where no name has a weight.
const noWeight = "0"

// weightDigits is how finely weights are told to scripts, which count a turn in parts of
// 1/100000.
const weightDigits = 5
