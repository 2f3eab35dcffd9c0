package throttle

import (
	"strconv"
	"strings"
)

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
