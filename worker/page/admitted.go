package page

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// admitted is how many requests the rules of a scope admit in a slot of time. No rule: all fields are zero.
type admitted struct {
	// Most is the largest number, unused units of the time before included. Pace is the number in the long run, which is less if a rule's
	// window is longer than the slot; it leaves out windows longer than the chart.
	Most, Pace         int64
	MostRule, PaceRule policy.MatchedRule
	Known              bool
}

// Peaks reports whether more can start in a slot than in the long run.
func (a admitted) Peaks() bool { return a.PaceRule.Rule.Name != "" && a.Pace < a.Most }

// Limit is what is admitted in the long run, or the most if that is less.
func (a admitted) Limit() int64 {
	if a.Peaks() {
		return a.Pace
	}
	return a.Most
}

// LimitRule is the rule of the limit.
func (a admitted) LimitRule() policy.MatchedRule {
	if a.Peaks() {
		return a.PaceRule
	}
	return a.MostRule
}

// admittedIn returns what the rules of a scope admit from one time to another, in a chart that covers span.
func admittedIn(p *policy.Policy, scope policy.Scope, from, to time.Time, span time.Duration) (a admitted) {
	bounds, err := p.MatchAt(scope, from)
	if err != nil {
		return a
	}
	for _, b := range bounds {
		r := b.Rule
		if b.Paused() {
			return admitted{MostRule: b, PaceRule: b, Known: true}
		}
		if r.Active != nil && !r.Active.Holds(from) {
			continue
		}
		if r.Unlimited || r.Shadow || r.Algorithm == policy.Concurrency || r.Unit != "" && r.Unit != policy.Requests {
			continue
		}
		if most := mostIn(r, from, to); !a.Known || most < a.Most {
			a.Most, a.MostRule = most, b
		}
		if pace, is := paceIn(r, to.Sub(from), span); is && (a.PaceRule.Rule.Name == "" || pace < a.Pace) {
			a.Pace, a.PaceRule = pace, b
		}
		a.Known = true
	}
	return a
}

// mostIn returns the most units that a rule admits from one time to another, within a unit for each of its windows.
func mostIn(r policy.Rule, from, to time.Time) int64 {
	slot := to.Sub(from)
	windows := int64(1)
	switch r.Algorithm {
	case policy.TokenBucket:
		return r.Capacity() + int64(math.Ceil(float64(r.Limit)*slot.Seconds()/r.Per.Seconds()))
	case policy.Calendar:
		for at := r.Resets.Next(from); !at.IsZero() && at.Before(to) && windows < 1000; at = r.Resets.Next(at) {
			windows++
		}
	case policy.FixedWindow:
		if windows = (to.UnixMicro()-1)/r.Per.Microseconds() - from.UnixMicro()/r.Per.Microseconds() + 1; r.OpensOnUse {
			windows = 1 + ceilDiv(slot, r.Per)
		}
	default:
		windows = ceilDiv(slot, r.Per)
	}
	return r.Limit * windows
}

// paceIn returns how many units a rule admits in a slot in the long run.
func paceIn(r policy.Rule, slot, span time.Duration) (int64, bool) {
	if r.Algorithm == policy.Calendar || r.Per > span {
		return 0, false
	}
	return int64(math.Ceil(float64(r.Limit) * slot.Seconds() / r.Per.Seconds())), true
}

func ceilDiv(a, b time.Duration) int64 { return int64((a + b - 1) / b) }

// pastLimits keeps the policies of the last day, read once for all scopes.
type pastLimits struct {
	mu      sync.Mutex
	periods []policystore.Period
	read    time.Time
	number  int64
}

// pastFor is how long the policies are kept if there is no new version: the oldest of them are older than a chart then.
const pastFor = 10 * time.Minute

// pastPolicies returns the policies that were in force in the last day, oldest first: the present one alone if the limits come from no version.
// It costs one command when there is a new version, and every ten minutes.
func (h *handler) pastPolicies(ctx context.Context) ([]policystore.Period, error) {
	h.following.mu.Lock()
	number := int64(0)
	if v := h.following.known.Version; v != nil {
		number = v.Number
	}
	h.following.mu.Unlock()
	p, now := &h.past, h.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if number != p.number || now.Sub(p.read) >= pastFor {
		periods, err := h.store.Periods(ctx, now.Add(-daySpan-daySlot), now.Add(pastFor))
		if err != nil {
			return nil, err
		}
		p.periods, p.read, p.number = periods, now, number
	}
	if number == 0 || len(p.periods) == 0 {
		return []policystore.Period{{Policy: h.limiter.Policy()}}, nil
	}
	return p.periods, nil
}

// inForce returns the policy that was in force at a time, nil if that is unknown.
func inForce(periods []policystore.Period, at time.Time) (p *policy.Policy) {
	for _, one := range periods {
		if one.From.After(at) {
			break
		}
		p = one.Policy
	}
	return p
}
