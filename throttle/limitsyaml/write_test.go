package limitsyaml

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/test/randompolicy"
	"github.com/headway-go/headway/throttle/policy"
)

// hostile are names that YAML, or a reader of YAML, might take for something else, and that a writer might fail to quote.
var hostile = []string{
	"yes", "no", "on", "off", "y", "N", "true", "False", "null", "NULL", "~", "123", "-1", "0x10", "010", "1_000", "1e3", "1.5", ".inf", "-.INF", ".nan",
	"2026-01-02", "12:30:45", "<<", "=", "a: b", "a:", ":a", ":", "#x", "a #b", "# a", "-", "- a", "--- a", "---", "...", "?", "? a", "!", "!!str", "!t a",
	"&a", "&", "|", ">", "|-", "%", "%YAML 1.1", "@a", "`a`", "\"", "'", "''", "\"\"", "\"a\"", "'a'", "it's", "\\", "\\n", "a\\", "\\\"", "{", "}", "{a}", "[", "]", "[a]",
	",", "a,b", ", ", " ", "  ", " a", "a ", "a  b", "a\u00a0b", "\u00a0", "\u200b", "\u200d", "\u202e", "\ufffd", "\ue000", "\U0001F600", "\U000e1000", "\ufdd0", "\ufffe", "\uffff", "é", "e\u0301",
	"name", "rules", "scopes", "limits", "unlimited: true", "{name: x}", "**", "a*", "é: ö", "_", "a.b", "A-1_b.c", strings.Repeat("\U000e1000", 32), strings.Repeat("\"", 128),
}

// "Parse reads the text back to an equal policy", whatever the names.
func TestYAMLHostileNames(t *testing.T) {
	t.Parallel()
	limits := map[string]policy.ScopeConfig{}
	for _, name := range hostile {
		rule := name
		if strings.HasSuffix(name, ":") { // which a rule's name must not be
			rule += "."
		}
		limits[name] = policy.ScopeConfig{
			Rules:  []policy.Rule{{Name: rule, Algorithm: policy.Concurrency, Limit: 1}, {Name: "*", Unlimited: true}},
			Scopes: map[string]policy.ScopeConfig{"*": {}, name: {Rules: []policy.Rule{{Name: rule, Algorithm: policy.SlidingWindow, Limit: 1, Per: 24 * time.Hour}}}},
		}
	}
	p, err := policy.New(policy.UnmatchedAllow, limits)
	if err != nil {
		t.Fatal(err)
	}
	if _, kept := p.Limits(); len(kept) != len(hostile) {
		t.Fatalf("%d names became %d", len(hostile), len(kept))
	}
	roundTrip(t, p)
}

// The same, of random trees with random names.
func TestYAMLRoundTrip(t *testing.T) {
	t.Parallel()
	unmatched := policy.Words("unmatched")
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		names := []string{"*", hostile[random.IntN(len(hostile))], randomName(random), randomName(random)}
		p, err := policy.New(policy.Unmatched(unmatched[random.IntN(len(unmatched))]), randompolicy.Limits(random, names, 1+int(seed%8)))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		roundTrip(t, p)
	}
}

// randomName returns a valid name of random characters from all of Unicode.
func randomName(random *rand.Rand) string {
	var name []byte
	for len(name) == 0 || random.IntN(6) > 0 {
		r := random.Int32N(1 << (7 + random.IntN(14)))
		if c := string(r); c != "/" && utf8.ValidRune(r) && !diag.Invisible(r) && len(name)+len(c) <= diag.MaxNameBytes {
			name = append(name, c...)
		}
	}
	return string(name)
}

func roundTrip(t *testing.T, p *policy.Policy) {
	t.Helper()
	text := Format(p)
	again, err := Parse("limits.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !reflect.DeepEqual(again, p) {
		t.Fatalf("reads back differently:\n%s\n%s", text, Format(again))
	}
	// "Equal policies have equal texts"
	if !bytes.Equal(Format(again), text) {
		t.Fatalf("writes differently:\n%s\n%s", text, Format(again))
	}
}

// "names in order, rules in theirs, defaults left out"
func TestYAMLForm(t *testing.T) {
	t.Parallel()
	p := mustParse(t, `{"limits": {
  search: {rules: [{name: z, limit: 10, algorithm: concurrency, lease: 30s, on_redis_error: closed},
    {name: a, algorithm: "token-bucket", per: 60s, limit: 5, max_wait: 86400s, margin: 1500us, burst: 4, on_redis_error: share},
    {name: day, algorithm: calendar, timezone: UTC, resets: '0 0 * * *', limit: 1, rollover: 0, spread: false},
    {name: hour, algorithm: calendar, resets: "@hourly", limit: 1},
    {name: month, algorithm: calendar, spread: true, rollover: 5, timezone: America/Los_Angeles, resets: "@monthly", limit: 9},
    {unlimited: true, name: "yes"}, {name: w, algorithm: fixed-window, limit: 0, per: 30d, opens_on_use: false},
    {name: v, opens_on_use: true, algorithm: fixed-window, limit: 0, per: 30d}]},
  "mail": {}, 404: {scopes: {"*": {scopes: {}, rules: []}, b: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1h, burst: 2}]}}}}}`)
	const want = `unmatched: deny
limits:
  "404":
    scopes:
      "*": {}
      b:
        rules:
          - {name: r, algorithm: token-bucket, limit: 1, per: 1h, burst: 2}
  mail: {}
  search:
    rules:
      - {name: z, algorithm: concurrency, limit: 10}
      - {name: a, algorithm: token-bucket, limit: 5, per: 1m, burst: 4, on_redis_error: share, margin: 1.5ms, max_wait: 24h}
      - {name: day, algorithm: calendar, limit: 1, resets: "0 0 * * *"}
      - {name: hour, algorithm: calendar, limit: 1, resets: "@hourly"}
      - {name: month, algorithm: calendar, limit: 9, resets: "@monthly", timezone: "America/Los_Angeles", rollover: 5, spread: true}
      - {name: "yes", unlimited: true}
      - {name: w, algorithm: fixed-window, limit: 0, per: 30d}
      - {name: v, algorithm: fixed-window, limit: 0, per: 30d, opens_on_use: true}
`
	if got := string(Format(p)); got != want {
		t.Errorf("got\n%s", got)
	}
	roundTrip(t, p)
	var zero policy.Policy
	if got := string(Format(&zero)); got != "unmatched: deny\nlimits: {}\n" {
		t.Errorf("the zero Policy is\n%s", got)
	}
}

// FuzzParse: nothing panics, a refusal names its faults, and what is read is written and read again as it was.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/limits.yaml", "testdata/faults.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, seed := range []string{
		"", "limits: {}", "limits:\n  *:\n", "a: &a [*a]\n", "? [x]\n: y\n", "--- |\n a\n", "limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1}]}}",
		"unmatched: allow\nlimits:\n  '*': {scopes: {\"\\u00e9\\U0001F600\": {rules: []}}}\n", "\ufefflimits: {}\r\n", "%TAG ! x\n---\n!a {}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f", data)
		if err == nil {
			roundTrip(t, p)
			return
		}
		var fault *policy.Error
		if !errors.As(err, &fault) || p != nil || len(fault.Faults) == 0 {
			t.Fatalf("got %v, %v", p, err)
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, one := range fault.Faults {
			if one.Line < 1 || one.Line > lines || one.Column < 1 || one.Reason == "" || strings.ContainsAny(one.String(), "\n\r\x00") {
				t.Fatalf("fault %q of %d lines", one, lines)
			}
		}
	})
}
