package throttle

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// turnedDown is an answer that refuses, and says for how long unless that is 0.
func turnedDown(wait time.Duration) upstream.Hint {
	return upstream.Hint{Limited: true, Retry: wait, RetryKnown: wait > 0}
}

// quotaLeft is an answer of a quota of which so much is left.
func quotaLeft(unit string, remaining int64, reset time.Duration) upstream.Hint {
	return upstream.Hint{Quotas: []upstream.Quota{{Unit: unit, Limit: 100, Remaining: remaining, Reset: reset}}}
}

// anew makes the limiter forget what it has told, as another process's knows nothing of it.
func (b *bench) anew() { b.reports.ForgetSent() }

// hear reports an answer as another process than those before.
func (b *bench) hear(scope string, a upstream.Hint) ReportResult {
	b.t.Helper()
	b.anew()
	out, err := b.Report(ctx, scope, a)
	noError(b.t, err)
	return out
}

// "A pause covers the scope the task names and all under it, not its siblings", and its end is told to the microsecond.
func TestPauseCoversItsScope(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, tenants(t, []policy.Rule{bucket(1000, 1000)}, []policy.Rule{bucket(1000, 1000)}), func(b *bench) {
		b.hear("p/a", turnedDown(30*sec))
		b.pass(10 * sec)
		for scope, wait := range map[string]time.Duration{"p": 0, "p/a": 20 * sec, "p/a/x": 20 * sec, "p/b": 0, "p/ab": 0} {
			for _, task := range []Waiter{{}, waiter("t" + scope)} {
				d := b.decide(Request{Scope: scope, Waiter: task})
				if d.Allowed != (wait == 0) || d.Paused != (wait > 0) || d.RetryAfter != wait || d.Paused && d.Binding != -1 || d.Joins != (wait > 0 && task.ID != "") {
					b.t.Errorf("%s of task %q: %+v", scope, task.ID, d)
				}
			}
			if d, err := b.Peek(ctx, Request{Scope: scope}); err != nil || d.Allowed != (wait == 0) || d.Paused != (wait > 0) {
				b.t.Errorf("%s: a peek says %+v, %v", scope, d, err)
			}
		}
		b.pass(20*sec - us(1))
		b.grants(Request{Scope: "p/a"}, us(1))
		b.pass(us(1))
		b.grants(Request{Scope: "p/a"}, 0)
	})
}

