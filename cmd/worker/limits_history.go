package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// versionReport is a version with what it changed; docs/json.md has its fields.
type versionReport struct {
	Version int64               `json:"version"`
	At      string              `json:"at"`
	InForce string              `json:"in_force"`
	By      string              `json:"by"`
	User    string              `json:"user,omitempty"`
	Change  string              `json:"change"`
	Reason  string              `json:"reason,omitempty"`
	Via     string              `json:"via,omitempty"`
	Rules   *int                `json:"rules,omitempty"` // absent where it is not known
	Diff    []differenceReport  `json:"diff,omitempty"`
	Resets  []policystore.Reset `json:"resets,omitempty"`
	Tiers   []policystore.Tier  `json:"tiers,omitempty"`
	Reach   *reach              `json:"reach,omitempty"`
}

func versionReportOf(v policystore.Version, changes []policystore.Difference) versionReport {
	n := len(changes)
	return versionReport{
		Version: v.Number, At: stamp(v.At), InForce: stamp(v.InForce), By: v.By, User: v.User, Change: v.Change, Reason: v.Reason, Via: v.Via,
		Rules: &n, Diff: differenceReports(changes), Resets: v.Resets, Tiers: v.Tiers,
	}
}

// differenceReport is a rule that two policies do not have alike; docs/json.md has its fields.
type differenceReport struct {
	Scope       string `json:"scope"`
	Rule        string `json:"rule"`
	Before      string `json:"before,omitempty"` // as limits.yaml has it; absent where there is none
	After       string `json:"after,omitempty"`
	BeforeUntil string `json:"before_until,omitempty"`
	AfterUntil  string `json:"after_until,omitempty"`
	From        string `json:"from,omitempty"`
}

func differenceReportOf(d policystore.Difference) differenceReport {
	return differenceReport{
		Scope: d.Scope, Rule: d.Rule, Before: d.Before, After: d.After,
		BeforeUntil: stamp(d.BeforeUntil), AfterUntil: stamp(d.AfterUntil), From: stamp(d.From),
	}
}

func differenceReports(list []policystore.Difference) (reports []differenceReport) {
	for _, d := range list {
		reports = append(reports, differenceReportOf(d))
	}
	return reports
}

// differenceLines are the lines of a difference for people: what was, and what is.
func differenceLines(d policystore.Difference, indent string) string {
	r := differenceReportOf(d)
	line := func(sign, text, until string) string {
		line := indent + sign + " "
		if r.Scope != "" {
			line += cli.Quote(r.Scope) + " "
		}
		line += cli.Escape(text)
		if until != "" {
			line += ", until " + until
		}
		if r.From != "" {
			line += ", from " + r.From
		}
		return line
	}
	var lines []string
	if r.Before != "" {
		lines = append(lines, line("-", r.Before, r.BeforeUntil))
	}
	if r.After != "" {
		lines = append(lines, line("+", r.After, r.AfterUntil))
	}
	return strings.Join(lines, "\n")
}

// historyShows is how many rules of a version history prints without -all.
const historyShows = 5

// printHistory prints the versions that are kept with what they changed.
func (l *limitsCommand) printHistory(ctx context.Context, _ []string) error {
	none := true
	for change, err := range l.store().Changes(ctx) {
		if err != nil {
			return err
		}
		none = false
		r := versionReportOf(change.Version, change.Differences)
		if !change.Known {
			r.Rules = nil
		}
		l.out.Print(r, l.historyLine(change))
	}
	if none {
		return policystore.ErrNone
	}
	return nil
}

func (l *limitsCommand) historyLine(c policystore.Change) string {
	v := c.Version
	if v.At.IsZero() {
		return fmt.Sprintf("%d  not understood by this program", v.Number)
	}
	line := fmt.Sprintf("%d  %s  %s  %s", v.Number, stamp(v.At), author(v.By, v.User)+viaText(v.Via), cli.Quote(v.Change)) + reasonText(v.Reason)
	line += tierLines(v, l.all)
	for _, r := range v.Resets {
		line += "\n  " + resetLine(r)
	}
	if !c.Known {
		return line + "\n  the version before is not kept any more"
	}
	for i, d := range c.Differences {
		if i == historyShows && !l.all {
			return line + fmt.Sprintf("\n  and %d more; worker limits history -all prints them", len(c.Differences)-i)
		}
		line += "\n" + differenceLines(d, "  ")
	}
	return line
}

// viaText is the way of a change: a name that -as gives is not the page's user of that name.
func viaText(via string) string {
	if via == "" {
		return ""
	}
	return " via " + asLabel(via)
}

// reasonText is why something was changed, for people.
func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ", reason " + strconv.Quote(reason)
}

// diff prints what is different in the last of its words, compared with the one before it or with the limits in force.
func (l *limitsCommand) diff(ctx context.Context, words []string) error {
	list, err := l.compared(ctx, words)
	if err != nil {
		return err
	}
	for _, d := range list {
		l.out.Print(differenceReportOf(d), differenceLines(d, ""))
	}
	if len(list) > 0 {
		return cli.ErrPrinted
	}
	return nil
}

func (l *limitsCommand) compared(ctx context.Context, words []string) ([]policystore.Difference, error) {
	if len(words) == 2 {
		before, is := versionOf(words[0])
		after, both := versionOf(words[1])
		if is && both {
			return l.store().Compare(ctx, before, after)
		}
	}
	var sides [2]*policy.Policy
	for i, word := range words {
		p, err := l.limitsNamed(ctx, word)
		if err != nil {
			return nil, err
		}
		sides[2-len(words)+i] = p
	}
	if sides[0] == nil {
		_, live, err := l.current(ctx)
		if err != nil {
			return nil, err
		}
		sides[0] = live
	}
	return policystore.Differences(sides[0], sides[1]), nil
}

// limitsNamed returns the limits of a version, as they were when it came into force, or of a file.
func (l *limitsCommand) limitsNamed(ctx context.Context, word string) (*policy.Policy, error) {
	number, is := versionOf(word)
	if !is {
		return readLimits(word)
	}
	v, err := l.store().Version(ctx, number)
	if err != nil {
		return nil, err
	}
	p, _, err := l.store().Policy(ctx, v, v.InForce)
	return p, err
}
