package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
)

// scopeReport is what "worker inspect -json scope" prints; docs/json.md has its fields.
type scopeReport struct {
	Scope     string `json:"scope"`
	At        string `json:"at"`
	Waiting   int64  `json:"waiting"`
	Lines     int    `json:"lines"`
	Released  int64  `json:"released"`
	Active    int    `json:"active"`
	NextStart string `json:"next_start,omitempty"`
	Rule      string `json:"rule,omitempty"`
	RuleScope string `json:"rule_scope,omitempty"`

	// The pause that ends last, by what the API said.
	ToldUntil string `json:"told_until,omitempty"`
	ToldScope string `json:"told_scope,omitempty"`

	Shadows []shadowReport `json:"shadows,omitempty"`
	Hours   []hoursReport  `json:"hours,omitempty"`
	pausedBy
	usedBy
	unmatched
}

// hoursReport is a rule that holds in certain hours; docs/json.md has its fields.
type hoursReport struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Holds     bool   `json:"holds"`
	Changes   string `json:"changes"`
}

func (i *inspection) hours() (list []hoursReport, lines [][2]string, err error) {
	all, err := i.limiter.Hours(i.name)
	for _, h := range all {
		r := hoursReport{h.Rule.Name, h.Scope.String(), h.Holds, stamp(h.Changes)}
		list = append(list, r)
		holds := "does not hold, until "
		if h.Holds {
			holds = "holds until "
		}
		lines = append(lines, [2]string{"hours", fmt.Sprintf("rule %s of %s %s%s", cli.Quote(r.Rule), cli.Quote(r.RuleScope), holds, r.Changes)})
	}
	return list, lines, err
}

// shadowReport is a shadow rule that tasks of the scope meet; docs/json.md has its fields.
type shadowReport struct {
	Rule      string `json:"rule"`
	RuleScope string `json:"rule_scope"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

func (i *inspection) shadows(ctx context.Context) (list []shadowReport, lines [][2]string, err error) {
	states, err := i.limiter.PeekShadows(ctx, i.name)
	for _, s := range states {
		list = append(list, shadowReport{s.Rule, s.Scope, s.Limit, s.Remaining})
		lines = append(lines, [2]string{"shadow", fmt.Sprintf("rule %s of %s, which stops no task: %d of %d left",
			cli.Quote(s.Rule), cli.Quote(s.Scope), s.Remaining, s.Limit)})
	}
	return list, lines, err
}

func (i *inspection) scope(ctx context.Context) error {
	got, err := i.limiter.Inspect(ctx, i.name)
	if isUnmatched(err) {
		return i.unmatchedScope(ctx, err)
	}
	if err != nil {
		return explain(ctx, err, i.url)
	}
	told, err := i.limiter.UpstreamState(ctx, i.name)
	if err != nil {
		return explain(ctx, err, i.url)
	}
	active, err := i.active()
	if err != nil {
		return explain(ctx, err, i.url)
	}
	shadows, lines, err := i.shadows(ctx)
	if err != nil {
		return explain(ctx, err, i.url)
	}
	hours, more, err := i.hours()
	if err != nil {
		return err
	}
	r := scopeReport{
		Scope: i.name, At: stamp(got.At), Waiting: got.Waiting, Lines: got.Lines, Released: got.Released, Active: active,
		Rule: got.Binding.Rule.Name, RuleScope: got.Binding.Scope.String(), Shadows: shadows, Hours: hours,
		pausedBy: i.pausedBy(i.name), usedBy: i.usedBy(i.name),
	}
	r.told(told)
	next := "no task waits"
	if got.Waiting > 0 {
		at := expected(got.At, got.NextStart, got.Binding)
		r.NextStart, next = stamp(at), i.start(at, got.Binding)+paused(got.Paused)
	}
	waiting := fmt.Sprint(r.Waiting)
	if r.Lines > 1 {
		waiting += fmt.Sprintf(" in the queues of %d scopes", r.Lines)
	}
	head := append([][2]string{{"scope", cli.Quote(r.Scope)}}, slices.Concat(r.pausedBy.lines(), r.usedBy.lines())...)
	head = append(head, [][2]string{
		{"waiting", waiting}, {"released", fmt.Sprint(r.Released)},
		{"active", fmt.Sprintf("%d, held or running", r.Active)}, {"next", next},
	}...)
	return i.print(r, slices.Concat(head, lines, more, toldLines(told)))
}

// told tells of the pause that ends last.
func (r *scopeReport) told(told throttle.UpstreamState) {
	var last throttle.UpstreamPause
	for _, p := range told.Pauses {
		if p.Until.After(last.Until) {
			last = p
		}
	}
	r.ToldUntil, r.ToldScope = stamp(last.Until), last.Scope
}

// paused tells of one that waits for a pause.
func paused(is bool) string {
	if is {
		return ", when its pause is over"
	}
	return ""
}

// toldLines are what an API has told, one thing a line.
func toldLines(told throttle.UpstreamState) (lines [][2]string) {
	for _, p := range told.Pauses {
		lines = append(lines, [2]string{"paused", fmt.Sprintf("%s until %s, as the API asked", cli.Quote(p.Scope), stamp(p.Until))})
	}
	for _, c := range told.Corrections {
		lines = append(lines, [2]string{"corrected", fmt.Sprintf("rule %s of %s, %s", cli.Quote(c.Bound.Rule.Name), cli.Quote(c.Bound.Scope.String()), corrected(c))})
	}
	return lines
}

// corrected tells what counts in the place of a rule's limit.
func corrected(c throttle.Correction) string {
	return fmt.Sprintf("%d of %d until %s, from the API's answers", c.Limit, c.Bound.Rule.Limit, stamp(c.Until))
}

// pageSize is how many tasks asynq is asked for at once.
const pageSize = 200

// active counts the tasks of the scope, and of those below it, that are with a worker.
func (i *inspection) active() (int, error) {
	active, err := activeTasks(i.inspector, i.within)
	return len(active), err
}

// within tells whether it is the scope or one below it.
func (i *inspection) within(scope string) bool {
	return scope == i.name || strings.HasPrefix(scope, i.name+"/")
}