// "A refusal pauses the scope for the time that it gives. Without such a time, it pauses the scope for a second, and for twice as long after each further refusal that follows soon, up to five minutes."
func TestReport(t *testing.T) {
	t.Parallel()
	type step struct {
		after   time.Duration
		answer  upstream.Hint
		least   time.Duration // of the pause, from then
		most    time.Duration
		changed bool
	}
	exactly := func(after time.Duration, a upstream.Hint, wait time.Duration, changed bool) step {
		return step{after, a, wait, wait, changed}
	}
	rests := func(after, wait time.Duration) step { return step{after, turnedDown(0), wait, wait + wait/10, true} }
	for name, steps := range map[string][]step{
		"the longest counts": {
			exactly(0, turnedDown(30*sec), 30*sec, true), exactly(0, turnedDown(10*sec), 30*sec, false),
			exactly(10*sec, turnedDown(20*sec), 20*sec, false), exactly(0, turnedDown(60*sec), 60*sec, true),
		},
		"the first can be set": {rests(0, 30*sec), rests(33*sec, 60*sec)},
		"bounded":              {exactly(0, turnedDown(31*24*time.Hour), 24*time.Hour, true)},
		"in vain": {
			rests(0, sec), {500 * ms, turnedDown(0), 500 * ms, 600 * ms, false},
			rests(sec, 2*sec), rests(3*sec, 4*sec), rests(6*sec, 8*sec), rests(10*sec, 16*sec), rests(20*sec, 32*sec), rests(40*sec, 64*sec),
			rests(80*sec, 128*sec), rests(150*sec, 256*sec), rests(300*sec, 300*sec), rests(400*sec, 300*sec),
			rests(1000*sec, sec),
		},
		"soon means a minute": {rests(0, sec), rests(61*sec, 2*sec), rests(64*sec, sec)},
		"no request left": {
			exactly(0, quotaLeft("requests", 0, 7*sec), 7*sec, true), exactly(0, quotaLeft("requests", 1, 100*sec), 0, false),
			exactly(0, quotaLeft("tokens", 0, 100*sec), 0, false), exactly(0, quotaLeft("requests", 0, upstream.Unknown), 0, false),
		},
		"nothing said": {exactly(0, upstream.Hint{Retry: sec, RetryKnown: true}, 0, false)},
		"now is not known for how long": {
			{0, upstream.Hint{Limited: true, RetryKnown: true}, sec, sec + sec/10, true},
		},
	} {
		config := policy.ScopeConfig{Rules: []policy.Rule{bucket(1000, 1000)}}
		if name == "the first can be set" {
			config.Answers, config.Refusals = policy.AnswersPause, policy.Refusals{Pause: 30 * sec}
		}
		onBothIn(t, name, Config{}, limitsOf(t, map[string]policy.ScopeConfig{"p": config}), func(b *bench) {
			for i, s := range steps {
				b.pass(s.after)
				out := b.hear("p", s.answer)
				wait := time.Duration(0)
				if !out.Until.IsZero() {
					wait = us(out.Until.UnixMicro() - b.now.Load())
				}
				if wait < s.least || wait > s.most || out.Changed != s.changed {
					b.t.Fatalf("step %d: %v, changed %t; want %v to %v, %t", i, wait, out.Changed, s.least, s.most, s.changed)
				}
			}
		})
	}
}

// "One that asks for nothing, or for what is known here, costs nothing, any other a round trip", and the log tells it once.
func TestReportCosts(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, policyOf(t, bucket(1000, 1000)))
	b.hear("p", turnedDown(sec)) // the script is known now
	counted := counting(rdb, runsScript)
	log.Reset()
	for i, step := range []struct {
		answer upstream.Hint
		calls  int64
	}{
		{upstream.Hint{}, 0}, {quotaLeft("requests", 5, sec), 1}, {quotaLeft("requests", 5, sec), 0}, // a limit that was cut grows, once a second
		{turnedDown(60 * sec), 1}, {turnedDown(60 * sec), 0}, {turnedDown(59 * sec), 0},
		{turnedDown(0), 0}, {quotaLeft("requests", 0, 10*sec), 0}, {turnedDown(61 * sec), 1},
	} {
		counted.Store(0)
		_, err := b.Report(ctx, "p", step.answer)
		if calls := counted.Load(); err != nil || calls != step.calls {
			t.Errorf("answer %d: %d calls, want %d; %v", i, calls, step.calls, err)
		}
	}
	if n := strings.Count(log.String(), "the API asked to stop calling"); n != 2 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
}

// ResetUpstream ends a pause at once, for those who wait too, and leaves others alone. UpstreamState says
// what is left; when nothing is, there is no key.
func TestResetUpstream(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, tenants(t, []policy.Rule{bucket(1000, 1000)}, []policy.Rule{bucket(1000, 1000)}), func(b *bench) {
		b.hear("p/a", turnedDown(time.Hour))
		b.hear("p/b", turnedDown(0))
		b.hear("p/a/x", turnedDown(2*time.Hour))
		b.queued("p/a", "t")
		got, err := b.UpstreamState(ctx, "p/a/x")
		pauses := got.Pauses
		if err != nil || len(pauses) != 2 || pauses[0].Scope != "p/a" || pauses[1].Scope != "p/a/x" || pauses[0].Guessed ||
			pauses[0].Until.UnixMicro() != epoch+time.Hour.Microseconds() || pauses[0].Since.UnixMicro() != epoch {
			b.t.Errorf("%+v, %v", got, err)
		}
		if got, err := b.UpstreamState(ctx, "p/b"); err != nil || len(got.Pauses) != 1 || !got.Pauses[0].Guessed {
			b.t.Errorf("%+v, %v", got, err)
		}
		b.pass(sec)
		noError(b.t, b.ResetUpstream(ctx, "p/a"))
		if granted := b.dispatched(0); len(granted) != 1 {
			b.t.Errorf("%+v", granted)
		}
		b.grants(Request{Scope: "p/a", Waiter: waiter("t")}, 0)
		b.grants(Request{Scope: "p/a/x"}, 2*time.Hour-sec) // what is paused below is not forgotten
	})
}

