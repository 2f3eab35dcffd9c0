package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

func (i *inspection) scope(ctx context.Context) error {
	r, err := i.answers.Scope(ctx, atCommandLine(""), i.name)
	if control.IsUnmatched(err) {
		return &cli.Error{What: plainly(err), Try: "a scope that the limits have rules for, or -limits FILE", Err: err}
	}
	if err != nil {
		return explain(ctx, err, i.url)
	}
	if r.Unmatched {
		return i.print(r, unmatchedLines(r))
	}
	next := "no task waits"
	if r.Waiting > 0 {
		next = i.start(r.NextStart, r.Range, r.Reason, r.Rule, r.RuleScope)
	}
	waiting := fmt.Sprint(r.Waiting)
	if r.Queues > 1 {
		waiting += fmt.Sprintf(" in the queues of %d scopes", r.Queues)
	}
	head := append([][2]string{{"scope", cli.Quote(r.Scope)}}, slices.Concat(pauseLines(r.Pause), userLines(r.Users))...)
	head = append(head, [][2]string{
		{"waiting", waiting}, {"dispatched", fmt.Sprint(r.Dispatched)},
		{"active", fmt.Sprintf("%d, held or running", r.Active)}, {"next", next},
	}...)
	return i.print(r, slices.Concat(head, i.ruleLines(r.Rules), shadowLines(r.Shadows), hourLines(r.Hours), toldLines(r.Upstream), eventLines(r.UpstreamEvents)))
}

// unmatchedLines is the report of a scope that no rule matches any more.
func unmatchedLines(r control.Scope) [][2]string {
	return [][2]string{
		{"scope", cli.Quote(r.Scope)},
		{"waits", unmatchedText(r.NoRule) + "; add a rule, or delete its tasks"},
		{"waiting", fmt.Sprintf("%d in the queue; headway_refused_tasks counts those that workers have put back since then", r.Waiting)},
		{"dispatched", fmt.Sprint(r.Dispatched)},
		{"active", fmt.Sprintf("%d, held or running", r.Active)},
	}
}

// ruleLines say how the rules of a scope stand.
func (i *inspection) ruleLines(rules []control.Rule) (lines [][2]string) {
	for _, r := range rules {
		text := fmt.Sprintf("%s of %s: %s", cli.Quote(r.Rule), cli.Quote(r.RuleScope), ruleState(r))
		if i.meters {
			text = meter(r) + " " + text
		}
		if !r.Reset.IsZero() {
			text += " " + i.moment(r.Reset)
		}
		lines = append(lines, [2]string{"rule", text})
	}
	return lines
}

// meter draws how much of a rule is used.
func meter(r control.Rule) string { return cli.Meter(r.Used, r.Counts(), meterWidth) }

const meterWidth = 20

// ruleState says what is used and left of a rule; when it resets follows, if that is known.
func ruleState(r control.Rule) string {
	limit := r.Counts()
	text := fmt.Sprintf("%d of %d used, %d left", r.Used, limit, r.Remaining)
	switch r.Algorithm {
	case policy.Concurrency:
		text = fmt.Sprintf("%d of %d places taken, %d free", r.Used, limit, r.Remaining)
	case policy.TokenBucket:
		text = fmt.Sprintf("%d of a burst of %d used, %d left", r.Used, r.Limit, r.Remaining)
	}
	switch {
	case r.VendorLimit > 0:
		text += fmt.Sprintf("; the API has a limit of %d, %d apply", r.VendorLimit, r.Admits)
	case r.Admits > 0:
		text += fmt.Sprintf("; %d apply, from the API's answers", r.Admits)
	}
	if r.Waiting > 0 {
		text += fmt.Sprintf("; %d waiting", r.Waiting)
	}
	if !r.Reset.IsZero() {
		text += "; resets"
	}
	return text
}

