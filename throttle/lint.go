package throttle

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// reached is the part of its limit below which a rule is worth a warning.
const reached = 0.9

// Lint returns what is suspicious in a policy: what Policy.Lint returns, and then, in the order of scopes, each rule that cannot
// reach 90 % of its limit, since its window is longer by the default start tolerance and its margin. It costs what Policy.Lint
// costs. Source: docs/algorithms.md#how-much-longer-is-a-window
func Lint(p *policy.Policy) []policy.Warning {
	var slow []policy.Warning
	for pattern, r := range p.Rules() {
		if reason := slowReason(r); reason != "" {
			slow = append(slow, policy.Warning{Scope: pattern, Rule: r.Name, Reason: reason})
		}
	}
	slices.SortStableFunc(slow, func(a, b policy.Warning) int { return strings.Compare(a.Scope, b.Scope) })
	return append(p.Lint(), slow...)
}

// slowReason says by how much a rule stays below its limit, and what to do, if it is worth it.
func slowReason(r policy.Rule) string {
	units, per := pace(policy.MatchedRule{Rule: r}, defaultPad)
	if units == 0 || r.Unlimited {
		return ""
	}
	part := float64(units) / float64(per) / (float64(r.Limit) / float64(r.Per))
	if part >= reached {
		return ""
	}
	late := defaultPad + r.Margin
	what, try := fmt.Sprintf("the start tolerance of %s is", late), "write a limit for a longer time"
	if r.Margin > 0 {
		what = fmt.Sprintf("the start tolerance and its margin, %s, are", late)
		try = "write a shorter margin, or a limit for a longer time"
	}
	if r.Margin > 0 && r.Algorithm == policy.TokenBucket {
		try = fmt.Sprintf("write a shorter margin, or a burst of %d, which pays for it", 1+int64(math.Ceil(late.Seconds()*float64(r.Limit)/r.Per.Seconds())))
	}
	return fmt.Sprintf("reaches %.0f %% of its limit at most: %s added to per (%s); %s", math.Floor(100*part), what, r.Per, try)
}

// pace returns how many units a rule admits in how long while tasks wait for it.
func pace(b policy.MatchedRule, tolerance time.Duration) (units int64, per time.Duration) {
	if b.Rule.Limit == 0 || b.Rule.Algorithm == policy.Calendar {
		return 0, 0
	}
	kind, n := wire.Numbers(b.Rule, tolerance, time.Time{})
	switch kind {
	case 'T':
		return n[0], us(n[1])
	case 'S':
		if n[2] == 0 {
			return n[0], us(n[1]) // a window that opens on use
		}
		cells := max(1, (n[1]+n[2]-1)/n[2]) // a unit leaves at the end of its cell
		return n[0], time.Duration(cells*n[2]) * time.Microsecond
	default:
		return 0, 0
	}
}
