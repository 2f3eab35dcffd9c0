package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// printMade prints what was changed: each rule that is not what it was, and then in which processes it is in force.
func (l *limitsCommand) printMade(ctx context.Context, made policystore.Made) {
	v, changes := made.Version, made.Differences
	text := fmt.Sprintf("version %d by %s, in force at %s", v.Number, author(v.By, v.User), stamp(v.InForce)) + reasonText(v.Reason)
	if b := made.Before; b != nil {
		text += fmt.Sprintf("\n  %s before by %s at %s", verbOf(*b), author(b.UpdatedBy, b.UpdatedUser), stamp(b.UpdatedAt))
	}
	for _, d := range changes {
		text += "\n" + differenceLines(d, "  ")
	}
	text += tierLines(v, l.all)
	if len(changes)+len(v.Tiers) == 0 {
		text += "\n  no rule has changed"
	}
	r := versionReportOf(v, changes)
	if !l.json {
		l.out.Text(text) // before the wait
	}
	switch r.Reach = l.awaitReach(ctx, v); {
	case l.json:
		l.out.Print(r, "")
	case r.Reach != nil:
		l.out.Text("  " + r.Reach.line())
	}
}

// verbOf says what an override does.
func verbOf(o policystore.Override) string {
	switch {
	case o.Resumed():
		return "resumed"
	case o.Name == policystore.PausedField:
		return "paused"
	}
	return "set"
}

// otherReports reports the fields of a node, without its rules and its pause.
func otherReports(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) (list []ruleReport) {
	for name, text := range limitsyaml.Fields(n) {
		if name == policystore.PausedField {
			continue
		}
		list = append(list, origin(v, path, name, text, now))
	}
	return list
}

