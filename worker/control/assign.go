package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// AssignedField is what a scope has besides rules, as people write it: KEY=VALUE at the command line, and a
// field of a form on the page.
type AssignedField struct {
	// Key is its name in limits.yaml.
	Key string
	// Form describes its values.
	Form string

	given func(policystore.Assigned) bool
	read  func(*policystore.Assigned, string) bool
	write func(policy.ScopeConfig) string
}

// AssignedFields are the fields that assign writes, in order.
var AssignedFields = []AssignedField{
	{
		"owner", "the name of a group, or user:NAME",
		func(a policystore.Assigned) bool { return a.Owner != nil },
		func(a *policystore.Assigned, text string) bool { a.Owner = &text; return true },
		func(n policy.ScopeConfig) string { return n.Owner },
	},
	{
		"apps", "names divided by commas, such as billing,refunds",
		func(a policystore.Assigned) bool { return a.Apps != nil },
		func(a *policystore.Assigned, text string) bool { a.Apps = listed(text); return true },
		func(n policy.ScopeConfig) string { return strings.Join(n.Apps, ",") },
	},
	{
		"hosts", "hosts divided by commas, such as api.example.com,*.example.org",
		func(a policystore.Assigned) bool { return a.Hosts != nil },
		func(a *policystore.Assigned, text string) bool { a.Hosts = listed(text); return true },
		func(n policy.ScopeConfig) string { return strings.Join(n.Hosts, ",") },
	},
	{
		"weight", "a whole number above 0",
		func(a policystore.Assigned) bool { return a.Weight != nil },
		readWeight,
		func(n policy.ScopeConfig) string { return numberOr("", n.Weight) },
	},
	{
		"shares", "names with a part or a weight, such as interactive:60%:2,batch:3",
		func(a policystore.Assigned) bool { return a.Shares != nil },
		readShares,
		func(n policy.ScopeConfig) string { return policystore.FormatShares(n.Shares) },
	},
	{
		"answers", "heed, pause, ignore, or bounds such as {most: 150%}",
		func(a policystore.Assigned) bool { return a.Answers != nil },
		func(a *policystore.Assigned, text string) bool { a.Answers = &text; return true },
		limitsyaml.FormatAnswers,
	},
}

// AssignedFieldOf returns the field of a key, and whether there is one.
func AssignedFieldOf(key string) (AssignedField, bool) {
	i := slices.IndexFunc(AssignedFields, func(f AssignedField) bool { return f.Key == key })
	if i < 0 {
		return AssignedField{}, false
	}
	return AssignedFields[i], true
}

// Given reports whether an Assigned sets the field.
func (f AssignedField) Given(a policystore.Assigned) bool { return f.given(a) }

// Read sets the field from its text; an empty text removes it. The error is an *AssignedError.
func (f AssignedField) Read(a *policystore.Assigned, text string) error {
	if !f.read(a, text) {
		return &AssignedError{Field: f, Text: text}
	}
	return nil
}

// Write returns the field of a scope as Read takes it.
func (f AssignedField) Write(n policy.ScopeConfig) string { return f.write(n) }

// AssignedError is the error for a text that is no value of a field.
type AssignedError struct {
	Field AssignedField
	Text  string
}

func (e *AssignedError) Error() string {
	return fmt.Sprintf("%s %q is not %s", e.Field.Key, e.Text, e.Field.Form)
}

// ConfigAt returns what limits say at a place, such as payments/*, without what it inherits.
func ConfigAt(p *policy.Policy, place string) policy.ScopeConfig {
	_, scopes := p.Limits()
	n := policy.ScopeConfig{Scopes: scopes}
	for name := range strings.SplitSeq(place, "/") {
		n = n.Scopes[name]
	}
	return n
}

// listed reads NAME,NAME. An empty text is an empty list.
func listed(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

func numberOr(none string, n int64) string {
	if n == 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

func readWeight(a *policystore.Assigned, text string) bool {
	weight, err := int64(1), error(nil)
	if text != "" {
		weight, err = strconv.ParseInt(text, 10, 64)
	}
	a.Weight = &weight
	return err == nil && weight > 0
}

// readShares reads NAME:60%:2,NAME:3. Parts are in percent, and weights are not.
func readShares(a *policystore.Assigned, text string) bool {
	a.Shares = map[string]policy.Share{}
	if text == "" {
		return true
	}
	for one := range strings.SplitSeq(text, ",") {
		name, numbers, _ := strings.Cut(one, ":")
		s, is := readShare(numbers)
		if _, twice := a.Shares[name]; twice || !is {
			return false
		}
		a.Shares[name] = s
	}
	return true
}

func readShare(numbers string) (s policy.Share, is bool) {
	for number := range strings.SplitSeq(numbers, ":") {
		digits, part := strings.CutSuffix(number, "%")
		n, err := strconv.ParseInt(digits, 10, 64)
		to := &s.Weight
		if part {
			to = &s.Guaranteed
		}
		if err != nil || n < 1 || *to != 0 {
			return s, false
		}
		*to = n
	}
	return s, true
}