// A correction is one of the rule as it was: when the policy changes the rule, it counts as the policy has it.
func TestChangedRuleIsNotCorrected(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []policy.Algorithm{policy.SlidingWindow, policy.FixedWindow, policy.TokenBucket} {
		for _, margin := range []time.Duration{0, sec} {
			rule := policy.Rule{Name: "r", Algorithm: algorithm, Limit: 50, Per: time.Minute, Margin: margin}
			admits := 46
			if algorithm == policy.TokenBucket {
				rule.Burst, rule.Margin, admits = 50, 0, 45
			}
			onBothIn(t, string(algorithm)+margin.String(), Config{}, policyOf(t, rule), func(b *bench) {
				b.hear("p", owns(4, time.Minute))
				b.admits("the API has 4", "p", 60, 4)
				other := rule // both servers' tests run at once
				if other.Per = time.Hour; algorithm == policy.TokenBucket {
					other.Per = 75 * sec
				}
				b.SetPolicy(policyOf(b.t, other))
				b.admits("under the other rule", "p", 60, admits)
				b.wantCounts("under the other rule", "p", "r", 50, 50)
			})
		}
	}
}

// A pause by hand beside a shorter one that an API asks for: that by hand binds. A request of nothing is allowed "unless its scope is
// paused", by hand or by its API, whatever else is over.
func TestRetryAfterBothPauses(t *testing.T) {
	t.Parallel()
	off := policy.Rule{Name: "off", Algorithm: policy.SlidingWindow, Limit: 0, Per: sec}
	for name, test := range map[string]struct {
		hand, told, want time.Duration // by hand: 0 for no pause, and Never for one without an end
		costs            policy.Costs
		rules            []policy.Rule
	}{
		"that by hand is longer":             {time.Minute, 10 * sec, time.Minute, nil, []policy.Rule{window10()}},
		"that by hand has no end":            {Never, 10 * sec, Never, nil, []policy.Rule{window10()}},
		"no API, and no rule besides":        {10 * sec, 0, 10 * sec, nil, nil},
		"of nothing, by hand":                {2 * sec, 0, 2 * sec, free, []policy.Rule{window10()}},
		"of nothing, by its API":             {0, sec, sec, free, []policy.Rule{window10()}},
		"of nothing, by its API, and is off": {0, sec, sec, free, []policy.Rule{off}},
	} {
		config := policy.ScopeConfig{Rules: test.rules}
		if test.hand > 0 {
			config.Pause = policy.PauseOn
		}
		if test.hand > 0 && test.hand < Never {
			config.PausedUntil = time.UnixMicro(epoch).Add(test.hand)
		}
		onBothIn(t, name, Config{}, limitsOf(t, map[string]policy.ScopeConfig{"p": config}), func(b *bench) {
			if test.told > 0 {
				b.hear("p", turnedDown(test.told))
			}
			req, byAPI := Request{Scope: "p", Costs: test.costs}, test.hand == 0
			if d := b.decide(req); d.Allowed || d.RetryAfter != test.want || d.Paused != byAPI || d.Binding < 0 != byAPI {
				b.t.Errorf("%+v", d)
			}
			if d, err := b.Peek(ctx, req); err != nil || d.Allowed || d.RetryAfter != test.want || d.Paused != byAPI {
				b.t.Errorf("a peek says %+v, %v", d, err)
			}
			if b.pass(test.want); test.costs != nil && !b.decide(req).Allowed {
				b.t.Error("it is denied when the pause is over")
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
