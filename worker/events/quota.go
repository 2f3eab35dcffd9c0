package events

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	maxQuotas = 10_000 // rules at scopes that a process remembers
	leastStay = time.Minute
	mostStay  = 31 * 24 * time.Hour
	// shortestWindow is the shortest window of a rule whose thresholds are reported: a limit by the second is exhausted each second.
	shortestWindow = time.Minute

	// askEvery is how often a process asks what is left of a scope if starts, granted ahead, and settlements do not say so. askPause is
	// the time between two questions, and maxAsks how many wait.
	askEvery = 10 * time.Second
	askPause = 500 * time.Millisecond
	maxAsks  = 100
)

// quotas are the rules that have passed a threshold.
type quotas struct {
	mu     sync.Mutex
	passed map[quotaKey]passed
	asked  map[string]question // by scope
	asks   chan string
}

// question is what a process asks about a scope.
type question struct {
	at   time.Time      // the last time; the next time if that is to come
	last throttle.Grant // of the last start: a rule is exhausted that has not as much left
}

type quotaKey struct{ scope, rule string }

// passed is the highest threshold that a rule has passed.
type passed struct {
	percent int
	limit   int64
	used    int64
	at      time.Time
	until   time.Time // the rule is whole again by then
}

// Decided implements throttle.Observer: it notices thresholds. A decision below all of them costs some nanoseconds a rule.
func (e *Events) Decided(_ context.Context, d throttle.Decision, _ time.Duration, err error) {
	if err != nil || d.Degraded {
		return
	}
	if d.Handed { // such a decision does not say what is left
		e.wantLeft(d.Rules, d.Grant)
		return
	}
	for i := range d.Rules {
		if r := &d.Rules[i]; e.counts(r) {
			e.used(r)
		}
	}
}

// Overspent implements throttle.Observer.
func (e *Events) Overspent(rules []throttle.RuleState) { e.wantLeft(rules, throttle.Grant{}) }

// counts reports whether the thresholds of a rule are reported.
func (e *Events) counts(r *throttle.RuleState) bool {
	return r.Limit > 0 && !r.Paused && r.Algorithm != policy.Concurrency && r.Window >= shortestWindow && r.Window != throttle.Never
}

// used notices that a rule has passed a threshold.
func (e *Events) used(r *throttle.RuleState) {
	percent, threshold := whole, 0 // 100 if the rule admits no more
	if !r.Limited && r.Remaining > 0 {
		percent = int(min(float64(whole-1), float64(whole)*(1-float64(r.Remaining)/float64(r.Limit))))
	}
	for _, t := range e.cfg.Thresholds {
		if t <= percent {
			threshold = t
		}
	}
	if threshold == 0 {
		return
	}
	now, resets, stays := time.Now(), time.Time{}, leastStay
	if r.ResetAfter != throttle.Never {
		resets = now.Add(r.ResetAfter).UTC()
		stays = min(max(r.ResetAfter, leastStay), mostStay)
	}
	next := passed{threshold, r.Limit, max(0, r.Limit-r.Remaining), now, now.Add(stays)}
	before, higher := e.quotas.pass(quotaKey{r.Scope, r.Rule}, next)
	if !higher {
		return
	}
	event := Event{
		Kind: Threshold, Scope: r.Scope, Rule: r.Rule, Pattern: r.Pattern, Percent: threshold, Used: next.used, Limit: r.Limit, Unit: r.Unit,
		ExhaustedAt: now.UTC(), ResetsAt: resets,
	}
	if threshold < whole {
		event.ExhaustedAt = pace(before, next, resets)
	}
	for _, t := range e.cfg.Thresholds { // those below are passed too: no other process reports them after this
		if t <= threshold {
			about := strings.Join([]string{string(Threshold), r.Scope, r.Rule, strconv.FormatInt(r.Limit, 10), strconv.Itoa(t)}, "\x00")
			e.notice(noticed{event: event, about: about, stays: stays, quiet: t < threshold})
		}
	}
}

