package control

import (
	"context"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Reason is what a task waits for.
type Reason = queue.Reason

// The reasons. Those of package queue are what its forecasts know of.
const (
	ReasonRule        = queue.ReasonRule
	ReasonRun         = queue.ReasonRun
	ReasonMember      = queue.ReasonMember
	ReasonSuspended   = queue.ReasonSuspended
	ReasonPaused      = queue.ReasonPaused
	ReasonUpstream    = queue.ReasonUpstream
	ReasonHours       = queue.ReasonHours
	ReasonDelay       = queue.ReasonDelay
	ReasonBreaker     = Reason("breaker")      // a probe of a breaker that is open
	ReasonCost        = Reason("cost")         // a higher limit: it costs more than a rule admits
	ReasonQueuePaused = Reason("queue_paused") // asynq has paused its queue
	ReasonUnmatched   = Reason("unmatched")    // a rule: none matches its scope
)

// Wait is what a task waits for, and the rule that binds. docs/json.md has its fields.
type Wait struct {
	Reason    Reason `json:"reason,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RuleScope string `json:"rule_scope,omitempty"`
}

func waitOf(binding policy.MatchedRule, upstreamPaused bool) Wait {
	return Wait{queue.ReasonOf(binding, upstreamPaused), binding.Rule.Name, binding.Scope.String()}
}

// Scope is what waits in a scope and below it, and for what. docs/json.md has its fields.
type Scope struct {
	Scope      string `json:"scope"`
	At         Time   `json:"at"`
	Waiting    int64  `json:"waiting"`
	Queues     int    `json:"queues"`
	Dispatched int64  `json:"dispatched"`
	Active     int    `json:"active"`
	NextStart  Time   `json:"next_start,omitzero"`
	Range
	Wait

	// UpstreamUntil is the end of the API's pause that ends last, and UpstreamScope its scope.
	UpstreamUntil Time   `json:"upstream_until,omitzero"`
	UpstreamScope string `json:"upstream_scope,omitempty"`

	Breakers []Breaker `json:"breakers,omitempty"` // those that are open, outermost first

	Tiers   []policystore.Tier `json:"tiers,omitempty"` // of the names on its path
	Rules   []Rule             `json:"rules,omitempty"`
	Members []Member           `json:"members,omitempty"` // of the pool on its path
	Shadows []Shadow           `json:"shadows,omitempty"`
	Hours   []Hours            `json:"hours,omitempty"`

	UpstreamEvents []UpstreamEvent `json:"upstream_events,omitempty"` // newest first
	Pause
	Users
	NoRule

	Upstream throttle.UpstreamState `json:"-"`
}

// Hours is a rule that applies in certain hours only. docs/json.md has its fields.
type Hours struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Holds     bool   `json:"holds"`
	Changes   Time   `json:"changes"`
}

// Shadow is a shadow rule that applies to the scope's tasks. docs/json.md has its fields.
type Shadow struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// Scope returns what waits in a scope and below it. The error is a *policy.ScopeError, a *policy.UnmatchedError for a scope that no
// rule ever matched, or Redis's.
func (s *Service) Scope(ctx context.Context, actor Actor, name string) (Scope, error) {
	if err := s.May(actor, VerbSee, name); err != nil {
		return Scope{}, err
	}
	got, err := inspect.Of(s.limiter.Waitlist()).Scope(ctx, name)
	if IsUnmatched(err) {
		return s.unmatchedScope(ctx, name, err)
	}
	if err != nil {
		return Scope{}, err
	}
	r := Scope{
		Scope: name, At: At(got.At), Waiting: got.Waiting, Queues: got.Scopes, Dispatched: got.Dispatched,
		Wait: waitOf(got.Binding, got.Paused), Users: s.users(name), Tiers: s.tiers(name),
	}
	if got.Waiting > 0 {
		r.NextStart, r.Range = expected(got.At, got.NextStart)
	}
	limits, _ := s.Limits(ctx) // a pause is shown without its author
	r.Pause = s.PauseOf(name, limits)
	if r.Upstream, err = s.limiter.UpstreamState(ctx, name); err != nil {
		return r, err
	}
	r.Breakers = BreakersOf(r.Upstream)
	r.nameBreaker(r.Upstream)
	for _, p := range r.Upstream.Pauses {
		if p.Until.After(r.UpstreamUntil.Time) {
			r.UpstreamUntil, r.UpstreamScope = At(p.Until), p.Scope
		}
	}
	now, err := s.limiter.Forecast(ctx, name)
	if err != nil {
		return r, err
	}
	r.Rules = rulesOf(now, r.Upstream)
	if r.Members, err = s.Members(ctx, name); err != nil {
		return r, err
	}
	if r.Active, err = s.active(name); err != nil {
		return r, err
	}
	shadows, err := s.limiter.PeekShadows(ctx, name)
	for _, state := range shadows {
		r.Shadows = append(r.Shadows, Shadow{state.Rule, state.Scope, state.Limit, state.Remaining})
	}
	if err != nil {
		return r, err
	}
	hours, _ := s.limiter.Hours(name) // none of a scope without rules
	for _, h := range hours {
		r.Hours = append(r.Hours, Hours{h.Rule.Name, h.Scope.String(), h.Holds, At(h.Changes)})
	}
	r.UpstreamEvents, err = s.UpstreamEvents(ctx, actor, name)
	return r, err
}

// active counts the active tasks of a scope and of the scopes below it.
func (s *Service) active(name string) (int, error) {
	active, err := ActiveTasks(s.inspector, func(scope string) bool { return covers(name, scope) })
	return len(active), err
}

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

	// Admits and the fields after it are the API's correction, which counts in place of the limit.
	Admits      int64 `json:"admits,omitempty"`
	AdmitsUntil Time  `json:"admits_until,omitzero"`
	VendorLimit int64 `json:"vendor_limit,omitempty"` // the limit by the API's own words
}

// Counts returns what Used is a part of: the limit in force, which is the API's if it sent one. For a token bucket it is the burst,
// whatever its rate is by now.
func (r Rule) Counts() int64 {
	if r.Admits > 0 && r.Algorithm != policy.TokenBucket {
		return r.Admits
	}
	return r.Limit
}

// Rules returns the state of the rules that apply to a scope's tasks now, outermost first. Its errors are those of Limiter.Forecast.
// Costs three round trips.
func (s *Service) Rules(ctx context.Context, actor Actor, scope string) ([]Rule, error) {
	if err := s.May(actor, VerbSee, scope); err != nil {
		return nil, err
	}
	upstream, err := s.limiter.UpstreamState(ctx, scope)
	if err != nil {
		return nil, err
	}
	now, err := s.limiter.Forecast(ctx, scope)
	return rulesOf(now, upstream), err
}

// rulesOf returns the rules of a forecast, with the API's corrections.
func rulesOf(now throttle.Forecast, upstream throttle.UpstreamState) (list []Rule) {
	for _, state := range now.Rules {
		if state.Paused {
			continue
		}
		r := Rule{
			Rule: state.Rule, RuleScope: state.Scope, Algorithm: state.Algorithm, Unit: state.Unit, Limit: state.Limit,
			Used: max(0, state.Limit-state.Remaining), Remaining: state.Remaining, Waiting: state.Waiting, Reset: resets(state, now.At),
		}
		for _, c := range upstream.Corrections {
			if c.Bound.Scope.String() == state.Scope && c.Bound.Rule.Name == state.Rule {
				r.correct(c)
			}
		}
		list = append(list, r)
	}
	return list
}

// correct sets what counts in place of the limit. A bucket's used stays what is missing from the burst of the limits.
func (r *Rule) correct(c throttle.Correction) {
	r.Admits, r.AdmitsUntil, r.VendorLimit = c.Limit, At(c.Until), c.Own
	if r.Algorithm != policy.TokenBucket {
		r.Used = max(0, c.Limit-r.Remaining)
	}
}

// resets returns when a rule next gives units back by itself: at the end of a calendar's or a fixed window's period, and otherwise when
// all units are back. It is zero if nothing was taken, or if only the end of a run gives units back.
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

// tiers returns the tiers of the names on a scope's path.
func (s *Service) tiers(name string) (tiers []policystore.Tier) {
	scope, err := policy.ParseScope(name)
	if err != nil {
		return nil
	}
	p := s.limiter.Policy()
	for _, level := range p.TieredNames(scope) {
		if tier := p.Tier(level); tier != "" {
			tiers = append(tiers, policystore.Tier{Scope: level.String(), Tier: tier})
		}
	}
	return tiers
}
