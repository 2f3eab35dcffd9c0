package limitsyaml_test

import (
	"fmt"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Every level of the path that has rules is checked, and acme's rule is laid over the one that every tenant has.
func ExampleParse() {
	pol, err := limitsyaml.Parse("limits.yaml", []byte(`
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
	_, err := limitsyaml.Parse("limits.yaml", []byte(`
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
