package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func mustScope(tb testing.TB, s string) Scope {
	tb.Helper()
	scope, err := ParseScope(s)
	if err != nil {
		tb.Fatal(err)
	}
	return scope
}

func mustParse(tb testing.TB, text string) *Policy {
	tb.Helper()
	p, err := Parse("limits.yaml", []byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestCheck(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `
limits:
  a:
    rules:
      - {name: window, algorithm: sliding-window, limit: 200, per: 1s}
      - {name: places, algorithm: concurrency, limit: 2}
    scopes:
      b: {rules: [{name: bucket, algorithm: token-bucket, limit: 1000, per: 1s, burst: 50}]}
      one: {rules: [{name: bucket, algorithm: token-bucket, limit: 1000, per: 1s}]}
      off: {rules: [{name: bucket, algorithm: token-bucket, limit: 0, per: 1s, burst: 5}, {name: fixed, algorithm: fixed-window, limit: 0, per: 1s}]}
      same: {rules: [{name: fixed, algorithm: fixed-window, limit: 200, per: 1s}]}
`)
	for i, row := range []struct {
		scope string
		cost  int64
		want  string // the error's text; empty for none
	}{
		0:  {"a", 200, ""}, // a concurrency rule counts one place a run, whatever the cost
		1:  {"a", 201, `throttle: scope "a": cost 201 can never pass: rule "window" admits 200 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		2:  {"a/b", 50, ""},
		3:  {"a/b", 51, `throttle: scope "a/b": cost 51 can never pass: rule "bucket" admits 50 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		4:  {"a/b", 1 << 62, `throttle: scope "a/b": cost 4611686018427387904 can never pass: rule "bucket" admits 50 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		5:  {"a/one", 2, `throttle: scope "a/one": cost 2 can never pass: rule "bucket" admits 1 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		6:  {"a/off", 6, ""}, // limit 0 suspends: tasks wait
		7:  {"a/same", 201, `throttle: scope "a/same": cost 201 can never pass: rule "window" admits 200 at most; split the task, or raise the burst of a token bucket or the limit of another rule`},
		8:  {"a", 0, `throttle: scope "a": cost is 0; the least is 1`},
		9:  {"a", -7, `throttle: scope "a": cost is -7; the least is 1`},
		10: {"b", 1, `throttle: scope "b" meets no rule and the policy denies such scopes; correct the scope, give it a rule, or write unmatched: allow`},
	} {
		err := p.Check(mustScope(t, row.scope), row.cost)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != row.want {
			t.Errorf("%d: got %q, want %q", i, got, row.want)
		}
	}
	var cost *CostError
	if err := p.Check(mustScope(t, "a/b"), 51); !errors.As(err, &cost) ||
		*cost != (CostError{Scope: mustScope(t, "a/b"), Rule: "bucket", Unit: Requests, Cost: 51, Capacity: 50}) {
		t.Errorf("got %+v", cost)
	}
	var unmatched *UnmatchedError
	if err := p.Check(mustScope(t, "b"), 1); !errors.As(err, &unmatched) {
		t.Errorf("got %v", err)
	}
}

// "It keeps no part of limits", and what Match returns is the caller's.
func TestPolicyIsImmutable(t *testing.T) {
	t.Parallel()
	rules := []Rule{{Name: "r", Algorithm: Concurrency, Limit: 1}}
	below := map[string]ScopeConfig{"b": {Rules: rules}}
	limits := map[string]ScopeConfig{"a": {Rules: rules, Scopes: below}}
	p, err := New(UnmatchedDeny, limits)
	if err != nil {
		t.Fatal(err)
	}
	before := string(p.YAML())
	rules[0].Limit = 99
	below["b"] = ScopeConfig{}
	below["*"] = ScopeConfig{Rules: rules}
	delete(limits, "a")
	clear(p.YAML())
	s := mustScope(t, "a/b")
	bounds, _ := p.Match(s)
	bounds[0].Rule.Limit = 77
	bounds, err = p.Match(s)
	if got := lines(bounds); err != nil || got != "r 1@a, r 1@a/b" {
		t.Errorf("got %s, %v", got, err)
	}
	if after := string(p.YAML()); after != before {
		t.Errorf("YAML changed to\n%s", after)
	}
}

// "It is immutable and safe for concurrent use": the race detector is the judge.
func TestPolicyConcurrently(t *testing.T) {
	t.Parallel()
	p, err := Load("testdata/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := mustScope(t, "payments/acme/refunds")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				if bounds, err := p.Match(s); err != nil || len(bounds) != 4 {
					t.Errorf("got %v, %v", bounds, err)
				}
				if err := p.Check(s, 3); err == nil {
					t.Error("cost 3 passes refunds, which admits 2")
				}
				p.YAML()
			}
		})
	}
	group.Wait()
}

