package policy_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/limits.md: "a pause counts at the level where it stands, and for all below it".
func TestPausedLevels(t *testing.T) {
	t.Parallel()
	p := mustParse(t, pausedText("allow"))
	const tenant = "account 100@p, /paused 0@p/a, tenant 5@p/a"
	for scope, want := range map[string]string{
		"p":        "account 100@p",
		"p/a":      tenant,
		"p/a/deep": tenant, // paused above
		"p/free":   "account 100@p, tenant 5@p/free",
		"whole":    "/paused 0@whole",
		"whole/a":  "/paused 0@whole",
		"whole/b":  "/paused 0@whole",
		"open":     "paused 5@open",
		"other":    "",
	} {
		bounds, err := p.Match(mustScope(t, scope))
		if got := lines(bounds); err != nil || got != want {
			t.Errorf("%s meets %q, %v, want %q", scope, got, err, want)
		}
	}
	bounds, err := p.Match(mustScope(t, "p/timed"))
	if err != nil || len(bounds) != 3 || !bounds[1].Paused() || bounds[1].Pattern != "p/timed" ||
		bounds[1].Until != time.Date(2027, 1, 16, 0, 1, 0, 0, time.UTC) || bounds[0].Paused() {
		t.Errorf("%+v, %v", bounds, err)
	}
}

func TestPauseIsWritten(t *testing.T) {
	t.Parallel()
	p := mustParse(t, pausedText("deny"))
	unmatched, limits := p.Limits()
	again, err := policy.New(unmatched, limits)
	if err != nil || !bytes.Equal(limitsyaml.Format(again), limitsyaml.Format(p)) {
		t.Fatalf("%s\nbecomes\n%s\n%v", limitsyaml.Format(p), limitsyaml.Format(again), err)
	}
	for _, want := range []string{"paused: true\n", "paused: false\n", "paused_until: 2027-01-16T00:01:00Z\n"} {
		if !strings.Contains(string(limitsyaml.Format(p)), want) {
			t.Errorf("no %q in\n%s", want, limitsyaml.Format(p))
		}
	}
	for text, want := range map[string]string{
		"limits: {p: {paused: yes}}":                                               `paused is the text "yes"; write true, or remove the line`,
		"limits: {p: {paused_until: 2030-01-31T12:00:00Z}}":                        "paused_until stands without paused: true",
		"limits: {p: {paused: false, paused_until: 2030-01-31T12:00Z}}":            "paused_until is the text \"2030-01-31T12:00Z\"; write a time with its zone",
		"limits: {p: {paused: true, paused_until: 2030-01-31}}":                    "paused_until is the date 2030-01-31; write a time",
		"limits: {p: {paused: true, paused_until: 2300-01-31T12:00:00Z}}":          "paused_until is not between 1970 and 2255",
		"limits: {p: {paused: true, paused_until: \"0000-01-01T00:00:00+09:00\"}}": "paused_until is not between 1970 and 2255",
		"limits: {p: {pause: true}}":                                               "pause is not a field of a scope; did you mean paused?",
		"limits: {p: {rules: [{name: /paused, unlimited: true}]}}":                 "name holds a '/'",
	} {
		if _, err := limitsyaml.Parse("it", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
	if _, err := policy.New("", map[string]policy.ScopeConfig{"p": {Pause: "maybe"}}); err == nil || !strings.Contains(err.Error(), `paused is "maybe"; write true or false`) {
		t.Error(err)
	}
}

const pausedLevels = `
unmatched: UNMATCHED
limits:
  p:
    rules: [{name: account, algorithm: token-bucket, limit: 100, per: 1s, burst: 10}]
    scopes:
      "*": {paused: true, rules: [{name: tenant, algorithm: fixed-window, limit: 5, per: 1s, max_wait: 1m}], scopes: {deep: {paused: false}}}
      free: {paused: false}
      timed: {paused: true, paused_until: 2027-01-16T00:01:00Z}
  whole: {paused: true, scopes: {a: {paused: false}}}
  open: {rules: [{name: paused, algorithm: fixed-window, limit: 5, per: 1s}]}
`

func pausedText(unmatched string) string {
	return strings.Replace(pausedLevels, "UNMATCHED", unmatched, 1)
}
