package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/duration"
)

// UpstreamEvent is a past change that an API's answer made. docs/json.md has its fields.
type UpstreamEvent struct {
	At       Time   `json:"at"`
	What     string `json:"what"`
	Scope    string `json:"scope"`
	Rule     string `json:"rule,omitempty"`
	Limit    int64  `json:"limit,omitempty"`
	Until    Time   `json:"until,omitzero"`
	Answered string `json:"answered"`
	Status   int    `json:"status,omitempty"`
	RetryMS  *int64 `json:"retry_ms,omitempty"`
	Calls    int64  `json:"calls,omitempty"`
	Failures int64  `json:"failures,omitempty"`
	Shadow   bool   `json:"shadow,omitempty"`
	Host     string `json:"host,omitempty"`
}

// UpstreamEvents returns the past changes that APIs' answers made at a scope and the scopes above it, newest first. It costs a command
// for each level, in one round trip. The error is a *policy.ScopeError, or Redis's.
func (s *Service) UpstreamEvents(ctx context.Context, actor Actor, name string) (list []UpstreamEvent, err error) {
	if err := s.May(actor, VerbSee, name); err != nil {
		return nil, err
	}
	all, err := s.limiter.UpstreamEvents(ctx, name)
	for _, e := range all {
		event := UpstreamEvent{
			At: At(e.At), What: e.What, Scope: e.Scope, Rule: e.Rule, Limit: e.Limit, Until: At(e.Until),
			Answered: e.Answered, Status: e.Status, Host: e.Host, Calls: e.Calls, Failures: e.Failures, Shadow: e.Shadow,
		}
		if e.RetryKnown {
			ms := e.Retry.Milliseconds()
			event.RetryMS = &ms
		}
		list = append(list, event)
	}
	return s.VisibleUpstreamEvents(actor, list), err
}

// VisibleUpstreamEvents returns events without the names of scopes that the actor may not see: an answer to one tenant's call may have
// changed a rule that all share.
func (s *Service) VisibleUpstreamEvents(actor Actor, list []UpstreamEvent) []UpstreamEvent {
	list = slices.Clone(list)
	for i, e := range list {
		if e.Answered != e.Scope && s.May(actor, VerbSee, e.Answered) != nil {
			list[i].Answered = e.Scope
		}
	}
	return list
}

// Answer is the API's answer in a few words: "429, retry after 30s".
func (e UpstreamEvent) Answer() string {
	switch {
	case e.Status != 0 && e.RetryMS != nil:
		return fmt.Sprintf("%d, retry after %s", e.Status, brief(time.Duration(*e.RetryMS)*time.Millisecond))
	case e.Status != 0:
		return fmt.Sprintf("%d, without a time", e.Status)
	case e.What == "pause":
		return "nothing left"
	case e.What == "cut":
		return "refused"
	case e.What == "open", e.What == "closed":
		return "" // many answers, or none
	}
	return "accepted"
}

// Change is what it changed in a few words: "paused for 30s".
func (e UpstreamEvent) Change() string {
	lasts := brief(e.Until.Sub(e.At.Time))
	switch {
	case e.What == "pause" && e.Until.IsZero():
		return "paused"
	case e.What == "pause":
		return "paused for " + lasts
	case e.What == "cut":
		return "limit reduced; it grows back within " + lasts
	case e.What == "limit" && e.Limit > 0:
		return fmt.Sprintf("its own limit is %d", e.Limit)
	case e.What == "limit":
		return "the configured limit applies again"
	case e.What == "open" && e.Shadow:
		return "the breaker would have opened"
	case e.What == "open" && e.Calls == 0:
		return "breaker opened by hand; first probe after " + lasts
	case e.What == "open":
		return fmt.Sprintf("breaker open, %d of %d calls failed; next probe after %s", e.Failures, e.Calls, lasts)
	case e.What == "closed":
		return "breaker closed"
	case e.What == "rise":
		return "limit may grow above the configured one"
	}
	return cmp.Or(e.What, "unknown")
}

// brief writes a time for people, in whole seconds unless it is shorter than one.
func brief(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return duration.Format(d.Round(time.Second))
}
