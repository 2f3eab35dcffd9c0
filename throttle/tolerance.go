package throttle

import (
	"log/slog"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// hastyRules tells of rules whose window is shorter than the StartTolerance: that widens the window, so that
// little of their rate is left.
type hastyRules struct {
	tolerance time.Duration
	logger    *slog.Logger

	mu   sync.Mutex
	told map[hastyRule]bool // those of the policy
}

type hastyRule struct {
	pattern, name string
	per           time.Duration
}

// in looks through a policy, and tells of the rules that the one before did not have.
func (s *hastyRules) in(p *policy.Policy) {
	s.mu.Lock()
	before := s.told
	s.told = map[hastyRule]bool{}
	var short []hastyRule
	for pattern, r := range p.Rules() {
		if r.Per == 0 || r.Per >= s.tolerance { // 0: of a concurrency rule, a calendar, a removal
			continue
		}
		one := hastyRule{pattern, r.Name, r.Per}
		if s.told[one] = true; !before[one] {
			short = append(short, one)
		}
	}
	s.mu.Unlock() // a handler may be slow, or ask the limiter itself
	for _, r := range short {
		s.logger.Warn("rule's per is shorter than Config.StartTolerance: the rule loses at least half of its rate",
			"scope", r.pattern, "rule", r.name, "per", r.per, "start_tolerance", s.tolerance)
	}
}
