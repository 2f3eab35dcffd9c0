package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
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
