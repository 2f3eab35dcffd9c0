package policy

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/internal/diag"
)

// Pause is whether the policy pauses a level.
type Pause string

const (
	// PauseInherited takes the value of "*" of the same level. If "*" has none, the level is not paused.
	PauseInherited Pause = ""
	// PauseOn pauses the level and all levels below it: no task that spends from them starts.
	PauseOn Pause = "true"
	// PauseOff overrides the pause of "*" of its level for one name. A pause at a level above still
	// applies.
	PauseOff Pause = "false"
)

// PausedRule is the name of the rule that a paused level adds to the scopes at and below it. No rule
// of a policy can have this name: it contains a '/'.
const PausedRule = "/paused"

// pausedRule admits no task, like any suspended rule, whatever the state of Redis.
var pausedRule = Rule{Name: PausedRule, Algorithm: SlidingWindow, Per: time.Second}.withDefaults()

// Paused reports whether this is not a rule of the policy, but the pause of its level until Until.
func (b MatchedRule) Paused() bool { return b.Rule.Name == PausedRule }

// pauseOf returns the pause of a level that layers cover, if it is paused at a time. The value of
// the name replaces that of "*".
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

// earliestEnd and latestEnd bound the end of a pause to times that the scripts can count: µs since
// the epoch.
var earliestEnd, latestEnd = time.Unix(0, 0), time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)

// checkPause checks the pause of a scope and its end.
func (s *draftScope) checkPause(path string, faults *diag.Faults) (Pause, time.Time) {
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
