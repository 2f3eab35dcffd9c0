package throttle

import (
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// RuleHours is a rule that applies in certain hours.
type RuleHours struct {
	policy.MatchedRule
	Holds   bool      // it applies now
	Changes time.Time // when that changes
}

// Hours returns the rules of a scope that apply in certain hours only, and whether they apply now, by Redis's clock as far as it
// is known. It does no I/O. The error is a *policy.ScopeError or *policy.UnmatchedError.
func (l *Limiter) Hours(scope string) (list []RuleHours, err error) {
	p, err := l.plan(scope)
	if err != nil {
		return nil, err
	}
	now := l.serverTime(p.Prefix)
	for _, b := range p.All {
		if b.Rule.Active != nil {
			active, _, until := b.Rule.ActiveAt(now)
			list = append(list, RuleHours{b, active, until})
		}
	}
	return list, nil
}
