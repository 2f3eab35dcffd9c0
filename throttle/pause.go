package throttle

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/throttle/strictyaml"
)

// Pause says whether a level is paused by hand.
type Pause string

const (
	// PauseInherited leaves it to "*" of the level. Where that says nothing the level is
	// not paused.
	PauseInherited Pause = ""
	// PauseOn lets nobody start who spends from the level, or from what lies below it.
	PauseOn Pause = "true"
	// PauseOff lifts for one name what "*" of its level says. What is paused further up
	// stays paused.
	PauseOff Pause = "false"
)

// PausedRule is the name of the rule that a paused level adds to the paths that it is on.
// No rule of a policy can have it: it holds a '/'.
const PausedRule = "/paused"

// pausedRule admits nobody, as any rule does that is suspended, whatever Redis does.
var pausedRule = Rule{Name: PausedRule, Algorithm: SlidingWindow, Per: time.Second}.withDefaults()

// Paused says that it is no rule of the policy's: its level is paused, until Until.
func (b MatchedRule) Paused() bool { return b.Rule.Name == PausedRule }

// left is how long a pause lasts from a moment on, Unknown where no clock ends it.
func (b MatchedRule) left(at time.Time) time.Duration {
	if b.Until.IsZero() {
		return Never
	}
	return max(time.Microsecond, b.Until.Sub(at))
}

// pauseOf returns the pause of a level that layers cover, if there is one at a time: the
// word of the name lies over that of "*".
func pauseOf(layers []*tree, level Scope, at time.Time) (b MatchedRule, paused bool) {
	var says *tree
	for _, layer := range layers {
		if layer.pause != PauseInherited {
			says = layer
		}
	}
	if says == nil || says.pause != PauseOn || !says.until.IsZero() && !at.Before(says.until) {
		return b, false
	}
	return MatchedRule{Rule: pausedRule, Scope: level, Pattern: says.path, Until: says.until}, true
}

// A pause ends while scripts' clocks go: they count from the epoch.
var earliestEnd, latestEnd = time.Unix(0, 0), time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)

// checkPause checks whether a scope is paused, and until when.
func (s *draftScope) checkPause(path string, faults *strictyaml.Faults) (Pause, time.Time) {
	switch {
	case s.pause != PauseInherited && s.pause != PauseOn && s.pause != PauseOff:
		faults.Add(s.at, path+".paused", fmt.Sprintf("paused is %s; write true or false, or remove it", quote(string(s.pause))))
	case s.until.IsZero():
	case s.pause != PauseOn:
		faults.Add(s.untilAt, path+".paused_until", "paused_until stands without paused: true; write both, or remove it")
	case !s.until.After(earliestEnd) || s.until.After(latestEnd):
		faults.Add(s.untilAt, path+".paused_until", "paused_until is not between 1970 and 2255; remove it for a pause that has no end")
	}
	return s.pause, s.until.UTC()
}

// paused returns the pauses of the plan that last longest from a moment on, and for how
// long.
func (p *compiledScope) paused(at time.Time) (longest MatchedRule, left time.Duration) {
	for _, i := range p.pauses {
		if l := p.bounds[i].left(at); l > left {
			longest, left = p.bounds[i], l
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
		d.Rules[i].RetryAfter = p.bounds[i].left(d.At)
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
func live(bounds []MatchedRule, at time.Time) (list []MatchedRule) {
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
