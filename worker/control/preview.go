package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Preview is the effect of a change.
type Preview struct {
	Version     int64                    // over which the change was worked out, for Change.IfVersion
	Differences []policystore.Difference // what the change would change
	Resets      []policystore.Reset      // the counts that a reset would forget
	Effect      Effect
}

// Effect is what a change does to the tasks that wait; docs/json.md has its fields.
type Effect struct {
	// Waiting is the number of tasks that wait in the scopes that the change concerns, and Scopes the number of these scopes. More says
	// that there are more scopes, which were not counted.
	Waiting int64 `json:"waiting"`
	Scopes  int   `json:"scopes"`
	More    bool  `json:"more,omitempty"`
	// Before and After are when the last of these tasks starts, without the change and with it: zero for a reset and a breaker, and if no task waits.
	Before Last `json:"before,omitzero"`
	After  Last `json:"after,omitzero"`
}

// String returns the effect as one sentence.
func (e Effect) String() string {
	if e.Waiting == 0 {
		return "no task waits there"
	}
	text := counted(e.Waiting, "task waits", "tasks wait") + " in " + counted(int64(e.Scopes), "scope", "scopes")
	if e.More {
		text = "at least " + text
	}
	if e.Before == (Last{}) && e.After == (Last{}) {
		return text
	}
	if e.Before == e.After {
		return text + ", the last " + e.Before.String() + ", with the change as without it"
	}
	return text + ", the last " + e.Before.String() + "; with the change, " + e.After.String()
}

// Preview works out the effect of a change, and changes nothing. Its errors are those of Apply. It costs what Service.Waiting costs,
// and two round trips for each provider that the change concerns.
func (s *Service) Preview(ctx context.Context, actor Actor, c Change) (p Preview, err error) {
	if s.store == nil {
		return p, errNoStore
	}
	if c.Verb == VerbReset {
		return s.previewReset(ctx, actor, c)
	}
	made, err := s.change(ctx, actor, c, true)
	if err != nil {
		return p, err
	}
	p.Version, p.Differences = made.Version.Number-1, made.Differences
	if made.Version.Breaker != "" { // no rule changes
		_, p.Effect, err = s.queuesUnder(ctx, []string{c.Scope})
		return p, err
	}
	p.Effect, err = s.effect(ctx, made)
	return p, err
}

// previewReset returns what is used under the rules that a reset clears.
func (s *Service) previewReset(ctx context.Context, actor Actor, c Change) (p Preview, err error) {
	if err := s.May(actor, c.Verb, c.Scope); err != nil {
		return p, err
	}
	v, err := s.store.Current(ctx)
	if err != nil {
		return p, err
	}
	if c.IfVersion > 0 && c.IfVersion != v.Number {
		return p, &policystore.ConflictError{Want: c.IfVersion, Now: v}
	}
	rules, err := s.Rules(ctx, actor, c.Scope)
	if err != nil {
		return p, err
	}
	p.Version = v.Number
	for _, r := range rules {
		if r.RuleScope == c.Scope && (c.Rule == "" || c.Rule == r.Rule) && r.Algorithm != policy.Concurrency {
			p.Resets = append(p.Resets, policystore.Reset{Scope: c.Scope, Rule: r.Rule, Unit: r.Unit, Used: r.Used})
		}
	}
	if len(p.Resets) == 0 {
		return p, policystore.ErrNothingToReset
	}
	_, p.Effect, err = s.queuesUnder(ctx, []string{c.Scope})
	return p, err
}

// effect returns the effect of a change on the tasks that wait at the places it changes.
func (s *Service) effect(ctx context.Context, made policystore.Made) (Effect, error) {
	places := placesOf(made.Differences)
	for _, t := range made.Version.Tiers {
		places = append(places, t.Scope)
	}
	queues, e, err := s.queuesUnder(ctx, places)
	if err != nil || len(queues) == 0 {
		return e, err
	}
	for last, p := range map[*Last]*policy.Policy{&e.Before: made.PolicyBefore, &e.After: made.Policy} {
		tierOf := s.limiter.TierOf()
		if last == &e.After {
			tierOf = after(made.Version.Tiers, tierOf)
		}
		limiter, err := throttle.New(s.rdb, p, throttle.Config{Prefix: s.prefix, TierOf: tierOf})
		if err != nil {
			return e, err
		}
		if *last, err = s.lastStart(ctx, limiter, queues); err != nil {
			return e, err
		}
	}
	return e, nil
}

// after returns tiers as they are after some changes.
func after(changes []policystore.Tier, tierOf policy.TierOf) policy.TierOf {
	if len(changes) == 0 {
		return tierOf
	}
	return func(ctx context.Context, name policy.Scope) (string, error) {
		for _, t := range changes {
			if t.Scope == name.String() {
				return t.Tier, nil
			}
		}
		if tierOf == nil {
			return "", nil
		}
		return tierOf(ctx, name)
	}
}

// placesOf returns the places of the limits that differ, "*" for all.
func placesOf(differences []policystore.Difference) (places []string) {
	for _, d := range differences {
		if d.Rule == policystore.UnmatchedField {
			d.Scope = "*"
		}
		places = append(places, d.Scope)
	}
	return places
}

// queuesUnder returns the scopes at or below some places in which tasks wait, fullest first, and their counts.
func (s *Service) queuesUnder(ctx context.Context, places []string) (list []inspect.ScopeQueue, e Effect, err error) {
	providers, err := s.limiter.Waitlist().ActiveProviders(ctx, time.Time{})
	if err != nil {
		return nil, e, err
	}
	limits := s.limiter.Policy()
	for provider := range providers {
		if !slices.ContainsFunc(places, func(place string) bool { return covers(providerOf(place), provider) }) {
			continue
		}
		queues, more, err := inspect.Of(s.limiter.Waitlist()).Count(ctx, provider, func(scope string) bool {
			waits, err := policy.ParseScope(scope)
			return err == nil && slices.ContainsFunc(places, func(place string) bool { return limits.Covers(place, waits) })
		})
		if err != nil {
			return nil, e, err
		}
		list, e.More = append(list, queues...), e.More || more
	}
	for _, q := range list {
		e.Waiting += q.Own
	}
	e.Scopes = len(list)
	slices.SortFunc(list, func(a, b inspect.ScopeQueue) int {
		return cmp.Or(cmp.Compare(b.Own, a.Own), cmp.Compare(a.Scope, b.Scope))
	})
	return list, e, nil
}
