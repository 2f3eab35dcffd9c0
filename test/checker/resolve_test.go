package checker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// TestTheLimiterResolvesAlike holds the checker's reading of random files
// against the limiter's: two readings of interfaces.md that were written apart.
func TestTheLimiterResolvesAlike(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 2))
	met, paused := 0, 0
	for range 40 {
		text := "unmatched: " + []string{"deny", "allow"}[rnd.IntN(2)] + "\nlimits:\n" + randomScopes(rnd, 1)
		pol, err := limitsyaml.Parse("random.yaml", []byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		limits, err := ParseLimits([]byte(text))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for range 20 {
			path := randomPath(rnd)
			want, denied := byLimiter(t, pol, path)
			got, unmatched := byChecker(t, limits, path)
			paused += strings.Count(strings.Join(got, ","), policy.PausedRule)
			if !slices.Equal(got, want) || denied != unmatched {
				t.Fatalf("seed %d: %s: checker %q, denied %v; limiter %q, denied %v\n%s",
					seed, path, got, unmatched, want, denied, text)
			}
			met += len(got)
		}
	}
	if met < 80 || paused < 20 {
		t.Errorf("only %d rules and %d pauses met", met, paused)
	}
}

func byLimiter(t *testing.T, p *policy.Policy, path string) (rules []string, denied bool) {
	t.Helper()
	scope, err := policy.ParseScope(path)
	must(t, err)
	bounds, err := p.Match(scope)
	var unmatched *policy.UnmatchedError
	if err != nil && !errors.As(err, &unmatched) {
		t.Fatal(err)
	}
	for _, b := range bounds {
		if b.Paused() || b.Rule.Shadow {
			continue
		}
		unit := strings.TrimPrefix(b.Rule.Unit, policy.Requests)
		active := ""
		if hours := b.Rule.Active; hours != nil {
			active = hours.Cron()
		}
		rules = append(rules, fmt.Sprint(b.Scope, " ", b.Rule.Name, " ", b.Rule.Algorithm, " ", b.Rule.Limit, " ", b.Rule.Per, " ", unit, active))
	}
	if slices.ContainsFunc(bounds, policy.MatchedRule.Paused) {
		rules = append(rules, policy.PausedRule)
	}
	return rules, err != nil
}

func byChecker(t *testing.T, l *Limits, path string) (rules []string, denied bool) {
	t.Helper()
	rep := check(t, Input{
		Limits: l,
		Calls:  []countapi.Call{{ID: "a", Scope: path, Cost: 1, Status: 200}},
		Tasks:  []Task{{ID: "a", Scope: path, Cost: 1}},
	})
	for _, row := range rep.Rows {
		rules = append(rules, fmt.Sprint(row.Scope, " ", row.Rule, " ", row.Algorithm, " ", row.Limit, " ", row.Per, " ", row.Unit, row.Active))
	}
	if len(rep.Paused) > 0 {
		rules = append(rules, policy.PausedRule)
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
		fmt.Fprintf(&b, "%s%s:\n%s  rules: [%s]\n%s", indent, name, indent, rules, randomPause(rnd, indent))
		if under != "" {
			fmt.Fprintf(&b, "%s  scopes:\n%s", indent, under)
		}
	}
	return b.String()
}

func randomRules(rnd *rand.Rand) string {
	var rules []string
	for _, name := range []string{"r", "s"} {
		switch rnd.IntN(8) {
		case 0:
			rules = append(rules, fmt.Sprintf("{name: %s, unlimited: true}", name))
		case 1:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: token-bucket, limit: %d, per: 30d, burst: 9}", name, 1+rnd.IntN(999)))
		case 2:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: sliding-window, limit: %d, per: 1h}", name, 1+rnd.IntN(999)))
		case 3:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: sliding-window, limit: %d, per: 1h, unit: tokens}", name, 1+rnd.IntN(999)))
		case 4:
			rules = append(rules, fmt.Sprintf(`{name: %s, algorithm: fixed-window, limit: %d, per: 1h, active: "* 8 * * *"}`, name, 1+rnd.IntN(999)))
		case 5:
			rules = append(rules, fmt.Sprintf("{name: %s, algorithm: fixed-window, limit: %d, per: 1h, shadow: true}", name, 1+rnd.IntN(999)))
		}
	}
	return strings.Join(rules, ", ")
}

// randomPause pauses one name in eight, lets one in eight go on, and says of others what bounds nothing.
func randomPause(rnd *rand.Rand, indent string) string {
	switch rnd.IntN(8) {
	case 0:
		return indent + "  paused: true\n"
	case 1:
		return indent + "  paused: false\n"
	case 2:
		return indent + "  paused: true\n" + indent + "  paused_until: 2200-01-01T00:00:00Z\n"
	case 3:
		return indent + "  weight: 3\n" + indent + "  shares: {x: {part: 60%}, y: {weight: 3}}\n"
	case 4:
		return indent + "  owner: me\n" + indent + "  answers: ignore\n" + indent + "  hosts: [api.example.com]\n"
	}
	return ""
}
