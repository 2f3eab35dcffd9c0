package main

import (
	"context"
	"errors"
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
	Reach   *reach              `json:"reach,omitempty"`
}

func versionReportOf(v policystore.Version, changes []policystore.Difference) versionReport {
	n := len(changes)
	return versionReport{
		Version: v.Number, At: stamp(v.At), InForce: stamp(v.InForce), By: v.By, User: v.User, Change: v.Change, Reason: v.Reason, Via: v.Via,
		Rules: &n, Diff: differenceReports(changes), Resets: v.Resets,
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

// history prints the versions that are kept with what they changed.
func (c *limitsCommand) history(ctx context.Context) error {
	none := true
	for one, err := range c.store.Changes(ctx) {
		if err != nil {
			return err
		}
		none = false
		r := versionReportOf(one.Version, one.Differences)
		if !one.Known {
			r.Rules = nil
		}
		if err := c.print(r, c.historyLine(one)); err != nil {
			return err
		}
	}
	if none {
		return policystore.ErrNone
	}
	return nil
}

func (c *limitsCommand) historyLine(one policystore.Change) string {
	v := one.Version
	if v.At.IsZero() {
		return fmt.Sprintf("%d  not understood by this program", v.Number)
	}
	line := fmt.Sprintf("%d  %s  %s  %s", v.Number, stamp(v.At), author(v.By, v.User)+viaText(v.Via), cli.Quote(v.Change)) + reasonText(v.Reason)
	for _, r := range v.Resets {
		line += "\n  " + resetLine(r)
	}
	if !one.Known {
		return line + "\n  the version before is not kept any more"
	}
	for i, d := range one.Differences {
		if i == historyShows && !c.all {
			return line + fmt.Sprintf("\n  and %d more; worker limits history -all prints them", len(one.Differences)-i)
		}
		line += "\n" + differenceLines(d, "  ")
	}
	return line
}

// reasonText is why something was changed, for people.
// viaText is the way of a change: a name that -as gives is not the page's user of that name.
func viaText(via string) string {
	if via == "" {
		return ""
	}
	return " via " + asLabel(via)
}

func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ", reason " + strconv.Quote(reason)
}

// errDifferent says that diff has printed something.
var errDifferent = errors.New("the limits are different")

// diff prints what is different in the last of its words, compared with the one before it or with the limits in force.
func (c *limitsCommand) diff(ctx context.Context) error {
	list, err := c.compared(ctx)
	if err != nil {
		return err
	}
	for _, d := range list {
		if err := c.print(differenceReportOf(d), differenceLines(d, "")); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		return errDifferent
	}
	return nil
}

func (c *limitsCommand) compared(ctx context.Context) ([]policystore.Difference, error) {
	if len(c.words) == 2 {
		before, is := versionOf(c.words[0])
		after, both := versionOf(c.words[1])
		if is && both {
			return c.store.Compare(ctx, before, after)
		}
	}
	var sides [2]*policy.Policy
	for i, word := range c.words {
		p, err := c.limitsNamed(ctx, word)
		if err != nil {
			return nil, err
		}
		sides[2-len(c.words)+i] = p
	}
	if sides[0] == nil {
		_, live, err := c.current(ctx)
		if err != nil {
			return nil, err
		}
		sides[0] = live
	}
	return policystore.Differences(sides[0], sides[1]), nil
}

// limitsNamed are the limits of a version, as they were when it came into force, or of a file.
func (c *limitsCommand) limitsNamed(ctx context.Context, word string) (*policy.Policy, error) {
	number, is := versionOf(word)
	if !is {
		return readLimits(word)
	}
	v, err := c.store.Version(ctx, number)
	if err != nil {
		return nil, err
	}
	p, _, err := c.store.Policy(ctx, v, v.InForce)
	return p, err
}

// versionOf reads the number of a version. A file whose name is a number needs a path: ./12.
func versionOf(word string) (int64, bool) {
	number, err := strconv.ParseInt(word, 10, 64)
	return number, err == nil && number > 0
}
