package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// An API's own limit is one of its window: where the policy gives the rule another window
// since, it says nothing of that.
func TestAdoptedForItsWindowAlone(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []policy.Algorithm{policy.SlidingWindow, policy.FixedWindow} {
		for _, margin := range []time.Duration{0, sec} {
			t.Run(string(algorithm)+margin.String(), func(t *testing.T) {
				t.Parallel()
				rule := policy.Rule{Name: "r", Algorithm: algorithm, Limit: 50, Per: time.Minute, Margin: margin}
				onBoth(t, Config{}, policyOf(t, rule), func(b *bench) {
					b.heed("p", owns(4, time.Minute))
					if n := b.admitted("p", 60); n != 4 {
						b.t.Errorf("%d were admitted", n)
					}
					hourly := rule // both servers' tests run at once
					hourly.Per = time.Hour
					b.SetPolicy(policyOf(b.t, hourly))
					if n := b.admitted("p", 60); n != 46 {
						b.t.Errorf("%d more were admitted in an hour", n)
					}
					if n := b.counts("p", "r", 50); n != 50 {
						b.t.Errorf("%d counts", n)
					}
				})
			})
		}
	}
}

// A pause by hand and one that an API asks for: "the time until the request would be allowed"
// is the longer of the two, which binds.
func TestRetryAfterBothPauses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		until, told, want time.Duration
		rules             []policy.Rule
	}{
		"the API's is longer":         {10 * sec, time.Minute, time.Minute, []policy.Rule{bucket(10, 10)}},
		"that by hand is longer":      {time.Minute, 10 * sec, time.Minute, []policy.Rule{bucket(10, 10)}},
		"that by hand has no end":     {0, 10 * sec, Never, []policy.Rule{bucket(10, 10)}},
		"a suspended rule":            {10 * sec, time.Minute, Never, []policy.Rule{{Name: "r", Algorithm: policy.FixedWindow, Limit: 0, Per: sec}}},
		"no rule but that by hand":    {10 * sec, time.Minute, time.Minute, nil},
		"no API, and no rule besides": {10 * sec, 0, 10 * sec, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			until := time.Time{}
			if test.until > 0 {
				until = time.UnixMicro(epoch).Add(test.until)
			}
			policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: test.rules, Pause: policy.PauseOn, PausedUntil: until}})
			if err != nil {
				t.Fatal(err)
			}
			onBoth(t, Config{}, policy, func(b *bench) {
				if test.told > 0 {
					b.heed("p", turnedDown(test.told))
				}
				byAPI := test.told > test.until && test.until > 0
				for _, ticket := range []string{"", "t"} {
					d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: ticket}, ID: NewID()})
					if d.Allowed || d.RetryAfter != test.want || d.Paused != byAPI || d.Paused != (d.Binding < 0) || ticket != "" && d.Position.Expected != test.want {
						b.t.Errorf("with ticket %q: %+v", ticket, d)
					}
				}
				if d, err := b.Peek(ctx, Request{Scope: "p"}); err != nil || d.RetryAfter != test.want || d.Paused != byAPI {
					b.t.Errorf("a peek says %+v, %v", d, err)
				}
			})
		})
	}
}
