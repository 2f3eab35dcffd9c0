package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// A correction is one of the rule as it was: when the policy changes the rule, it counts as the policy has it.
func TestChangedRuleIsNotCorrected(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []policy.Algorithm{policy.SlidingWindow, policy.FixedWindow, policy.TokenBucket} {
		for _, margin := range []time.Duration{0, sec} {
			rule := policy.Rule{Name: "r", Algorithm: algorithm, Limit: 50, Per: time.Minute, Margin: margin}
			counts, admits := int64(50), 46
			if algorithm == policy.TokenBucket {
				rule.Burst, rule.Margin, admits = 50, 0, 45
			}
			onBothIn(t, string(algorithm)+margin.String(), Config{}, policyOf(t, rule), func(b *bench) {
				b.hear("p", owns(4, time.Minute))
				if n := b.admitted("p", 60); n != 4 {
					b.t.Errorf("%d were admitted", n)
				}
				other := rule // both servers' tests run at once
				if other.Per = time.Hour; algorithm == policy.TokenBucket {
					other.Per = 75 * sec
				}
				b.SetPolicy(policyOf(b.t, other))
				if n := b.admitted("p", 60); n != admits {
					b.t.Errorf("%d more were admitted", n)
				}
				if n := b.counts("p", "r", 50); n != counts {
					b.t.Errorf("%d counts", n)
				}
			})
		}
	}
}

// A pause by hand beside a shorter one that an API asks for: that by hand binds.
func TestRetryAfterBothPauses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		until, told, want time.Duration
		rules             []policy.Rule
	}{
		"that by hand is longer":      {time.Minute, 10 * sec, time.Minute, []policy.Rule{bucket(10, 10)}},
		"that by hand has no end":     {0, 10 * sec, Never, []policy.Rule{bucket(10, 10)}},
		"no API, and no rule besides": {10 * sec, 0, 10 * sec, nil},
	} {
		until := time.Time{}
		if test.until > 0 {
			until = time.UnixMicro(epoch).Add(test.until)
		}
		policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: test.rules, Pause: policy.PauseOn, PausedUntil: until}})
		onBothIn(t, name, Config{}, policy, func(b *bench) {
			if test.told > 0 {
				b.hear("p", turnedDown(test.told))
			}
			if d := b.decide(Request{Scope: "p"}); d.Allowed || d.RetryAfter != test.want || d.Paused || d.Binding < 0 {
				b.t.Errorf("%+v", d)
			}
			if d, err := b.Peek(ctx, Request{Scope: "p"}); err != nil || d.RetryAfter != test.want || d.Paused {
				b.t.Errorf("a peek says %+v, %v", d, err)
			}
		})
	}
}

// An answer that refuses nothing pauses until the reset, in milliseconds where only these fit the rule of its
// limit, except where a rule already paces calls as slowly as the quota refills.
func TestPauseOfNothingLeft(t *testing.T) {
	t.Parallel()
	window := func(limit int64, per time.Duration) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
	}
	shadow, tokens := bucket(10, 1), bucket(10, 1)
	shadow.Shadow, tokens.Unit = true, "tokens"
	tests := map[string]struct {
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
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing asks it
			t.Cleanup(func() { _ = rdb.Close() })
			l := newLimiter(t, rdb, policyOf(t, tt.rule), Config{})
			p, err := l.plan("p")
			noError(t, err)
			q := upstream.Quota{Unit: policy.Requests, Limit: tt.limit, Remaining: 0, Reset: tt.reset}
			if wait, _, asks := p.stays(upstream.Hint{Quotas: []upstream.Quota{q}}); wait != tt.want || asks != (tt.want > 0) {
				t.Errorf("it pauses for %v, %t; want %v", wait, asks, tt.want)
			}
		})
	}
}

// "At most 20,000": beyond that the pause of a path counts for the tenant above it, and a correction is left out. What is over makes
// room with the calls that come.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 20, Per: time.Minute}
	b := newBench(t, redistest.Client(t), Config{}, tenants(t, []policy.Rule{bucket(1000, 1000)}, []policy.Rule{rule}))
	b.hear("p/b/x", turnedDown(time.Minute))
	key := wire.APIKey(b.plan("p").Prefix)
	full := map[string]any{}
	for field, v := range b.rdb.HGetAll(ctx, key).Val() {
		for i := 0; field[0] == 'P' && i < 20_000; i++ {
			full[fmt.Sprint("P/c/", i)] = v
		}
	}
	noError(t, b.rdb.HSet(ctx, key, full).Err())
	b.hear("p/a/x", turnedDown(time.Hour))
	for scope, starts := range map[string]bool{"p/a/x": false, "p/a/y": false, "p/b/x": false, "p/b": true, "p": true} {
		if d := b.decide(Request{Scope: scope}); d.Allowed != starts {
			t.Errorf("%s starts: %t", scope, d.Allowed)
		}
	}
	if b.hear("p/b", owns(4, time.Minute)).Changed {
		t.Error("there was room for a correction")
	}
	b.pass(3 * time.Minute)
	for i := range 1000 {
		b.hear(fmt.Sprint("p/d", i), turnedDown(sec))
		b.pass(3 * time.Second)
	}
	if n := b.rdb.HLen(ctx, key).Val(); n > 1000 {
		t.Errorf("%d are kept of what is over", n)
	}
}
