package policy_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Every level of the path that has rules is checked, and acme's rule is laid
// over the one that every tenant has.
func ExampleParse() {
	pol, err := policy.Parse("limits.yaml", []byte(`
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1s}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5}
          - {name: parallel, algorithm: concurrency, limit: 4}
      acme:
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 20}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	scope, err := policy.ParseScope("payments/acme/refunds")
	if err != nil {
		fmt.Println(err)
		return
	}
	bounds, err := pol.Match(scope)
	for _, b := range bounds {
		fmt.Printf("%s: %s of %d at %s\n", b.Rule.Name, b.Rule.Algorithm, b.Rule.Limit, b.Scope)
	}
	fmt.Println(err)
	// Output:
	// account: sliding-window of 200 at payments
	// tenant: token-bucket of 100 at payments/acme
	// parallel: concurrency of 4 at payments/acme
	// <nil>
}

// A file with an error is refused whole, with all that is wrong with it.
func ExampleParse_faults() {
	_, err := policy.Parse("limits.yaml", []byte(`
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding_window, limit: "200", per: 1s}
      - {name: daily, algorithm: fixed-window, limit: 1000, per: 60}
`))
	fmt.Println(err)
	// Output:
	// limits.yaml:5:36: limits.payments.rules[0].algorithm: algorithm is "sliding_window"; did you mean sliding-window?
	// limits.yaml:5:59: limits.payments.rules[0].limit: limit is the text "200"; write 200 without quotes
	// limits.yaml:6:66: limits.payments.rules[1].per: per is the number 60, which has no unit; write 60s if seconds are meant
}

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
	fmt.Printf("%s", policy.YAML())
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

// A quota for each day on the clocks of California, and one for each month that what
// is left of the month before is added to.
func ExampleRule_calendar() {
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"mail": {Rules: []policy.Rule{
			{Name: "daily", Algorithm: policy.Calendar, Limit: 10_000, Resets: "0 0 * * *", Timezone: "America/Los_Angeles"},
			{Name: "monthly", Algorithm: policy.Calendar, Limit: 200_000, Resets: "@monthly", Rollover: 50_000, Spread: true},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", policy.YAML())
	// Output:
	// unmatched: deny
	// limits:
	//   mail:
	//     rules:
	//       - {name: daily, algorithm: calendar, limit: 10000, resets: "0 0 * * *", timezone: "America/Los_Angeles"}
	//       - {name: monthly, algorithm: calendar, limit: 200000, resets: "@monthly", rollover: 50000, spread: true}
}

// Check tells before a task is made what no waiting would cure.
func ExamplePolicy_Check() {
	pol, err := policy.Load("testdata/limits.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, task := range []struct {
		scope string
		cost  int64
	}{{"payments/acme", 20}, {"payments/acme", 21}, {"mail", 1}} {
		scope, err := policy.ParseScope(task.scope)
		if err != nil {
			fmt.Println(err)
			continue
		}
		var cost *policy.CostError
		var unmatched *policy.UnmatchedError
		switch err := pol.Check(scope, task.cost); {
		case errors.As(err, &cost):
			fmt.Printf("%s: cost %d, but %s admits %d\n", scope, cost.Cost, cost.Rule, cost.Capacity)
		case errors.As(err, &unmatched):
			fmt.Printf("%s: no rule\n", scope)
		default:
			fmt.Printf("%s: can pass\n", scope)
		}
	}
	// Output:
	// payments/acme: can pass
	// payments/acme: cost 21, but tenant admits 20
	// mail: no rule
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
	fmt.Println(rules[0].Scope, rules[0].Rule.YAML())
	// Output: payments {name: limit, algorithm: sliding-window, limit: 100, per: 1s}
}
