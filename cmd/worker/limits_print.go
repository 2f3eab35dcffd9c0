package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// print writes one result: an object, or a line for people.
func (c *limitsCommand) print(object any, line string) error {
	text := []byte(cli.EscapeLines(line) + "\n")
	var err error
	if c.json {
		text, err = json.Marshal(object)
		text = cli.EscapeJSON(append(text, '\n'))
	}
	if err == nil {
		_, err = c.out.Write(text)
	}
	if err != nil {
		return fmt.Errorf("cannot write the result: %w", err)
	}
	return nil
}

// changeReport is what a change prints; docs/json.md has its fields.
type changeReport struct {
	Version int64  `json:"version"`
	At      string `json:"at"`
	InForce string `json:"in_force"`
	By      string `json:"by"`
	User    string `json:"user,omitempty"`
	Change  string `json:"change"`
	Rules   int    `json:"rules"`
	Reach   *reach `json:"reach,omitempty"`
}

// tell prints what was changed: each rule that is not what it was, and then in which processes it is in force.
func (c *limitsCommand) tell(ctx context.Context, made policystore.Made, err error) error {
	if err != nil {
		return err
	}
	v, changes := made.Version, differences(made.PolicyBefore, made.Policy)
	r := changeReport{Version: v.Number, At: stamp(v.At), InForce: stamp(v.InForce), By: v.By, User: v.User, Change: v.Change, Rules: len(changes)}
	line := fmt.Sprintf("version %d by %s, in force at %s", v.Number, author(v.By, v.User), r.InForce)
	if made.Before != nil {
		line += fmt.Sprintf("\n  set before by %s at %s", author(made.Before.UpdatedBy, made.Before.UpdatedUser), stamp(made.Before.UpdatedAt))
	}
	if p := made.PauseBefore; p != nil {
		line += fmt.Sprintf("\n  %s before by %s at %s", pausedOrResumed(*p), author(p.UpdatedBy, p.UpdatedUser), stamp(p.UpdatedAt))
	}
	for _, d := range changes {
		line += "\n" + d.lines("  ")
	}
	if len(changes) == 0 {
		line += "\n  no rule is another one by it"
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

// difference is a rule that is not the same in two policies; docs/json.md has its fields.
type difference struct {
	Scope  string `json:"scope"`
	Rule   string `json:"rule"`
	Before string `json:"before,omitempty"` // as limits.yaml has it; absent where there is none
	After  string `json:"after,omitempty"`
}

func (d difference) lines(indent string) string {
	var lines []string
	if d.Before != "" {
		lines = append(lines, indent+"- "+cli.Quote(d.Scope)+" "+cli.Escape(d.Before))
	}
	if d.After != "" {
		lines = append(lines, indent+"+ "+cli.Quote(d.Scope)+" "+cli.Escape(d.After))
	}
	return strings.Join(lines, "\n")
}

// unmatchedRule stands for what a policy says of scopes that meet no rule.
const unmatchedRule = "unmatched"

// rulesBy are the rules of a policy, by their places.
func rulesBy(p *policy.Policy) (rules map[[2]string]string, order [][2]string) {
	unmatched, limits := p.Limits()
	rules = map[[2]string]string{{"", unmatchedRule}: string(unmatched)}
	order = [][2]string{{"", unmatchedRule}}
	for path, r := range policystore.Rules(limits) {
		at := [2]string{path, r.Name}
		rules[at] = limitsyaml.FormatRule(r)
		order = append(order, at)
	}
	for path, n := range policystore.Nodes(limits) {
		for _, field := range assignedFields {
			if text := field.of(n); text != "" {
				at := [2]string{path, field.name}
				rules[at] = strings.TrimPrefix(field.name+" "+text, pausedField+" ")
				order = append(order, at)
			}
		}
	}
	return rules, order
}

// pausedField is what a pause stands under: its text says what it is.
const pausedField = "paused:"

// assignedFields are what is told of a scope beside its rules, in their place.
var assignedFields = []struct {
	name string
	of   func(policy.ScopeConfig) string
	set  func(policystore.Assignment) bool // live, by an assignment of the scope
}{
	{"owner:", func(n policy.ScopeConfig) string { return n.Owner }, func(policystore.Assignment) bool { return true }},
	{"apps:", func(n policy.ScopeConfig) string { return strings.Join(n.Apps, ", ") }, func(policystore.Assignment) bool { return true }},
	{"hosts:", func(n policy.ScopeConfig) string { return strings.Join(n.Hosts, ", ") }, func(a policystore.Assignment) bool { return a.Hosts != nil }},
	{pausedField, pauseText, nil},
	{"weight:", func(n policy.ScopeConfig) string {
		if n.Weight == 0 {
			return ""
		}
		return strconv.FormatInt(n.Weight, 10)
	}, func(a policystore.Assignment) bool { return a.Weight != 0 }},
	{"shares:", func(n policy.ScopeConfig) string {
		if len(n.Shares) == 0 {
			return ""
		}
		return limitsyaml.FormatShares(n.Shares)
	}, func(a policystore.Assignment) bool { return a.Shares != nil }},
	{"max_priority:", func(n policy.ScopeConfig) string {
		if n.MaxPriority == nil {
			return ""
		}
		return strconv.Itoa(*n.MaxPriority)
	}, func(a policystore.Assignment) bool { return a.MaxPriority != nil }},
	{"answers:", limitsyaml.FormatAnswers, func(a policystore.Assignment) bool { return a.Answers != nil }},
}

// otherReports are what a node says beside its rules and its pause.
func otherReports(v policystore.Version, path string, n policy.ScopeConfig, now time.Time) (list []ruleReport) {
	for _, field := range assignedFields {
		text := field.of(n)
		if text == "" || field.name == pausedField {
			continue
		}
		r := origin(v, path, field.name, text, now)
		for _, a := range v.Scopes {
			if a.Scope == path && field.set(a) {
				r.From, r.UpdatedBy, r.UpdatedUser, r.UpdatedAt = "set", a.UpdatedBy, a.UpdatedUser, stamp(a.UpdatedAt)
			}
		}
		list = append(list, r)
	}
	return list
}

// covers tells whether what the limits say at a place, such as payments/*, is said of a
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

func differences(before, after *policy.Policy) (list []difference) {
	had, order := rulesBy(before)
	has, more := rulesBy(after)
	for _, at := range more {
		if _, both := had[at]; !both {
			order = append(order, at)
		}
	}
	slices.SortStableFunc(order, func(a, b [2]string) int {
		if n := strings.Compare(a[0], b[0]); n != 0 || !strings.HasSuffix(a[1]+b[1], ":") {
			return n
		}
		return strings.Compare(b[1], a[1])
	})
	for _, at := range order {
		if had[at] != has[at] {
			list = append(list, difference{Scope: at[0], Rule: at[1], Before: had[at], After: has[at]})
		}
	}
	return list
}

// errDifferent says that diff has printed something.
var errDifferent = errors.New("the file is different")

func (c *limitsCommand) diff(ctx context.Context) error {
	file, err := readLimits(c.words[0])
	if err != nil {
		return err
	}
	_, live, err := c.current(ctx)
	if err != nil {
		return err
	}
	list := differences(live, file)
	for _, d := range list {
		if err := c.print(d, d.lines("")); err != nil {
			return err
		}
	}
	if len(list) > 0 {
		return errDifferent
	}
	return nil
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
	Until       string `json:"until,omitempty"`
	Admits      int64  `json:"admits,omitempty"` // show: what counts in the place of the limit
	AdmitsTo    string `json:"admits_until,omitempty"`
}

// origin tells where a rule of a version comes from.
func origin(v policystore.Version, scope, name, text string, now time.Time) ruleReport {
	r := ruleReport{Scope: scope, Name: name, Text: text, From: "file"}
	source := v.File
	if v.Imported != nil {
		r.From, source = "imported", v.Imported
	}
	if source != nil {
		r.UpdatedBy, r.UpdatedUser, r.UpdatedAt = source.By, source.User, stamp(source.At)
	}
	for _, o := range v.Rules { // one that ends stands after the one for good
		if o.Scope != scope || o.Name != name || !o.Until.IsZero() && !now.Before(o.Until) {
			continue
		}
		r.From = "set"
		if o.Rule == "" {
			r.From = "removed"
		}
		r.CreatedBy, r.CreatedUser, r.CreatedAt = o.CreatedBy, o.CreatedUser, stamp(o.CreatedAt)
		r.UpdatedBy, r.UpdatedUser, r.UpdatedAt = o.UpdatedBy, o.UpdatedUser, stamp(o.UpdatedAt)
		r.Until = stamp(o.Until)
	}
	return r
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
	for _, o := range v.Rules {
		if o.Rule == "" && !there[[2]string{o.Scope, o.Name}] {
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
	told, err := c.told(ctx, p)
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
		for _, one := range told.Corrections {
			if one.Bound.Scope == b.Scope && one.Bound.Rule.Name == b.Rule.Name {
				report.Admits, report.AdmitsTo = one.Limit, stamp(one.Until)
				line += "; now " + corrected(one)
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

// told is what an API has told of the scope.
func (c *limitsCommand) told(ctx context.Context, p *policy.Policy) (throttle.UpstreamState, error) {
	limiter, err := throttle.New(c.rdb, p, throttle.Config{})
	if err != nil {
		return throttle.UpstreamState{}, err
	}
	return limiter.UpstreamState(ctx, c.words[0])
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

// versionReport is one version of history; docs/json.md has its fields.
type versionReport struct {
	Version int64  `json:"version"`
	At      string `json:"at"`
	InForce string `json:"in_force"`
	By      string `json:"by"`
	User    string `json:"user,omitempty"`
	Change  string `json:"change"`
	Hash    string `json:"hash,omitempty"`
}

func (c *limitsCommand) history(ctx context.Context) error {
	list, err := c.store.History(ctx)
	if err == nil && len(list) == 0 {
		err = policystore.ErrNone
	}
	if err != nil {
		return err
	}
	for _, v := range list {
		r := versionReport{Version: v.Number, At: stamp(v.At), InForce: stamp(v.InForce), By: v.By, User: v.User, Change: v.Change, Hash: v.Hash}
		line := fmt.Sprintf("%d  %s  %s  %s", r.Version, r.At, author(r.By, r.User), cli.Quote(r.Change))
		if v.At.IsZero() {
			line = fmt.Sprintf("%d  not understood by this program", r.Version)
		}
		if err := c.print(r, line); err != nil {
			return err
		}
	}
	return nil
}
