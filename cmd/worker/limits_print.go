package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// print writes one result: an object, or a line for people.
func (c *limitsCommand) print(object any, line string) error {
	return printOne(c.out, c.json, object, line)
}

// printOne writes an object in JSON, or a line for people.
func printOne(out io.Writer, inJSON bool, object any, line string) error {
	text := []byte(cli.EscapeLines(line) + "\n")
	var err error
	if inJSON {
		text, err = json.Marshal(object)
		text = cli.EscapeJSON(append(text, '\n'))
	}
	if err == nil {
		_, err = out.Write(text)
	}
	if err != nil {
		return fmt.Errorf("cannot write the result: %w", err)
	}
	return nil
}

// tell prints what was changed: each rule that is not what it was, and then in which processes it is in force.
func (c *limitsCommand) tell(ctx context.Context, made policystore.Made, err error) error {
	if err != nil {
		return err
	}
	v, changes := made.Version, made.Differences
	r := versionReportOf(v, changes)
	line := fmt.Sprintf("version %d by %s, in force at %s", v.Number, author(v.By, v.User), r.InForce) + reasonText(v.Reason)
	if o := made.Before; o != nil {
		line += fmt.Sprintf("\n  %s before by %s at %s", setOrPaused(*o), author(o.UpdatedBy, o.UpdatedUser), stamp(o.UpdatedAt))
	}
	for _, d := range changes {
		line += "\n" + differenceLines(d, "  ")
	}
	if len(changes) == 0 {
		line += "\n  no rule has changed"
	}
	if c.json {
		r.Reach = c.awaitReach(ctx, v)
		return c.print(r, "")
	}
	if err := c.print(nil, line); err != nil {
		return err
	}
	if reach := c.awaitReach(ctx, v); reach != nil {
		return c.print(nil, "  "+reach.line())
	}
	return nil
}

// otherReports are what a node says beside its rules and its pause.
func otherReports(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) (list []ruleReport) {
	for name, text := range policystore.Fields(n) {
		if name == policystore.PausedField {
			continue
		}
		list = append(list, origin(v, path, name, text, now))
	}
	return list
}

// covers reports whether what the limits say at a place, such as payments/*, is said of a
// scope: of it, or of one above it.
func covers(path, scope string) bool {
	names, place := strings.Split(scope, "/"), strings.Split(path, "/")
	if len(place) > len(names) {
		return false
	}
	for i, name := range place {
		if name != "*" && name != names[i] {
			return false
		}
	}
	return true
}

// ruleReport is one rule of list and show, or what else is said of a scope; docs/json.md has
// its fields.
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

// by fills in who made it.
func (r *ruleReport) by(a policystore.Authorship) {
	r.CreatedBy, r.CreatedUser, r.CreatedAt = a.CreatedBy, a.CreatedUser, stamp(a.CreatedAt)
	r.UpdatedBy, r.UpdatedUser, r.UpdatedAt, r.Reason = a.UpdatedBy, a.UpdatedUser, stamp(a.UpdatedAt), a.Reason
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
	line += "  # " + r.From
	if r.UpdatedBy != "" {
		line += " by " + author(r.UpdatedBy, r.UpdatedUser) + " at " + r.UpdatedAt
	}
	if r.Until != "" {
		line += ", until " + r.Until
	}
	line += reasonText(r.Reason)
	if r.Weight != "" {
		line += ", at weight " + r.Weight
	}
	return line
}

