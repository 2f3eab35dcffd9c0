package throttle

import (
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// state is what one rule says, for the tables below.
func state(r policy.Rule, pattern string, remaining int64, retry, reset time.Duration) RuleState {
	return RuleState{RuleInfo: &RuleInfo{
		Scope: "p/acme", Rule: r.Name, Pattern: pattern, Algorithm: r.Algorithm, Limit: r.Capacity(), Window: window(r), MaxWait: r.MaxWait,
	}, Limited: retry > 0, Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
}

// The fields of draft-ietf-httpapi-ratelimit-headers: lists of strings with parameters, as RFC 9651 has them.
func TestHeader(t *testing.T) {
	t.Parallel()
	sliding := policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: 200, Per: sec}
	tenant := policy.Rule{Name: "tenant", Algorithm: policy.TokenBucket, Limit: 20, Per: sec, Burst: 50}
	fixed := policy.Rule{Name: "day", Algorithm: policy.FixedWindow, Limit: 1000, Per: 24 * time.Hour}
	runs := policy.Rule{Name: "parallel", Algorithm: policy.Concurrency, Limit: 4, Lease: 30 * sec}
	odd := policy.Rule{Name: `"odd" \ ü`, Algorithm: policy.FixedWindow, Limit: 1, Per: ms}
	month := policy.Rule{Name: "month", Algorithm: policy.Calendar, Limit: 500, Resets: wallclock.MustParse("@monthly", "UTC"), Rollover: 50}
	monthly := state(month, "p", 520, 0, 20*oneDay)
	monthly.Window = 31 * oneDay
	suspended := policy.Rule{Name: "s", Algorithm: policy.TokenBucket, Limit: 0, Per: sec, Burst: 1}
	for name, test := range map[string]struct {
		decision Decision
		want     http.Header
	}{
		"no rules": {Decision{Allowed: true, Binding: -1}, http.Header{}},
		"allowed": {
			Decision{Allowed: true, Rules: []RuleState{
				state(sliding, "p", 199, 0, sec), state(tenant, "p/*", 0, 0, 2500*ms), state(fixed, "p/*", 999, 0, time.Hour),
				state(runs, "p/*", 3, 0, 30*sec),
			}},
			http.Header{
				"Ratelimit":        {`"p:account";r=199;t=1, "p/*:tenant";r=0;t=3, "p/*:day";r=999;t=3600, "p/*:parallel";r=3;t=30`},
				"Ratelimit-Policy": {`"p:account";q=200;w=1, "p/*:tenant";q=50;w=3, "p/*:day";q=1000;w=86400, "p/*:parallel";q=4;qu="concurrent-requests"`},
			},
		},
		"a calendar": {
			Decision{Allowed: true, Rules: []RuleState{monthly}},
			http.Header{"Ratelimit": {`"p:month";r=520;t=1728000`}, "Ratelimit-Policy": {`"p:month";q=500;w=2678400`}},
		},
		"denied": {
			Decision{RetryAfter: 1001 * ms, Rules: []RuleState{state(sliding, "p", 0, 1001*ms, 2*sec)}},
			http.Header{
				"Ratelimit": {`"p:account";r=0;t=2`}, "Ratelimit-Policy": {`"p:account";q=200;w=1`}, "Retry-After": {"2"},
			},
		},
		"denied for less than a second": {
			Decision{RetryAfter: 1, Rules: []RuleState{state(odd, "p", 0, 1, 1)}},
			http.Header{
				"Ratelimit":        {`"p:\"odd\" \\ %C3%BC";r=0;t=1`},
				"Ratelimit-Policy": {`"p:\"odd\" \\ %C3%BC";q=1;w=1`}, "Retry-After": {"1"},
			},
		},
		"no clock tells": {
			Decision{RetryAfter: Never, Rules: []RuleState{state(suspended, "p", 0, Never, Never)}},
			http.Header{"Ratelimit": {`"p:s";r=0`}, "Ratelimit-Policy": {`"p:s";q=1`}},
		},
	} {
		if got := test.decision.Header(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got\n%q, want\n%q", name, got, test.want)
		}
	}
}

// "for the binding rule alone"; "rounded up"; "left out if no clock can tell. All are left out if no rule binds"
func TestLegacyHeader(t *testing.T) {
	t.Parallel()
	r := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 5, Per: 60 * sec}
	states := []RuleState{
		state(r, "p", 4, 0, 0), state(r, "p", 0, 1, 59*sec+1), state(r, "p", 2, ms, 60*sec), state(r, "p", 0, Never, Never),
		state(policy.Rule{Name: "n", Algorithm: policy.Concurrency, Limit: 3}, "p/*", 1, 0, 30*sec),
	}
	fields := func(limit, remaining string, reset ...string) http.Header {
		h := http.Header{"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}}
		if len(reset) > 0 {
			h["X-Ratelimit-Reset"] = reset
		}
		return h
	}
	for name, test := range map[string]struct {
		decision Decision
		want     http.Header
	}{
		"no rules":          {Decision{Allowed: true, Binding: -1}, http.Header{}},
		"the API is paused": {Decision{Rules: states, Binding: -1, Paused: true, RetryAfter: sec}, http.Header{}},
		"untouched":         {Decision{Allowed: true, Rules: states}, fields("5", "4", "0")},
		"denied":            {Decision{Rules: states, Binding: 1, RetryAfter: 1}, fields("5", "0", "60")},
		"no clock tells":    {Decision{Rules: states, Binding: 3, RetryAfter: Never}, fields("5", "0")},
		"places":            {Decision{Allowed: true, Rules: states, Binding: 4}, fields("3", "1", "30")},
	} {
		if got := test.decision.LegacyHeader(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// "Seconds are rounded up, so that no caller comes back too early."
func TestFive(t *testing.T) {
	t.Parallel()
	r := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 5, Per: 60 * sec}
	states := []RuleState{
		state(r, "p", 4, 0, 0), state(r, "p", 0, 1, 60*sec), state(r, "p", 2, 59999*ms, 60001*ms),
		state(r, "p", 0, Never, Never), state(r, "p", 0, Never-1, Never-1),
	}
	for name, test := range map[string]struct {
		decision Decision
		want     Tuple
	}{
		"no rules":                    {Decision{Allowed: true, Binding: -1}, Tuple{0, 0, 0, -1, 0}},
		"denied":                      {Decision{RetryAfter: 59999 * ms, Rules: states, Binding: 2}, Tuple{1, 5, 2, 60, 61}},
		"granted ahead":               {Decision{Allowed: true, Wait: sec, Rules: states, Binding: 1}, Tuple{0, 5, 0, -1, 60}},
		"a moment that none asks for": {Decision{RetryAfter: 90 * sec, Rules: states, Binding: 2}, Tuple{1, 5, 2, 90, 61}},
		"for centuries":               {Decision{RetryAfter: Never - 1, Rules: states, Binding: 4}, Tuple{1, 5, 0, 9223372037, 9223372037}},
		"suspended":                   {Decision{RetryAfter: Never, Rules: states, Binding: 3}, Tuple{1, 5, 0, 9223372036854775807, 9223372036854775807}},
	} {
		if got := test.decision.Tuple(); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