// randomLimits returns a tree of valid rules with names out of names, which
// may hold "*".
func randomLimits(random *rand.Rand, names []string, levels int) map[string]ScopeConfig {
	if levels == 0 {
		return nil
	}
	limits := map[string]ScopeConfig{}
	for range 1 + random.IntN(3) {
		var node ScopeConfig
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			if random.IntN(2*len(names)) < 3 {
				node.Rules = append(node.Rules, randomRule(random, name))
			}
		}
		switch random.IntN(4) {
		case 0:
			node.Answers = Answers(answersWords[random.IntN(len(answersWords))])
		case 1:
			node.Corrects = Corrects{Cut: 1 + random.Int64N(90), Grow: random.Int64N(101), Most: 100 + random.Int64N(901)}
		}
		if random.IntN(4) == 0 {
			node.MaxPriority = new(random.IntN(2*MaxPriority+1) - MaxPriority)
		}
		random.Shuffle(len(node.Rules), func(i, j int) { node.Rules[i], node.Rules[j] = node.Rules[j], node.Rules[i] })
		if random.IntN(4) > 0 {
			node.Scopes = randomLimits(random, names, levels-1)
		}
		limits[names[random.IntN(len(names))]] = node
	}
	return limits
}

func randomRule(random *rand.Rand, name string) Rule {
	micros := func(most time.Duration) time.Duration {
		n := 1 + random.Int64N(most.Microseconds())
		if random.IntN(2) == 0 { // round ones too
			n = max(1, n/1_000_000*1_000_000)
		}
		return time.Duration(n) * time.Microsecond
	}
	maybe := func() bool { return random.IntN(3) == 0 }
	r := Rule{Name: name, Algorithm: Algorithm(algorithms[random.IntN(len(algorithms))]), Limit: random.Int64N(MaxLimit + 1)}
	if maybe() {
		return Rule{Name: name, Unlimited: true}
	}
	if maybe() {
		r.OnRedisError = FailurePolicy(failurePolicies[random.IntN(len(failurePolicies))])
	}
	if maybe() {
		r.MaxWait = micros(MaxTime)
	}
	if r.Shadow = maybe(); maybe() {
		r.Active = []string{"* 8-19 * * 1-5", "30-59 2 * * sun"}[random.IntN(2)]
		r.Timezone = []string{"", "UTC", "America/New_York"}[random.IntN(3)]
	}
	if r.Algorithm == Concurrency {
		if maybe() {
			r.Lease = max(minLease, micros(maxLease))
		}
		return r
	}
	if r.Algorithm == Calendar {
		r.Resets = []string{"0 0 * * *", "@monthly", "*/5 9-17 1,15 * mon-fri", "30 2 29 2 *"}[random.IntN(4)]
		r.Timezone = []string{"", "UTC", "America/Los_Angeles", "Asia/Kathmandu"}[random.IntN(4)]
		if r.Spread = maybe(); maybe() {
			r.Rollover = random.Int64N(MaxLimit + 1)
		}
		if !r.Spread && maybe() {
			r.Prefetch = max(minPrefetch, micros(maxPrefetch))
		}
		return r
	}
	r.Per = micros(MaxTime)
	if maybe() && r.Per >= 4*time.Microsecond {
		r.Margin = micros(r.Per / 4)
	}
	if maybe() && r.Per >= prefetchWindow {
		r.Prefetch = max(minPrefetch, micros(maxPrefetch))
	}
	if r.Algorithm == TokenBucket && maybe() {
		r.Limit = max(r.Limit, 1<<30)
		r.Burst = 1 + random.Int64N(1<<20)
	}
	if r.Algorithm == TokenBucket && r.Prefetch > 0 {
		if r.Burst = max(r.Burst, r.prefetchBurst()); r.Burst > 1<<20 {
			r.Burst, r.Prefetch = 0, 0
		}
	}
	return r
}

// BenchmarkParse reads a file with an override for each of 10,000 tenants.
func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("limits:\n  payments:\n    scopes:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "      tenant-%d:\n        rules:\n          - {name: tenant, algorithm: token-bucket, limit: %d, per: 1s, burst: 5}\n", i, i)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		mustParse(b, text.String())
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `limits: {"*": {rules: [{name: r, algorithm: concurrency, limit: 1}]}, payments: {scopes: {acme: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}}}`)
	for name, want := range map[string]bool{"payments": true, "acme": false, "*": false, "": false} {
		if got := p.Names(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
	if new(Policy).Names("payments") {
		t.Error("the zero Policy names a provider")
	}
}

// "all rules of the policy, each with the pattern at which it stands"
func TestRules(t *testing.T) {
	t.Parallel()
	p, err := Parse("limits.yaml", []byte(`
limits:
  a:
    rules:
      - {name: x, algorithm: token-bucket, limit: 1, per: 1s}
      - {name: y, algorithm: concurrency, limit: 2}
    scopes:
      "*": {rules: [{name: x, algorithm: token-bucket, limit: 3, per: 1s}]}
      c: {scopes: {d: {rules: [{name: x, unlimited: true}]}}}
  "*": {rules: [{name: z, algorithm: token-bucket, limit: 4, per: 1s}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for pattern, r := range p.Rules() {
		got = append(got, fmt.Sprintf("%s:%s %d", pattern, r.Name, r.Limit))
	}
	x, y := slices.Index(got, "a:x 1"), slices.Index(got, "a:y 2")
	if slices.Sort(got); y != x+1 || !slices.Equal(got, []string{"*:z 4", "a/*:x 3", "a/c/d:x 0", "a:x 1", "a:y 2"}) {
		t.Errorf("got %q", got)
	}
	for n := range len(got) { // a loop may end early
		for range p.Rules() {
			if n--; n < 0 {
				break
			}
		}
	}
	for range new(Policy).Rules() {
		t.Error("the zero Policy has a rule")
	}
}
