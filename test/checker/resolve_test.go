package checker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle"
)

// TestTheLimiterResolvesAlike holds the checker's reading of random files
// against the limiter's: two readings of interfaces.md that were written apart.
func TestTheLimiterResolvesAlike(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 2))
	met := 0
	for range 100 {
		text := "unmatched: " + []string{"deny", "allow"}[rnd.IntN(2)] + "\nlimits:\n" + randomScopes(rnd, 1)
		policy, err := throttle.ParsePolicy("random.yaml", []byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		limits, err := checker.ParseLimits([]byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for range 20 {
			path := randomPath(rnd)
			want, denied := byLimiter(t, policy, path)
			got, unmatched := byChecker(t, limits, path)
			if !slices.Equal(got, want) || denied != unmatched {
				t.Fatalf("seed %d: %s: checker %q, denied %v; limiter %q, denied %v\n%s",
					seed, path, got, unmatched, want, denied, text)
			}
			met += len(got)
		}
	}
	if met < 200 {
		t.Errorf("only %d rules met", met)
	}
}

func byLimiter(t *testing.T, p *throttle.Policy, path string) (rules []string, denied bool) {
	t.Helper()
	scope, err := throttle.ParseScope(path)
	if err != nil {
		t.Fatal(err)
	}
	bounds, err := p.Match(scope)
	var unmatched *throttle.UnmatchedError
	if err != nil && !errors.As(err, &unmatched) {
		t.Fatal(err)
	}
	for _, b := range bounds {
		rules = append(rules, fmt.Sprint(b.Scope, " ", b.Rule.Name, " ", b.Rule.Algorithm, " ", b.Rule.Limit, " ", b.Rule.Per))
	}
	return rules, err != nil
}

func byChecker(t *testing.T, l *checker.Limits, path string) (rules []string, denied bool) {
	t.Helper()
	rep, err := checker.Check(checker.Input{
		Limits: l, Epoch: time.Unix(1, 0),
		Calls: []countapi.Call{{ID: "a", Scope: path, Cost: 1, Status: 200}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rep.Rows {
		rules = append(rules, fmt.Sprint(row.Scope, " ", row.Rule, " ", row.Algorithm, " ", row.Limit, " ", row.Per))
	}
	return rules, len(rep.Unmatched) > 0
}

func randomPath(rnd *rand.Rand) string {
	names := make([]string, 1+rnd.IntN(4))
	for i := range names {
		names[i] = string('a' + rune(rnd.IntN(3)))
	}
	return strings.Join(names, "/")
}

// randomScopes writes names of one level and what stands under them, or nothing.
func randomScopes(rnd *rand.Rand, level int) string {
	indent := strings.Repeat("    ", level)
	var b strings.Builder
	for i, name := range []string{`"*"`, "a", "b"} {
		if rnd.IntN(4) == 0 && (level > 1 || i > 0) {
			continue
		}
		under := ""
		if level < 4 {
			under = randomScopes(rnd, level+1)
		}
		rules := randomRules(rnd)
		fmt.Fprintf(&b, "%s%s:\n%s  rules: [%s]\n", indent, name, indent, rules)
		if under != "" {
			fmt.Fprintf(&b, "%s  scopes:\n%s", indent, under)
		}
	}
	return b.String()
}

func randomRules(rnd *rand.Rand) string {
	var rules []string
	for _, name := range []string{"r", "s"} {
		switch rnd.IntN(6) {
		case 0:
			rules = append(rules, fmt.Sprintf("{name: %s, unlimited: true}", name))
		case 1:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: token-bucket, limit: %d, per: 30d, burst: 9}", name, 1+rnd.IntN(999)))
		case 2:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: sliding-window, limit: %d, per: 1h}", name, 1+rnd.IntN(999)))
		}
	}
	return strings.Join(rules, ", ")
}

// A shadow rule holds nobody, and takes the place of one that does.
func TestShadowRulesHoldNobody(t *testing.T) {
	t.Parallel()
	l, err := checker.ParseLimits([]byte(`
limits:
  p:
    rules: [{name: a, algorithm: fixed-window, limit: 1, per: 1h, shadow: true}]
    scopes:
      "*": {rules: [{name: b, algorithm: fixed-window, limit: 1, per: 1h}]}
      x: {rules: [{name: b, algorithm: fixed-window, limit: 1, per: 1h, shadow: true}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"p/x": 0, "p/y": 1} {
		if got, _ := byChecker(t, l, path); len(got) != want {
			t.Errorf("%s: got %q", path, got)
		}
	}
}
