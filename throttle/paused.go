package throttle

import (
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// pauseLeft is how long a pause lasts from a moment on, Never where no clock ends it.
func pauseLeft(b policy.MatchedRule, at time.Time) time.Duration {
	if b.Until.IsZero() {
		return Never
	}
	return max(time.Microsecond, b.Until.Sub(at))
}

// paused returns the pause of the plan that lasts longest from a moment on, and for how long.
func (p *compiledScope) paused(at time.Time) (longest policy.MatchedRule, left time.Duration) {
	i, left := p.longestPause(at)
	return p.bounds[i], left
}

// longestPause is paused of a plan that has a pause, with the pause as its number in bounds.
func (p *compiledScope) longestPause(at time.Time) (longest int, left time.Duration) {
	for _, i := range p.pauses {
		if l := pauseLeft(p.bounds[i], at); l > left {
			longest, left = i, l
		}
	}
	return longest, left
}

// heedPauses completes a denial: no script knows when a pause by hand ends. The one that lasts
// longest binds, which may be an API's, that is told for so long, and the wait is that of the
// rule that asks for most.
func (p *compiledScope) heedPauses(d *Decision, told time.Duration) {
	if len(p.pauses) == 0 || d.Allowed {
		return
	}
	longest := told
	if told > 0 {
		d.Binding, d.Paused = -1, true
	}
	for _, i := range p.pauses {
		d.Rules[i].RetryAfter = pauseLeft(p.bounds[i], d.At)
		if d.Rules[i].RetryAfter > longest {
			longest, d.Binding, d.Paused = d.Rules[i].RetryAfter, i, false
		}
	}
	for i := range d.Rules {
		longest = max(longest, d.Rules[i].RetryAfter)
	}
	d.RetryAfter = longest
	if d.Position.Waits {
		d.Position.Expected = longest
	}
}

// live are the bounds without the pauses that have ended.
func live(bounds []policy.MatchedRule, at time.Time) (list []policy.MatchedRule) {
	for _, b := range bounds {
		if !b.Paused() || b.Until.IsZero() || at.Before(b.Until) {
			list = append(list, b)
		}
	}
	return list
}

// pauseGrace is how long a start that was granted before a pause may still be ahead: with
// the notice of package policystore, it has come within a second of the change.
const pauseGrace = 250 * time.Millisecond

// overtaken says that a scope was paused while a start was waited for that was granted for
// longer ahead than a pause lets go.
func (l *Limiter) overtaken(scope string, d Decision) bool {
	if d.Wait <= pauseGrace {
		return false
	}
	p, err := l.scopes.of(scope)
	return err == nil && len(p.pauses) > 0
}

// unpaused are the numbers of the bounds that are rules.
func (p *compiledScope) unpaused() []int {
	rules := make([]int, 0, len(p.bounds))
	for i := range p.bounds {
		if !slices.Contains(p.pauses, i) {
			rules = append(rules, i)
		}
	}
	return rules
}

// liftPauses takes the pauses by the limits out of the paths, and returns until when each scope is paused, 0 for one that is not, or
// that no clock ends.
func (t *table) liftPauses() []any {
	until := make([]any, len(t.plans))
	for i, p := range t.plans {
		until[i] = int64(0)
		if p == nil || len(p.pauses) == 0 {
			continue
		}
		parts, left := strings.Split(text(t.paths[i]), ","), []string{}
		for _, rule := range p.unpaused() {
			left = append(left, parts[rule])
		}
		t.paths[i] = strings.Join(left, ",")
		ends := time.Time{}
		for _, pause := range p.pauses {
			if b := p.bounds[pause]; b.Until.After(ends) {
				ends = b.Until
			}
		}
		if !ends.IsZero() {
			until[i] = ends.UnixMicro()
		}
	}
	return until
}
