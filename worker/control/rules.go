package control

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Rule is the state of a rule that applies to a scope's tasks now. docs/json.md has its fields.
type Rule struct {
	Rule      string           `json:"rule"`
	RuleScope string           `json:"rule_scope"`
	Algorithm policy.Algorithm `json:"algorithm"`
	Unit      string           `json:"unit,omitempty"` // none for places of Concurrency
	Limit     int64            `json:"limit"`          // the most at once: the burst of a token bucket
	Used      int64            `json:"used"`
	Remaining int64            `json:"remaining"`
	Reset     Time             `json:"reset,omitzero"`
	Waiting   int64            `json:"waiting"` // units, in the queues of all scopes under the rule

	// Pace is how many units a second the rule admits while tasks wait, 0 if no clock can tell.
	Pace float64 `json:"-"`

	// Admits and the fields after it are the API's correction, which counts in place of the limit.
	Admits      int64 `json:"admits,omitempty"`
	AdmitsUntil Time  `json:"admits_until,omitzero"`
	VendorLimit int64 `json:"vendor_limit,omitempty"` // the limit by the API's own words
}

// Rules returns the state of the rules that apply to a scope's tasks now, outermost first. Its errors
// are those of Limiter.Forecast. It costs three round trips.
func (s *Service) Rules(ctx context.Context, who Actor, scope string) ([]Rule, error) {
	if err := s.May(who, VerbSee, scope); err != nil {
		return nil, err
	}
	told, err := s.limiter.UpstreamState(ctx, scope)
	if err != nil {
		return nil, err
	}
	return s.rules(ctx, scope, told)
}

func (s *Service) rules(ctx context.Context, scope string, told throttle.UpstreamState) (list []Rule, err error) {
	now, err := s.limiter.Forecast(ctx, scope)
	if err != nil {
		return nil, err
	}
	return rulesOf(now, told), nil
}

// rulesOf returns the rules of a forecast, with the API's corrections.
func rulesOf(now throttle.Forecast, told throttle.UpstreamState) (list []Rule) {
	for _, state := range now.Rules {
		if state.Paused {
			continue
		}
		r := Rule{
			Rule: state.Rule, RuleScope: state.Scope, Algorithm: state.Algorithm, Unit: state.Unit, Limit: state.Limit,
			Used: max(0, state.Limit-state.Remaining), Remaining: state.Remaining, Waiting: state.Waiting, Reset: resets(state, now.At),
		}
		if state.Units > 0 && state.Per > 0 {
			r.Pace = float64(state.Units) / state.Per.Seconds()
		}
		for _, c := range told.Corrections {
			if c.Bound.Scope.String() == state.Scope && c.Bound.Rule.Name == state.Rule {
				r.correct(c)
			}
		}
		list = append(list, r)
	}
	return list
}

// correct sets what counts in place of the limit. The scripts correct the burst of a bucket along with
// its rate; a bucket's used stays what is missing from the burst of the limits.
func (r *Rule) correct(c throttle.Correction) {
	r.Admits, r.AdmitsUntil, r.VendorLimit = c.Limit, At(c.Until), c.Own
	if r.Algorithm != policy.TokenBucket {
		r.Used = max(0, c.Limit-r.Remaining)
	}
}

// resets returns when a rule next gives units back by itself. For a calendar or a fixed window that is
// the end of the period. For other rules it is when all units are back; it is zero if nothing was
// taken, or if only the end of a run gives units back.
func resets(r throttle.RuleForecast, at time.Time) Time {
	switch {
	case r.Algorithm == policy.Calendar && r.Rest > 0:
		return At(at.Add(r.Rest))
	case r.Algorithm == policy.FixedWindow && r.Per > 0:
		return At(at.Add(r.Per - time.Duration(at.UnixNano()%int64(r.Per))))
	case r.Algorithm == policy.Concurrency, r.ResetAfter <= 0, r.ResetAfter == throttle.Never:
		return Time{}
	}
	return At(at.Add(r.ResetAfter))
}
