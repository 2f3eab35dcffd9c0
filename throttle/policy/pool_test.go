package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

const poolText = `
limits:
  github:
    rules: [{name: app, algorithm: sliding-window, limit: 900, per: 1s}]
    pool: {members: [alice, {name: team/one, weight: 3}, {name: team/two, priority: -1}], affinity: tenant}
    scopes:
      "*": {rules: [{name: tenant, algorithm: sliding-window, limit: 5, per: 1s}]}
      "@*": {rules: [{name: hour, algorithm: sliding-window, limit: 5000, per: 1h}]}
      "@alice": {rules: [{name: hour, algorithm: sliding-window, limit: 7, per: 1h}]}
      "@team": {scopes: {"*": {rules: [{name: key, algorithm: sliding-window, limit: 8, per: 1h}]}}}
`

func TestPool(t *testing.T) {
	t.Parallel()
	p := mustParse(t, poolText)
	for scope, want := range map[string]string{
		"github": "github", "github/acme": "github", "github/acme/x": "github", "github/@alice": "", "github/@nobody": "", "github/acme/@alice": "github", "other": "",
	} {
		level, pool := p.PoolOf(mustScope(t, scope))
		if level.String() != want || (want != "") != (len(pool.Members) == 3) {
			t.Errorf("the pool of %s is %+v of %q, want that of %q", scope, pool, level.String(), want)
		}
	}
	level := mustScope(t, "github")
	for member, want := range map[string]string{
		"alice":    "github/@alice:hour 7",
		"team/one": "github/@team:hour 5000, github/@team/one:key 8",
		"gone":     "github/@gone:hour 5000",
	} {
		if got := rulesText(p.MatchMember(level, member, time.Time{})); got != want {
			t.Errorf("%s has %s, want %s", member, got, want)
		}
	}
	all, err := p.Match(mustScope(t, "github/@alice"))
	if got := rulesText(all); err != nil || got != "github:app 900, github/@alice:hour 7" {
		t.Errorf("a task of a member has %s, %v", got, err)
	}
}

func rulesText(list []policy.MatchedRule) string {
	var out []string
	for _, b := range list {
		out = append(out, fmt.Sprintf("%s:%s %d", b.Scope, b.Rule.Name, b.Rule.Limit))
	}
	return strings.Join(out, ", ")
}