// ruleReport is one rule of list and show, or what else is said of a scope; docs/json.md has its fields.
type ruleReport struct {
	Scope       string `json:"scope"`            // where the limits have it
	At          string `json:"level,omitempty"`  // show: the level of the scope at which it counts
	Weight      string `json:"weight,omitempty"` // show: of the scope among those that wait for the rule; absent for 1
	Name        string `json:"rule"`
	Text        string `json:"text"`
	From        string `json:"from"` // file, imported, set or removed
	CreatedBy   string `json:"created_by,omitempty"`
	CreatedUser string `json:"created_user,omitempty"`
	CreatedAt   string `json:"created_at,omitempty"`
	UpdatedBy   string `json:"updated_by,omitempty"`
	UpdatedUser string `json:"updated_user,omitempty"`
	UpdatedAt   string `json:"updated_at,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Until       string `json:"until,omitempty"`
	Admits      int64  `json:"admits,omitempty"` // show: what counts in the place of the limit
	AdmitsTo    string `json:"admits_until,omitempty"`
	Vendor      int64  `json:"vendor_limit,omitempty"` // show, like the next
	Used        *int64 `json:"used,omitempty"`
	Remaining   *int64 `json:"remaining,omitempty"`
	Reset       string `json:"reset,omitempty"`
	Waiting     int64  `json:"waiting,omitempty"`
}

// origin says where a rule of a version comes from.
func origin(v policystore.Version, scope, name, text string, now time.Time) ruleReport {
	r := ruleReport{Scope: scope, Name: name, Text: text, From: "file"}
	source := v.File
	if v.Imported != nil {
		r.From, source = "imported", v.Imported
	}
	if source != nil {
		r.UpdatedBy, r.UpdatedUser, r.UpdatedAt, r.Reason = source.By, source.User, stamp(source.At), source.Reason
	}
	if o, live := v.Override(scope, name, now); live {
		r.From = "set"
		if o.Text == "" {
			r.From = "removed"
		}
		r.by(o.Authorship)
		r.Until = stamp(o.Until)
	}
	return r
}

// by sets the authors.
func (r *ruleReport) by(a policystore.Authorship) {
	r.CreatedBy, r.CreatedUser, r.CreatedAt = a.CreatedBy, a.CreatedUser, stamp(a.CreatedAt)
	r.UpdatedBy, r.UpdatedUser, r.UpdatedAt, r.Reason = a.UpdatedBy, a.UpdatedUser, stamp(a.UpdatedAt), a.Reason
}

// source says where the rule comes from: a file, or an author and a time.
func (r ruleReport) source() string {
	if r.UpdatedBy == "" {
		return "  # " + r.From
	}
	return "  # " + r.From + " by " + author(r.UpdatedBy, r.UpdatedUser) + " at " + r.UpdatedAt
}

func (r ruleReport) line() string {
	if r.Name == policy.PausedRule {
		return r.pauseLine()
	}
	line := cli.Quote(r.Scope) + " " + cli.Escape(r.Text)
	if strings.HasSuffix(r.Name, ":") { // no rule's name has one
		line = cli.Quote(r.Scope) + " " + r.Name + " " + cli.Quote(r.Text)
	}
	if r.From == "removed" {
		line = cli.Quote(r.Scope) + " " + cli.Quote(r.Name) + " was removed"
	}
	line += r.source()
	if r.Until != "" {
		line += ", until " + r.Until
	}
	line += reasonText(r.Reason)
	if r.Weight != "" {
		line += ", at weight " + r.Weight
	}
	return line
}

// pauseReport reports the pause of a node, or its end.
func pauseReport(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) ruleReport {
	r := origin(v, path, policystore.PausedField, "paused: "+string(n.Pause), now)
	r.Name, r.Until = policy.PausedRule, stamp(n.PausedUntil)
	return r
}

func (r ruleReport) pauseLine() string {
	line := cli.Quote(r.Scope) + " paused"
	if r.Text != "paused: "+string(policy.PauseOn) {
		line = cli.Quote(r.Scope) + " not paused"
	}
	if r.Until != "" {
		line += " until " + r.Until
	}
	line += r.source()
	if r.CreatedAt != "" && r.CreatedAt != r.UpdatedAt {
		line += ", since " + r.CreatedAt
	}
	return line + reasonText(r.Reason)
}

// nodeReports reports all fields, the pause and the rules of a node.
func (l *limitsCommand) nodeReports(v policystore.Version, path string, n policy.ScopeConfig) []ruleReport {
	list := otherReports(v, path, n, l.now)
	if n.Pause != policy.PauseInherited {
		list = append(list, pauseReport(v, path, n, l.now))
	}
	for _, r := range n.Rules {
		list = append(list, origin(v, path, r.Name, limitsyaml.FormatRule(r), l.now))
	}
	return list
}

// printAll prints reports, and says whether there are any.
func (l *limitsCommand) printAll(reports []ruleReport) bool {
	for _, r := range reports {
		l.out.Print(r, r.line())
	}
	return len(reports) > 0
}

func (l *limitsCommand) list(ctx context.Context, _ []string) error {
	v, p, err := l.current(ctx)
	if err != nil {
		return err
	}
	_, limits := p.Limits()
	listed := map[[2]string]bool{}
	for path, n := range policystore.Nodes(limits) {
		reports := l.nodeReports(v, path, n)
		l.printAll(reports)
		for _, r := range reports {
			listed[[2]string{path, r.Name}] = true
		}
	}
	for _, o := range v.Overrides {
		if isRule := !strings.HasSuffix(o.Name, ":"); isRule && o.Text == "" && !listed[[2]string{o.Scope, o.Name}] {
			r := origin(v, o.Scope, o.Name, "", l.now)
			l.out.Print(r, r.line())
		}
	}
	return nil
}

func (l *limitsCommand) show(ctx context.Context, words []string) error {
	v, p, err := l.current(ctx)
	if err != nil {
		return err
	}
	_, limits := p.Limits()
	scope, noScope := policy.ParseScope(words[0])
	if noScope != nil {
		return l.showPlace(ctx, v, limits, words[0], noScope)
	}
	bounds, err := p.Match(scope)
	if err != nil {
		return err
	}
	service, err := l.serviceOver(p)
	if err != nil {
		return err
	}
	states, err := service.Rules(ctx, l.actor(), words[0])
	if err != nil {
		return err
	}
	for path, n := range policystore.Nodes(limits) {
		if p.Covers(path, scope) {
			l.printAll(otherReports(v, path, n, l.now))
		}
	}
	for _, b := range bounds {
		r := origin(v, b.Pattern, b.Rule.Name, limitsyaml.FormatRule(b.Rule), l.now)
		if b.Paused() {
			r = pauseReport(v, b.Pattern, policy.ScopeConfig{Pause: policy.PauseOn, PausedUntil: b.Until}, l.now)
		}
		r.At = b.Scope.String()
		if weight := p.Weight(scope, b.Scope.Len()); weight != 1 {
			r.Weight = strconv.FormatFloat(weight, 'g', 4, 64)
		}
		line := r.line()
		for _, state := range states {
			if state.RuleScope == r.At && state.Rule == b.Rule.Name {
				line += r.state(state)
			}
		}
		l.out.Print(r, line)
	}
	l.showReach(ctx, v)
	return nil
}

// showPlace shows the rules that the limits have at a place, such as payments/*, which is no scope of a task.
func (l *limitsCommand) showPlace(ctx context.Context, v policystore.Version, limits map[string]policy.ScopeConfig, place string, noScope error) error {
	found := false
	for path, n := range policystore.Nodes(limits) {
		if path == place {
			found = found || l.printAll(l.nodeReports(v, path, n))
		}
	}
	switch {
	case found:
		l.showReach(ctx, v)
		return nil
	case !slices.ContainsFunc(policy.SplitPlace(place), func(level string) bool { return !policy.OneName(level) }):
		return noScope
	}
	return cli.Errorf("worker limits list", "the limits have no rules at %s", cli.Quote(place))
}

// showReach prints in which processes a version is in force, as far as that is known.
func (l *limitsCommand) showReach(ctx context.Context, v policystore.Version) {
	if r := l.reachOf(ctx, v.Number); r != nil {
		l.out.Print(struct {
			Version int64  `json:"version"`
			Reach   *reach `json:"reach"`
		}{v.Number, r}, fmt.Sprintf("version %d: %s", v.Number, r.line()))
	}
}

// state adds how the rule stands, and returns it as text.
func (r *ruleReport) state(s control.Rule) string {
	r.Used, r.Remaining, r.Reset, r.Waiting = &s.Used, &s.Remaining, s.Reset.String(), s.Waiting
	r.Admits, r.AdmitsTo, r.Vendor = s.Admits, s.AdmitsUntil.String(), s.VendorLimit
	text := "; " + ruleState(s)
	if r.Reset != "" {
		text += " at " + r.Reset
	}
	return text
}

func (l *limitsCommand) export(ctx context.Context, _ []string) error {
	v, p, err := l.current(ctx)
	if err != nil {
		return err
	}
	yaml := string(limitsyaml.Format(p))
	l.out.Print(struct {
		Version int64  `json:"version"`
		Limits  string `json:"limits"`
	}{v.Number, yaml}, strings.TrimSuffix(yaml, "\n"))
	return nil
}
