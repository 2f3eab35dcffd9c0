package policy_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// A program can make its policy itself; the same checks hold.
func ExampleNew() {
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"payments": {
			Rules: []policy.Rule{
				{Name: "account", Algorithm: policy.SlidingWindow, Limit: 200, Per: time.Second},
			},
			Scopes: map[string]policy.ScopeConfig{
				"internal": {Rules: []policy.Rule{{Name: "burst", Algorithm: policy.TokenBucket, Limit: 5, Per: time.Minute, Burst: 10}}},
			},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", limitsyaml.Format(policy))
	// Output:
	// unmatched: deny
	// limits:
	//   payments:
	//     rules:
	//       - {name: account, algorithm: sliding-window, limit: 200, per: 1s}
	//     scopes:
	//       internal:
	//         rules:
	//           - {name: burst, algorithm: token-bucket, limit: 5, per: 1m, burst: 10}
}

// A quota for each day on the clocks of California, and one for each month that what is left of the month before is added to.
func ExampleRule_calendar() {
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"mail": {Rules: []policy.Rule{
			{Name: "daily", Algorithm: policy.Calendar, Limit: 10_000, Resets: wallclock.MustParse("0 0 * * *", "America/Los_Angeles")},
			{Name: "monthly", Algorithm: policy.Calendar, Limit: 200_000, Resets: wallclock.MustParse("@monthly", "UTC"), Rollover: 50_000, Spread: true},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", limitsyaml.Format(policy))
	// Output:
	// unmatched: deny
	// limits:
	//   mail:
	//     rules:
	//       - {name: daily, algorithm: calendar, limit: 10000, resets: "0 0 * * *", timezone: "America/Los_Angeles"}
	//       - {name: monthly, algorithm: calendar, limit: 200000, resets: "@monthly", rollover: 50000, spread: true}
}

// Check returns, before a task is made, the error that no wait resolves.
func ExamplePolicy_Check() {
	pol := policy.PerSecond("payments", 20)
	for _, text := range []string{"payments/acme", "mail"} {
		scope, _ := policy.ParseScope(text)
		err := pol.Check(scope, 21)
		fmt.Println(scope, errors.As(err, new(*policy.CostError)), errors.As(err, new(*policy.UnmatchedError)))
	}
	// Output:
	// payments/acme true false
	// mail false true
}

// Names can hold any character but '/', control characters and the name "*".
func ExampleParseScope() {
	scope, err := policy.ParseScope("payments/acme {eu}/refunds")
	fmt.Println(scope.Provider(), scope.Len(), scope.Prefix(2), err)
	_, err = policy.ParseScope("payments//refunds")
	fmt.Println(err)
	// Output:
	// payments 3 payments/acme {eu} <nil>
	// throttle: scope "payments//refunds": name 2 is empty; write 1 to 128 bytes
}

// One rule needs no file.
func ExamplePerSecond() {
	scope, _ := policy.ParseScope("payments/acme")
	rules, _ := policy.PerSecond("payments", 100).Match(scope)
	fmt.Println(rules[0].Scope, limitsyaml.FormatRule(rules[0].Rule))
	// Output: payments {name: limit, algorithm: sliding-window, limit: 100, per: 1s}
}

// A reader of any format says where things stand, and what it has found wrong itself.
func ExampleNewFrom() {
	limits := map[string]policy.ScopeConfig{"mail": {Rules: []policy.Rule{{Name: "all", Algorithm: policy.Concurrency, Limit: -3}}}}
	rule := &policy.Source{Line: 7, Column: 3, Fields: map[string]*policy.Source{
		"name":      {Line: 7, Column: 3},
		"algorithm": {Line: 8, Column: 3},
		"limit":     {Line: 9, Column: 11, Text: "minus three"},
	}}
	of := func(name string, part *policy.Source) *policy.Source {
		return &policy.Source{Fields: map[string]*policy.Source{name: part}}
	}
	file := of("limits", of("mail", of("rules", &policy.Source{Items: []*policy.Source{rule}})))
	_, err := policy.NewFrom(file, policy.UnmatchedDeny, limits)
	var its *policy.Error
	if errors.As(err, &its) {
		its.Name = "limits.toml"
	}
	fmt.Println(err)
	// Output:
	// limits.toml:9:11: limits.mail.rules[0].limit: limit is minus three; the least is 0
}

// "Bad says that its reader has found a fault of the value: New finds no other", and neither is it missing.
func TestNewFromTrustsNothingBad(t *testing.T) {
	t.Parallel()
	limits := map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{{}, {Name: "r", Algorithm: policy.TokenBucket}}}}
	with := func(fields map[string]*policy.Source) error {
		rules := &policy.Source{Items: []*policy.Source{{Bad: true}, {Line: 4, Column: 1, Fields: fields}}}
		scope := &policy.Source{Fields: map[string]*policy.Source{"rules": rules}}
		tree := &policy.Source{Fields: map[string]*policy.Source{"a": scope}}
		_, err := policy.NewFrom(&policy.Source{Fields: map[string]*policy.Source{"limits": tree}}, "", limits)
		return err
	}
	good, bad := &policy.Source{}, &policy.Source{Bad: true}
	if err := with(map[string]*policy.Source{"name": good, "algorithm": good, "limit": bad, "per": bad, "margin": bad}); err != nil {
		t.Errorf("what is bad has another fault: %v", err)
	}
	err := with(map[string]*policy.Source{"name": good, "algorithm": good, "limit": bad})
	if want := "policy:4:1: limits.a.rules[1]: per is missing; write the length of the window, such as 1s"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