func hourLines(hours []control.Hours) (lines [][2]string) {
	for _, h := range hours {
		holds := "does not hold, until "
		if h.Holds {
			holds = "holds until "
		}
		lines = append(lines, [2]string{"hours", fmt.Sprintf("rule %s of %s %s%s", cli.Quote(h.Rule), cli.Quote(h.RuleScope), holds, h.Changes)})
	}
	return lines
}

func shadowLines(shadows []control.Shadow) (lines [][2]string) {
	for _, s := range shadows {
		lines = append(lines, [2]string{"shadow", fmt.Sprintf("rule %s of %s, which stops no task: %d of %d left",
			cli.Quote(s.Rule), cli.Quote(s.RuleScope), s.Remaining, s.Limit)})
	}
	return lines
}

// pauseLines says who paused: "payments/acme, since …, by anna, until …".
func pauseLines(p control.Pause) [][2]string {
	if p.PausedScope == "" {
		return nil
	}
	text := cli.Quote(p.PausedScope)
	if !p.PausedSince.IsZero() {
		text += ", since " + p.PausedSince.String()
	}
	if p.PausedBy != "" {
		text += ", by " + author(p.PausedBy, p.PausedUser)
	}
	if !p.PausedUntil.IsZero() {
		text += ", until " + p.PausedUntil.String()
	}
	return [][2]string{{"paused", text}}
}

// userLines says which applications may spend from a scope, if not all may.
func userLines(u control.Users) [][2]string {
	if u.AppsScope == "" {
		return nil
	}
	who := "none: no application may spend from " + cli.Quote(u.AppsScope)
	if len(u.Apps) > 0 {
		who = quoted(u.Apps) + " alone may spend from " + cli.Quote(u.AppsScope) + "; tasks wait for a worker of one of them"
	}
	return [][2]string{{"apps", who}}
}

// unmatchedText says since when no rule matches a scope.
func unmatchedText(n control.NoRule) string {
	text := "no rule matches the scope"
	switch {
	case n.UnmatchedSince > 0:
		text += fmt.Sprintf(" since version %d of the limits, by %s at %s", n.UnmatchedSince, cli.Quote(n.UnmatchedBy), n.UnmatchedAt)
	case n.Published:
		text += ", in no stored version of the limits"
	}
	return text
}

// toldLines are what an API has reported, one thing a line.
func toldLines(told throttle.UpstreamState) (lines [][2]string) {
	for _, p := range told.Pauses {
		lines = append(lines, [2]string{"paused", fmt.Sprintf("%s until %s, as the API asked", cli.Quote(p.Scope), stamp(p.Until))})
	}
	for _, c := range told.Corrections {
		lines = append(lines, [2]string{"corrected", fmt.Sprintf("rule %s of %s, %s", cli.Quote(c.Bound.Rule.Name), cli.Quote(c.Bound.Scope.String()), corrected(c))})
	}
	return lines
}

// eventLines are the latest past changes by an API's answers, newest first.
func eventLines(events []control.UpstreamEvent) (lines [][2]string) {
	for _, e := range events[:min(len(events), mostEvents)] {
		of := cli.Quote(e.Scope)
		if e.Rule != "" {
			of = "rule " + cli.Quote(e.Rule) + " of " + of
		}
		text := fmt.Sprintf("%s, %s: %s", e.At, of, e.Change())
		if answer := e.Answer(); answer != "" {
			text += "; the API answered " + answer
		}
		if e.Answered != e.Scope {
			text += " to " + cli.Quote(e.Answered)
		}
		lines = append(lines, [2]string{"answered", text})
	}
	return lines
}

// mostEvents is how many past changes the text shows; -json has all.
const mostEvents = 5

// corrected says what counts in the place of a rule's limit.
func corrected(c throttle.Correction) string {
	return fmt.Sprintf("%d of %d until %s, from the API's answers", c.Limit, c.Bound.Rule.Limit, stamp(c.Until))
}
