package policy

import (
	"fmt"
	"strings"

	"github.com/headway-go/headway/internal/diag"
)

// Fault is one fault of a policy: its place in the text (Line and Column, from 1, or 0 if there is no text), its place in the
// tree (Path), and what is wrong and what to write instead (Reason). String returns it on one line.
type Fault = diag.Fault

// Error reports why a policy is invalid. An invalid policy is rejected as a whole. Faults has every fault that can be found, in
// the order of the text; after ten thousand, a last one gives the number of further ones. Text that is not YAML has only its YAML
// faults.
type Error struct {
	// Name is the name of the file, or "policy" for a policy made in Go.
	Name   string
	Faults []Fault
}

// Error returns every fault, one per line, as "limits.yaml:12:5: path: reason", a form that editors can jump to.
func (e *Error) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Name)
		b.WriteByte(':')
		if f.Line == 0 {
			b.WriteByte(' ')
		}
		b.WriteString(f.String())
	}
	return b.String()
}

// CostError reports a cost that can never pass, however long the task waits. It is permanent until the policy changes.
type CostError struct {
	Scope Scope
	// Rule is the rule that admits least; empty if the cost is below 1, which no policy admits.
	Rule string
	// Unit is the unit that Rule counts, Requests by default.
	Unit string
	// Cost is the requested cost, and Capacity the largest cost that Rule admits, both in units.
	Cost, Capacity int64
}

func (e *CostError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("throttle: scope %s: cost is %d; the least is 1", quote(e.Scope.text), e.Cost)
	}
	reason := fmt.Sprintf("cost %d can never pass: rule %q admits %d at most", e.Cost, e.Rule, e.Capacity)
	if e.Unit != "" && e.Unit != Requests {
		reason = fmt.Sprintf("costs %s, and the most that rule %q can ever admit is %s", Amount(e.Cost, e.Unit), e.Rule, Number(e.Capacity, e.Unit))
	}
	return "throttle: scope " + quote(e.Scope.text) + ": " + reason +
		"; split the task, or raise the burst of a token bucket or the limit of another rule"
}

// UnmatchedError reports a scope that matches no rule under "unmatched: deny". It is permanent until the policy changes.
type UnmatchedError struct{ Scope Scope }

func (e *UnmatchedError) Error() string {
	return fmt.Sprintf("throttle: scope %s meets no rule and the policy denies such scopes; "+
		"correct the scope, give it a rule, or write unmatched: allow", quote(e.Scope.text))
}

// AppError reports that an application may not spend from a scope. It is permanent until the policy changes.
type AppError struct {
	Scope Scope
	App   string // the application that asked; empty for one without a name
	Level Scope  // the prefix of Scope whose list, Apps, does not have App
	Apps  []string
}

func (e *AppError) Error() string {
	who := "an application without a name (Config.App)"
	if e.App != "" {
		who = "application " + quote(e.App)
	}
	return fmt.Sprintf("throttle: scope %s: %s may not spend from it; %s is for %s",
		quote(e.Scope.text), who, e.Level.text, strings.Join(e.Apps, ", "))
}

// ScopeError reports why a text is not a scope. It is permanent.
type ScopeError struct {
	Scope  string
	Reason string
}

func (e *ScopeError) Error() string {
	return fmt.Sprintf("throttle: scope %s: %s", quote(e.Scope), e.Reason)
}

// quote returns s as a Go string on one line, cut where it is too long to print.
func quote(s string) string { return diag.Quote(s) }