// A scope of a pool meets rules: those of its members.
func TestPoolAlone(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `limits: {x: {pool: {members: [a], choose: drain}}}`)
	if all, err := p.Match(mustScope(t, "x/y")); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestPoolFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{pool: {}}":                                                   `x:1:20: limits.a.pool: pool has no members; write them, such as members: [alice, bob]`,
		"{pool: {members: []}}":                                        `x:1:30: limits.a.pool.members: members is empty, and no task could start; name a member, or remove the pool`,
		"{pool: {members: alice}}":                                     `x:1:30: limits.a.pool.members: members is the text "alice"; write a list of aliases, such as [alice, bob]`,
		"{pool: {members: [b, b]}}":                                    `x:1:34: limits.a.pool.members[1]: member "b" is there already; keep one of the two`,
		`{pool: {members: ["@b"]}}`:                                    `x:1:31: limits.a.pool.members[0]: member "@b" begins with "@", as its scope does; write the alias alone`,
		`{pool: {members: ["*"]}}`:                                     `x:1:31: limits.a.pool.members[0]: member "*" is no name that a member can have; "@*" of scopes has the rules of all members`,
		"{pool: {members: [b//c]}}":                                    `x:1:31: limits.a.pool.members[0]: member "b//c" is empty; write 1 to 128 bytes`,
		"{pool: {members: [b/c/d/e/f/g/h/i]}}":                         `x:1:31: limits.a.pool.members[0]: member "b/c/d/e/f/g/h/i" stands below level 8, the last that has names`,
		"{pool: {members: [b], choose: sprad}}":                        `x:1:43: limits.a.pool.choose: choose is "sprad"; did you mean spread?`,
		"{pool: {members: [b], affinity: scope}}":                      `x:1:45: limits.a.pool.affinity: affinity is "scope"; write tenant`,
		"{pool: {members: [b], choose: drain, affinity: tenant}}":      `x:1:60: limits.a.pool.affinity: affinity stands with choose: drain, which takes the same member for all; remove one of the two`,
		"{pool: {members: [b], affinity_wait: 5s}}":                    `x:1:50: limits.a.pool.affinity_wait: affinity_wait stands without an affinity; write affinity: tenant, or remove it`,
		"{pool: {members: [b], affinity: tenant, affinity_wait: 25h}}": `x:1:68: limits.a.pool.affinity_wait: affinity_wait is 25h; it must be at most 24h`,
		"{pool: {members: [b], overflow_after: 5s}}":                   `x:1:51: limits.a.pool.overflow_after: overflow_after stands without choose: drain, which has a next member; write that, or remove it`,
		"{pool: {members: [b], choose: drain, overflow_after: 25h}}":   `x:1:66: limits.a.pool.overflow_after: overflow_after is 25h; it must be at most 24h`,
		"{pool: {members: [b], choose: drain, overflow_after: 80%}}":   `x:1:66: limits.a.pool.overflow_after: overflow_after is the text "80%"; write a duration, such as 500ms, 1m, 24h or 30d`,
		"{pool: {members: [{name: b, weight: 2}], choose: drain}}":     `x:1:49: limits.a.pool.members[0].weight: weight stands with choose: drain, which heeds none; write a priority, or remove it`,
		"{pool: {members: [{name: b, weight: 0}]}}":                    `x:1:49: limits.a.pool.members[0].weight: weight is 0; it must be 1 to 1000`,
		"{pool: {members: [{name: b, priority: 101}]}}":                `x:1:51: limits.a.pool.members[0].priority: priority is 101; it must be -100 to 100`,
		"{pool: {members: [{nam: b}]}}":                                `x:1:32: limits.a.pool.members[0].nam: nam is not a field of a member; did you mean name?`,
		"{pool: {members: [{weight: 2}]}}":                             `x:1:31: limits.a.pool.members[0]: member "" is empty; write 1 to 128 bytes`,
		"{pool: {members: [7]}}":                                       `x:1:31: limits.a.pool.members[0]: the member is the number 7; write "7" in quotes if that text is meant`,
		"{pool: {members: [bob]}, scopes: {\"@bo\": {}}}":              `x:1:47: limits.a.scopes."@bo": "@bo" is no member of the pool; did you mean bob?`,
		"{pool: {members: [b]}, scopes: {c: {pool: {members: [d]}}}}":  `x:1:55: limits.a.scopes.c.pool: pool stands below another pool; keep one of the two`,
		"{pool: {members: [b]}, scopes: {\"@b\": {}, \"@*\": {}}}":     "",
		"{pool: {members: [b/c]}, scopes: {\"@b\": {}, \"@*\": {}}}":   "",
		"{pool: {members: [b, {name: c, weight: 7, priority: -100}]}}": "",
	} {
		_, err := limitsyaml.Parse("x", []byte("limits: {a: "+text+"}"))
		if got := errorText(err); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
	many := make([]policy.Member, 101)
	for i := range many {
		many[i].Name = strings.Repeat("x", i+1)
	}
	_, err := policy.New("", map[string]policy.ScopeConfig{"a": {Pool: policy.Pool{Members: many}}, "b": {Pool: policy.Pool{Choose: "drain"}}})
	want := "policy: limits.a.pool.members: members are 101; the most is 100\npolicy: limits.b.pool: pool has no members; name one, or remove the pool"
	if got := errorText(err); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Format leaves out defaults, and Parse reads it back.
func TestPoolRoundTrip(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{members: [a, {name: b}, {name: c, weight: 1, priority: 0}], choose: spread}`:         `{members: [a, b, c]}`,
		`{affinity: tenant, affinity_wait: 90s, members: [{name: a, priority: 2, weight: 3}]}`: `{members: [{name: a, weight: 3, priority: 2}], affinity: tenant, affinity_wait: 1m30s}`,
		`{choose: drain, overflow_after: 60m, members: [a]}`:                                   `{members: [a], choose: drain, overflow_after: 1h}`,
		`{members: [x/y, "7"], choose: drain}`:                                                 `{members: ["x/y", "7"], choose: drain}`,
	} {
		p, err := limitsyaml.Parse("x", []byte("limits: {a: {pool: "+text+"}}"))
		if err != nil {
			t.Fatal(err)
		}
		formatted := string(limitsyaml.Format(p))
		if !strings.Contains(formatted, "pool: "+want+"\n") {
			t.Errorf("%s becomes\n%s", text, formatted)
		}
		if again := mustParse(t, formatted); string(limitsyaml.Format(again)) != formatted || again.Digest() != p.Digest() {
			t.Errorf("%s reads back as %s", formatted, limitsyaml.Format(again))
		}
		var s policy.ScopeConfig
		if is, err := limitsyaml.SetField(&s, "pool:", want); !is || err != nil {
			t.Error(is, err)
		}
		if got, _ := limitsyaml.Field(s, "pool:"); got != want {
			t.Errorf("%s is set as %s", want, got)
		}
	}
}

// docs/pools.md: a 401 or 402 to a call with a member's key puts the member in quarantine, and a 403 does not; `also` may say otherwise.
// What holds for the whole account holds for the member, or for those that share one.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	p := mustParse(t, poolText)
	short := mustParse(t, strings.Replace(poolText, "affinity: tenant}", "quarantine: 5m}\n    answers: {also: [{status: 402, means: fine}]}", 1))
	for _, test := range []struct {
		of     *policy.Policy
		scope  string
		status int
		pause  time.Duration
	}{
		{p, "github/@alice", 401, time.Hour},
		{p, "github/@team/one", 402, time.Hour},
		{p, "github/@alice", 403, 0},
		{p, "github/acme", 401, 0},
		{p, "other", 402, 0},
		{short, "github/@alice", 401, 5 * time.Minute},
		{short, "github/@alice", 402, 0},
	} {
		hint := test.of.Reader(mustScope(t, test.scope)).Read(test.status, nil, time.Time{})
		if hint.Pause != test.pause || hint.Limited != (test.pause > 0) {
			t.Errorf("a %d to a call of %s: %+v, want a pause of %s", test.status, test.scope, hint, test.pause)
		}
	}
	for scope, want := range map[string]string{"github/@team/one": "github/@team", "github/@alice": "github/@alice", "github/acme": "github/acme"} {
		if waits, _, _ := p.WaitsFor(mustScope(t, scope), upstream.Hint{Where: upstream.ScopeTop}); waits.String() != want {
			t.Errorf("of the account of %s, %s waits, want %s", scope, waits, want)
		}
	}
	for text, want := range map[string]string{"59s": "quarantine is 59s; it must be 1m to 24h", "25h": "quarantine is 25h; it must be 1m to 24h"} {
		_, err := limitsyaml.Parse("f", []byte("limits: {p: {pool: {members: [a], quarantine: "+text+"}}}"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("quarantine %s: %v, want %q", text, err, want)
		}
	}
}
