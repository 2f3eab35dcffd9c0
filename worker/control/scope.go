package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

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
	Reason    Reason `json:"reason,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RuleScope string `json:"rule_scope,omitempty"`

	// UpstreamUntil is the end of the API's pause that ends last, and UpstreamScope its scope.
	UpstreamUntil Time   `json:"upstream_until,omitzero"`
	UpstreamScope string `json:"upstream_scope,omitempty"`

	Rules   []Rule   `json:"rules,omitempty"`
	Shadows []Shadow `json:"shadows,omitempty"`
	Hours   []Hours  `json:"hours,omitempty"`

	// UpstreamEvents are the past changes by the API's answers, newest first.
	UpstreamEvents []UpstreamEvent `json:"upstream_events,omitempty"`
	Pause
	Users
	NoRule

	// Upstream is the state of the scope by its API's answers.
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

// Scope returns what waits in a scope and below it. The error is that of Limiter.Inspect, or Redis's.
// IsUnmatched recognises the error for a scope that no rule matches, and none ever did.
func (s *Service) Scope(ctx context.Context, who Actor, name string) (Scope, error) {
	if err := s.May(who, VerbSee, name); err != nil {
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
		Rule: got.Binding.Rule.Name, RuleScope: got.Binding.Scope.String(), Users: s.users(name),
	}
	if got.Waiting > 0 {
		r.NextStart, r.Range = expected(got.At, got.NextStart)
		r.Reason = queue.ReasonOf(got.Binding, got.Paused)
	}
	v, now := s.current(ctx)
	r.Pause = s.pause(name, v, now)
	if r.Upstream, err = s.limiter.UpstreamState(ctx, name); err != nil {
		return r, err
	}
	for _, p := range r.Upstream.Pauses {
		if p.Until.After(r.UpstreamUntil.Time) {
			r.UpstreamUntil, r.UpstreamScope = At(p.Until), p.Scope
		}
	}
	if r.Rules, err = s.rules(ctx, name, r.Upstream); err != nil {
		return r, err
	}
	if r.Active, err = s.active(name); err != nil {
		return r, err
	}
	if r.Shadows, err = s.shadows(ctx, name); err != nil {
		return r, err
	}
	if r.Hours, err = s.hours(name); err != nil {
		return r, err
	}
	r.UpstreamEvents, err = s.UpstreamEvents(ctx, who, name)
	return r, err
}

func (s *Service) hours(name string) (list []Hours, err error) {
	all, err := s.limiter.Hours(name)
	for _, h := range all {
		list = append(list, Hours{h.Rule.Name, h.Scope.String(), h.Holds, At(h.Changes)})
	}
	return list, err
}

func (s *Service) shadows(ctx context.Context, name string) (list []Shadow, err error) {
	states, err := s.limiter.PeekShadows(ctx, name)
	for _, state := range states {
		list = append(list, Shadow{state.Rule, state.Scope, state.Limit, state.Remaining})
	}
	return list, err
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

// Reason is what a task waits for.
type Reason = queue.Reason

// The reasons. Those of package queue are what its forecasts know of.
const (
	ReasonRule        = queue.ReasonRule
	ReasonRun         = queue.ReasonRun
	ReasonSuspended   = queue.ReasonSuspended
	ReasonPaused      = queue.ReasonPaused
	ReasonUpstream    = queue.ReasonUpstream
	ReasonHours       = queue.ReasonHours
	ReasonDelay       = queue.ReasonDelay
	ReasonCost        = Reason("cost")         // a higher limit: it costs more than a rule admits
	ReasonQueuePaused = Reason("queue_paused") // asynq has paused its queue
	ReasonUnmatched   = Reason("unmatched")    // a rule: none matches its scope
)

// UpstreamEvent is a past change that an API's answer made. docs/json.md has its fields.
type UpstreamEvent struct {
	At        Time   `json:"at"`
	What      string `json:"what"`
	Scope     string `json:"scope"`
	Rule      string `json:"rule,omitempty"`
	Limit     int64  `json:"limit,omitempty"`
	Until     Time   `json:"until,omitzero"`
	Answered  string `json:"answered"`
	Status    int    `json:"status,omitempty"`
	RetryMS   *int64 `json:"retry_ms,omitempty"`
	Host      string `json:"host,omitempty"`
	answer    string
	happening string
}

// UpstreamEvents returns the past changes that APIs' answers made at a scope and the scopes above it, newest first. It costs a command
// for each level, in one round trip. The error is a *policy.ScopeError, or Redis's.
func (s *Service) UpstreamEvents(ctx context.Context, who Actor, name string) (list []UpstreamEvent, err error) {
	if err := s.May(who, VerbSee, name); err != nil {
		return nil, err
	}
	list, err = s.upstreamEvents(ctx, name)
	return s.SeenUpstreamEvents(who, list), err
}

// SeenUpstreamEvents returns events without the names of scopes that the actor may not see: an answer to one tenant's call may have
// changed a rule that all share.
func (s *Service) SeenUpstreamEvents(who Actor, list []UpstreamEvent) []UpstreamEvent {
	list = slices.Clone(list)
	for i, e := range list {
		if e.Answered != e.Scope && s.May(who, VerbSee, e.Answered) != nil {
			list[i].Answered = e.Scope
		}
	}
	return list
}

func (s *Service) upstreamEvents(ctx context.Context, name string) (list []UpstreamEvent, err error) {
	all, err := s.limiter.UpstreamEvents(ctx, name)
	for _, e := range all {
		one := UpstreamEvent{At: At(e.At), What: e.What, Scope: e.Scope, Rule: e.Rule, Limit: e.Limit, Answered: e.Answered, Status: e.Status, Host: e.Host}
		if !e.Until.IsZero() {
			one.Until = At(e.Until)
		}
		if e.RetryKnown {
			ms := e.Retry.Milliseconds()
			one.RetryMS = &ms
		}
		one.answer, one.happening = answerWords(e), changeWords(e)
		list = append(list, one)
	}
	return list, err
}

// Answer is the API's answer in a few words: "429, retry after 30s".
func (e UpstreamEvent) Answer() string { return e.answer }

// Change is what it changed in a few words: "paused for 30s".
func (e UpstreamEvent) Change() string { return e.happening }

func answerWords(e throttle.UpstreamEvent) string {
	switch {
	case e.Status != 0 && e.RetryKnown:
		return fmt.Sprintf("%d, retry after %s", e.Status, brief(e.Retry))
	case e.Status != 0:
		return fmt.Sprintf("%d, without a time", e.Status)
	case e.What == "pause":
		return "nothing left"
	case e.What == "cut":
		return "refused"
	}
	return "accepted"
}

func changeWords(e throttle.UpstreamEvent) string {
	lasts := ""
	if !e.Until.IsZero() {
		lasts = " for " + brief(e.Until.Sub(e.At))
	}
	switch {
	case e.What == "pause":
		return "paused" + lasts
	case e.What == "cut":
		return "limit reduced; it grows back within " + brief(e.Until.Sub(e.At))
	case e.What == "limit" && e.Limit > 0:
		return fmt.Sprintf("its own limit is %d", e.Limit)
	case e.What == "limit":
		return "the configured limit applies again"
	case e.What == "rise":
		return "limit may grow above the configured one"
	}
	return cmp.Or(e.What, "unknown")
}

// brief writes a time for people: 1m instead of 1m0s.
func brief(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	text := d.Round(time.Second).String()
	if whole, is := strings.CutSuffix(text, "m0s"); is {
		text = whole + "m"
	}
	if whole, is := strings.CutSuffix(text, "h0m"); is {
		text = whole + "h"
	}
	return text
}
