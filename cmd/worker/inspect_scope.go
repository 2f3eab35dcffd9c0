package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

func (i *inspection) scope(ctx context.Context, words []string) error {
	if len(words) == 0 {
		return i.fullest(ctx)
	}
	r, err := i.asked.Scope(ctx, i.actor(), words[0])
	if control.IsUnmatched(err) {
		return &cli.Error{What: plainly(err), Try: "a scope that the limits have rules for, or -limits FILE", Err: err}
	}
	if err != nil {
		return err
	}
	lines := [][2]string{{"scope", cli.Quote(r.Scope)}}
	waiting, next := fmt.Sprint(r.Waiting), "no task waits"
	switch {
	case r.Unmatched:
		lines = append(lines, [2]string{"waits", unmatchedText(r.NoRule) + "; add a rule, or delete its tasks"})
		waiting += " in the queue; headway_refused_tasks counts those that workers have put back since then"
	case r.Queues > 1:
		waiting += fmt.Sprintf(" in the queues of %d scopes", r.Queues)
	}
	if r.Waiting > 0 {
		next = startText(r.NextStart, r.Range, r.Reason, r.Rule, r.RuleScope)
	}
	for _, t := range r.Tiers {
		lines = append(lines, [2]string{"tier", cli.Quote(t.Tier) + " of " + cli.Quote(t.Scope)})
	}
	lines = append(lines, slices.Concat(pauseLines(r.Pause), userLines(r.Users))...)
	lines = append(lines, [][2]string{
		{"waiting", waiting}, {"dispatched", fmt.Sprint(r.Dispatched)}, {"active", fmt.Sprintf("%d, held or running", r.Active)},
	}...)
	if !r.Unmatched {
		lines = append(lines, [2]string{"next", next})
	}
	i.print(r, slices.Concat(lines, ruleLines(r.Rules), memberLines(r.Members), shadowLines(r.Shadows), hourLines(r.Hours), upstreamLines(r.Upstream), eventLines(r.UpstreamEvents)))
	return nil
}

// waitingSummary is the last object of "worker inspect -json scope"; docs/json.md has its fields.
type waitingSummary struct {
	Summary bool `json:"summary"`
	Scopes  int  `json:"scopes"`
	More    bool `json:"more"`
}

// fullest lists the scopes in which most tasks wait.
func (i *inspection) fullest(ctx context.Context) error {
	all, err := i.asked.Waiting(ctx, i.actor(), i.most)
	if err != nil {
		return err
	}
	if i.json {
		for _, w := range all.Fullest {
			i.out.Print(w, "")
		}
		i.out.Print(waitingSummary{true, all.Scopes, all.More}, "")
		return nil
	}
	if len(all.Fullest) == 0 {
		i.out.Text("no task waits")
		return nil
	}
	var rows [][]string
	for _, s := range all.Fullest {
		next := "unknown: no rule matches the scope"
		if s.Reason != control.ReasonUnmatched {
			next = startText(s.NextStart, s.Range, s.Reason, s.Rule, s.RuleScope)
		}
		rows = append(rows, []string{fmt.Sprint(s.Waiting), cli.Quote(s.Scope), cmp.Or(s.FirstSince.String(), "unknown"), next})
	}
	i.out.Table([]string{"WAITING", "SCOPE", "FIRST SINCE", "NEXT START"}, rows)
	count := cli.Count(all.Scopes, "scope", "scopes")
	switch {
	case all.More:
		i.out.Text("the fullest of " + count + " that were counted; there are more")
	case all.Scopes > len(all.Fullest):
		i.out.Text("the fullest of " + count + "; -limit N lists more")
	}
	return nil
}

// ruleLines say how the rules of a scope stand.
func ruleLines(rules []control.Rule) (lines [][2]string) {
	for _, r := range rules {
		text := fmt.Sprintf("%s of %s: %s", cli.Quote(r.Rule), cli.Quote(r.RuleScope), ruleState(r))
		if !r.Reset.IsZero() {
			text += " " + momentText(r.Reset)
		}
		lines = append(lines, [2]string{"rule", text})
	}
	return lines
}

// ruleState says what is used and left of a rule; when it resets follows, if that is known.
func ruleState(r control.Rule) string {
	limit := r.Counts()
	n := func(n int64) string { return policy.Number(n, r.Unit) }
	text := fmt.Sprintf("%s of %s used, %s left", n(r.Used), n(limit), n(r.Remaining))
	switch r.Algorithm {
	case policy.Concurrency:
		text = fmt.Sprintf("%d of %d places taken, %d free", r.Used, limit, r.Remaining)
	case policy.TokenBucket:
		text = fmt.Sprintf("%s of a burst of %s used, %s left", n(r.Used), n(r.Limit), n(r.Remaining))
	}
	switch {
	case r.VendorLimit > 0:
		text += fmt.Sprintf("; the API has a limit of %s, %s apply", n(r.VendorLimit), n(r.Admits))
	case r.Admits > 0:
		text += fmt.Sprintf("; %s apply, from the API's answers", n(r.Admits))
	}
	if r.Waiting > 0 {
		text += fmt.Sprintf("; %d waiting", r.Waiting)
	}
	if !r.Reset.IsZero() {
		text += "; resets"
	}
	return text
}

// memberLines say how the members of a pool stand, one a line.
func memberLines(members []control.Member) (lines [][2]string) {
	for _, m := range members {
		text := cli.Quote(m.MemberScope) + ": " + m.State()
		for i, r := range m.Rules {
			text += []string{": ", "; "}[min(i, 1)] + cli.Quote(r.Rule) + ", " + ruleState(r)
			if !r.Reset.IsZero() {
				text += " " + momentText(r.Reset)
			}
		}
		lines = append(lines, [2]string{"member", text})
	}
	return lines
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

// pauseLines describes a pause: "payments/acme, since …, by anna, until …".
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
	apps := "none: no application may spend from " + cli.Quote(u.AppsScope)
	if len(u.Apps) > 0 {
		apps = cli.QuoteList(u.Apps) + " alone may spend from " + cli.Quote(u.AppsScope) + "; tasks wait for a worker of one of them"
	}
	return [][2]string{{"apps", apps}}
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

// upstreamLines are what an API has reported, one thing a line.
func upstreamLines(state throttle.UpstreamState) (lines [][2]string) {
	for _, p := range state.Pauses {
		lines = append(lines, [2]string{"paused", fmt.Sprintf("%s until %s, as the API asked", cli.Quote(p.Scope), stamp(p.Until))})
	}
	for _, b := range control.BreakersOf(state) {
		lines = append(lines, [2]string{"breaker", breakerText(b, state.At)})
	}
	for _, c := range state.Corrections {
		lines = append(lines, [2]string{"corrected", fmt.Sprintf("rule %s of %s, %d of %d until %s, from the API's answers",
			cli.Quote(c.Bound.Rule.Name), cli.Quote(c.Bound.Scope.String()), c.Limit, c.Bound.Rule.Limit, stamp(c.Until))})
	}
	return lines
}

// breakerText says how an open breaker stands: "payments/acme, open since 12:03: 14 of 20 calls failed; next probe in 21s".
func breakerText(b control.Breaker, now time.Time) string {
	text := fmt.Sprintf("%s, open since %s: %s; %s", cli.Quote(b.Scope), b.Since, b.Why(), b.Then())
	if !b.NextProbe.IsZero() {
		text += " in " + duration.Format(max(time.Second, b.NextProbe.Sub(now).Round(time.Second)))
	}
	return text
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