// pass records that a rule has passed a threshold, and returns what it had passed before. higher is false if that was no less.
func (q *quotas) pass(key quotaKey, next passed) (before passed, higher bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before = q.passed[key]
	if !next.at.Before(before.until) || before.limit != next.limit {
		before = passed{} // of a window that has ended, or of another limit
	}
	if before.percent >= next.percent {
		return before, false
	}
	if q.passed == nil || len(q.passed) >= maxQuotas {
		q.passed = map[quotaKey]passed{} // Redis remembers what was reported
	}
	q.passed[key] = next
	return before, true
}

// pace returns when a limit is used up, by the time from one threshold to the next: zero if that is unknown, or if the rule is whole
// again before.
func pace(before, now passed, resets time.Time) time.Time {
	took, more := now.at.Sub(before.at), now.used-before.used
	if before.percent == 0 || more <= 0 || took < time.Second {
		return time.Time{}
	}
	left := time.Duration(float64(took) * float64(now.limit-now.used) / float64(more))
	at := now.at.Add(min(left, mostStay)).UTC()
	if !resets.IsZero() && !at.Before(resets) {
		return time.Time{}
	}
	return at
}

// wantLeft has askLeft ask what is left of a scope, if a threshold of its rules may be passed: now, or as soon as it may ask again, since
// no start may follow that would have it ask. last is the grant of a start, zero after a settlement.
func (e *Events) wantLeft(rules []throttle.RuleState, last throttle.Grant) {
	now := time.Now()
	e.quotas.mu.Lock()
	defer e.quotas.mu.Unlock()
	for i := range rules {
		r := &rules[i]
		known := e.quotas.passed[quotaKey{r.Scope, r.Rule}]
		if e.counts(r) && (known.percent < whole || !now.Before(known.until)) {
			e.quotas.want(innermost(rules[i:]), last, now)
		}
	}
}

// innermost returns the innermost scope at or below that of the first of some rules: both count there. The rules of a pool's member stand
// beside those of a tenant.
func innermost(rules []throttle.RuleState) string {
	scope := rules[0].Scope
	for i := range rules {
		if policy.Within(scope, rules[i].Scope) {
			scope = rules[i].Scope
		}
	}
	return scope
}

// want has what is left of a scope asked for: see Events.wantLeft. q.mu is held.
func (q *quotas) want(scope string, last throttle.Grant, now time.Time) {
	if q.asked == nil || len(q.asked) >= maxQuotas {
		q.asked = map[string]question{}
	}
	next := q.asked[scope]
	if !last.Zero() {
		next.last = last
	}
	if !now.Before(next.at) {
		next.at = next.at.Add(askEvery)
		if next.at.Before(now) {
			next.at = now
		}
		time.AfterFunc(next.at.Sub(now), func() {
			select {
			case q.asks <- scope:
			default: // it is asked about with a later start
			}
		})
	}
	q.asked[scope] = next
}

// askLeft asks what is left of scopes whose starts do not say it.
func (e *Events) askLeft(ctx context.Context, limiter *throttle.Limiter) {
	for ctx.Err() == nil {
		select {
		case scope := <-e.quotas.asks:
			if d, err := limiter.Peek(ctx, throttle.Request{Scope: scope}); err == nil {
				e.lack(scope, d.Rules)
				e.Decided(ctx, d, 0, nil)
			}
			sleep(ctx, askPause)
		case <-ctx.Done():
		}
	}
}

// lack marks the rules of a scope that have less left than its last start took.
func (e *Events) lack(scope string, rules []throttle.RuleState) {
	e.quotas.mu.Lock()
	defer e.quotas.mu.Unlock()
	last := e.quotas.asked[scope].last
	for i := range rules {
		r := &rules[i]
		r.Limited = r.Limited || r.Remaining < last.Charged(r.RuleInfo)
	}
}
