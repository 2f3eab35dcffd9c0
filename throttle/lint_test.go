package throttle

import (
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
)

// "each rule that cannot reach 90 % of its limit"
func TestLintFindsRulesBelowTheirLimit(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"token-bucket, limit: 100, per: 1s, margin: 10ms":            "",
		"token-bucket, limit: 10, per: 1s, margin: 50ms":             "",
		"token-bucket, limit: 20, per: 1s, margin: 500ms, burst: 14": "",
		"token-bucket, limit: 20, per: 1s, margin: 500ms": "reaches 66 % of its limit at most: the start tolerance and its margin, 505ms, are added to per (1s); " +
			"write a shorter margin, or a burst of 12, which pays for it",
		"token-bucket, limit: 1, per: 10ms": "reaches 66 % of its limit at most: the start tolerance of 5ms is added to per (10ms); write a limit for a longer time",
		"sliding-window, limit: 1, per: 20ms, margin: 5ms": "reaches 66 % of its limit at most: the start tolerance and its margin, 10ms, are added to per (20ms); " +
			"write a shorter margin, or a limit for a longer time",
		"sliding-window, limit: 100, per: 1s, margin: 100ms":                 "",
		"fixed-window, limit: 9, per: 1s, margin: 300ms":                     "",
		"fixed-window, limit: 9, per: 1s, margin: 300ms, opens_on_use: true": "reaches 76 % of its limit at most: the start tolerance and its margin, 305ms, are added to per (1s); write a shorter margin, or a limit for a longer time",
		"token-bucket, limit: 0, per: 1ms":                                   "",
		"concurrency, limit: 4":                                              "",
		`calendar, limit: 4, resets: "@daily", margin: 20s`:                  "",
	} {
		p, err := limitsyaml.Parse("f", []byte("limits: {p: {scopes: {a: {rules: [{name: r, algorithm: "+rule+"}, {name: u, unlimited: true}]}}}}"))
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		got := ""
		for _, w := range Lint(p)[1:] { // the first says that nothing is removed
			got += w.String()
		}
		if want != "" {
			want = "p/a r: " + want
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", rule, got, want)
		}
	}
}