func (c *limitsCommand) list(ctx context.Context) error {
	v, p, err := c.current(ctx)
	if err != nil {
		return err
	}
	_, limits := p.Limits()
	there := map[[2]string]bool{}
	for path, n := range policystore.Nodes(limits) {
		reports := append(otherReports(v, path, n, c.now), pauseReports(v, path, n, c.now)...)
		for _, r := range n.Rules {
			there[[2]string{path, r.Name}] = true
			reports = append(reports, origin(v, path, r.Name, limitsyaml.FormatRule(r), c.now))
		}
		for _, report := range reports {
			if err := c.print(report, report.line()); err != nil {
				return err
			}
		}
	}
	for _, o := range v.Overrides {
		if isRule := !strings.HasSuffix(o.Name, ":"); isRule && o.Text == "" && !there[[2]string{o.Scope, o.Name}] {
			report := origin(v, o.Scope, o.Name, "", c.now)
			if err := c.print(report, report.line()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *limitsCommand) show(ctx context.Context) error {
	v, p, err := c.current(ctx)
	if err != nil {
		return err
	}
	scope, err := policy.ParseScope(c.words[0])
	if err != nil {
		return c.showPattern(ctx, v, p, err)
	}
	bounds, err := p.Match(scope)
	if err != nil {
		return err
	}
	states, err := c.states(ctx, p)
	if err != nil {
		return err
	}
	_, limits := p.Limits()
	for path, n := range policystore.Nodes(limits) {
		if !covers(path, scope.String()) {
			continue
		}
		for _, report := range otherReports(v, path, n, c.now) {
			if err := c.print(report, report.line()); err != nil {
				return err
			}
		}
	}
	for _, b := range bounds {
		report := origin(v, b.Pattern, b.Rule.Name, limitsyaml.FormatRule(b.Rule), c.now)
		if b.Paused() {
			report = pauseReport(v, b.Pattern, policy.ScopeConfig{Pause: policy.PauseOn, PausedUntil: b.Until}, c.now)
		}
		report.At = b.Scope.String()
		if weight := p.Weight(scope, b.Scope.Len()); weight != 1 {
			report.Weight = strconv.FormatFloat(weight, 'g', 4, 64)
		}
		line := report.line()
		for _, state := range states {
			if state.RuleScope == report.At && state.Rule == b.Rule.Name {
				line += report.state(state)
				if cli.IsTerminal(c.out) {
					line = meter(state) + " " + line
				}
			}
		}
		if err := c.print(report, line); err != nil {
			return err
		}
	}
	return c.showReach(ctx, v)
}

// showReach prints in which processes a version is in force, as far as that is known.
func (c *limitsCommand) showReach(ctx context.Context, v policystore.Version) error {
	reached := c.reachOf(ctx, v.Number)
	if reached == nil {
		return nil
	}
	return c.print(struct {
		Version int64  `json:"version"`
		Reach   *reach `json:"reach"`
	}{v.Number, reached}, fmt.Sprintf("version %d: %s", v.Number, reached.line()))
}

// states is how the rules of the scope stand.
func (c *limitsCommand) states(ctx context.Context, p *policy.Policy) ([]control.Rule, error) {
	limiter, err := throttle.New(c.rdb, p, throttle.Config{})
	if err != nil {
		return nil, err
	}
	return control.New(control.Config{Redis: c.rdb, Limiter: limiter, Store: c.store}).Rules(ctx, atCommandLine(c.as), c.words[0])
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

// showPattern shows the rules that the limits have at a place, such as payments/*, which
// is no scope of a task.
func (c *limitsCommand) showPattern(ctx context.Context, v policystore.Version, p *policy.Policy, noScope error) error {
	_, limits := p.Limits()
	found := false
	for path, n := range policystore.Nodes(limits) {
		if path != c.words[0] {
			continue
		}
		reports := append(otherReports(v, path, n, c.now), pauseReports(v, path, n, c.now)...)
		for _, r := range n.Rules {
			reports = append(reports, origin(v, path, r.Name, limitsyaml.FormatRule(r), c.now))
		}
		for _, report := range reports {
			found = true
			if err := c.print(report, report.line()); err != nil {
				return err
			}
		}
	}
	switch {
	case found:
		return c.showReach(ctx, v)
	case !strings.Contains("/"+c.words[0]+"/", "/*/"):
		return noScope
	}
	return cli.Errorf("worker limits list", "the limits have no rules at %s", cli.Quote(c.words[0]))
}

func (c *limitsCommand) export(ctx context.Context) error {
	v, p, err := c.current(ctx)
	if err != nil {
		return err
	}
	return c.print(struct {
		Version int64  `json:"version"`
		Limits  string `json:"limits"`
	}{v.Number, string(limitsyaml.Format(p))}, strings.TrimSuffix(string(limitsyaml.Format(p)), "\n"))
}

func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}

// author is who made something: by is what was said, and user whom Redis knows.
func author(by, user string) string {
	if user == "" {
		user = "unknown"
	}
	return asLabel(by) + " (user " + asLabel(user) + ")"
}

// asLabel is Quote, and quotes besides what looks like the rest of an author.
func asLabel(name string) string {
	if text := cli.Quote(name); text != name || !strings.ContainsAny(name, `()"#`) {
		return text
	}
	return strconv.Quote(name)
}
