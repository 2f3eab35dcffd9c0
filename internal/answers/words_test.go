package answers

import (
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

const sec, ms = time.Second, time.Millisecond

// An answer that refuses nothing pauses until the reset, in milliseconds where only these fit the rule of its
// limit, except where a rule already paces calls as slowly as the quota refills.
func TestPauseOfNothingLeft(t *testing.T) {
	t.Parallel()
	window := func(limit int64, per time.Duration) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
	}
	bucket := func(limit, burst int64) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: time.Second, Burst: burst}
	}
	shadow, tokens := bucket(10, 1), bucket(10, 1)
	shadow.Shadow, tokens.Unit = true, "tokens"
	for name, tt := range map[string]struct {
		rule  policy.Rule
		limit int64
		reset time.Duration
		want  time.Duration
	}{
		"10/s, and full again in 100 ms, rounded up": {bucket(10, 1), 1, sec, 0},
		"the same, exact":                             {bucket(10, 1), 1, 100 * ms, 0},
		"a burst of 5, full again in 500 ms":          {bucket(10, 5), 5, 500 * ms, 0},
		"rounded up to a millisecond":                 {bucket(3, 1), 1, 334 * ms, 0},
		"a slower API, in whole seconds":              {bucket(10, 1), 1, 2 * sec, 2 * sec},
		"a slower API, exact":                         {bucket(10, 1), 1, 150 * ms, 150 * ms},
		"our burst is larger":                         {bucket(10, 2), 1, sec, sec},
		"a window admits its limit at once":           {window(10, sec), 1, sec, sec},
		"a window of the API's limit, just begun":     {window(10, sec), 10, sec, 0},
		"a window of the API's limit, almost over":    {window(500, 30*sec), 500, 1489 * ms, 1489 * ms},
		"the same in milliseconds, read as seconds":   {window(500, 30*sec), 500, 1489 * sec, 1489 * ms},
		"all of it in milliseconds":                   {window(500, 30*sec), 500, 30_000 * sec, 0},
		"too long for milliseconds":                   {window(500, 30*sec), 500, 30_001 * sec, 30_001 * sec},
		"milliseconds, of another limit":              {window(500, 30*sec), 400, 1489 * sec, 1489 * sec},
		"milliseconds, of another unit":               {tokens, 10, 900 * sec, 900 * sec},
		"a moment in whole seconds":                   {window(500, 30*sec), 500, 31 * sec, 31 * sec},
		"an hour's limit, used up in half of it":      {window(5000, time.Hour), 5000, 30 * time.Minute, 30 * time.Minute},
		"an hour's limit under a rule by the second":  {window(10, sec), 5000, time.Hour, time.Hour},
		"no limit told":                               {bucket(10, 1), upstream.Unknown, sec, sec},
		"a rule of another unit":                      {tokens, 1, sec, sec},
		"a rule that stops nothing":                   {shadow, 1, sec, sec},
		"a suspended rule":                            {window(0, sec), 1, sec, sec},
		"numbers that no product of 64 bits can hold": {window(1, 366*24*time.Hour), 1 << 53, sec, sec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{tt.rule}}})
			if err != nil {
				t.Fatal(err)
			}
			now := func(string) time.Time { return time.Now() }
			s, err := wire.NewScopes(pol, wire.Compiler{Base: "hw"}, now, func(*wire.Scope, *policy.Policy) any { return nil }).Of("p")
			if err != nil {
				t.Fatal(err)
			}
			q := upstream.Quota{Unit: policy.Requests, Limit: tt.limit, Remaining: 0, Reset: tt.reset}
			if wait, _, asks := (answer{Hint: upstream.Hint{Quotas: []upstream.Quota{q}}, scope: s, policy: pol}).pause(); wait != tt.want || asks != (tt.want > 0) {
				t.Errorf("it pauses for %v, %t; want %v", wait, asks, tt.want)
			}
		})
	}
}
