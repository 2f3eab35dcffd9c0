package policy

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/internal/diag"
)

// Pause says whether the policy pauses a level.
type Pause string

const (
	// PauseInherited takes the value of "*" of the level. If that has none, the level is not paused.
	PauseInherited Pause = ""
	// PauseOn pauses the level and all below it: nothing that spends from them starts.
	PauseOn Pause = "true"
	// PauseOff overrides the pause of "*" of its level for one name. A pause further up still applies.
	PauseOff Pause = "false"
)

// PausedRule is the name of the rule that a paused level adds to the paths that it is on.
// No rule of a policy can have it: it holds a '/'.
const PausedRule = "/paused"

// pausedRule admits nobody, as any rule does that is suspended, whatever Redis does.
var pausedRule = Rule{Name: PausedRule, Algorithm: SlidingWindow, Per: time.Second}.withDefaults()

// Paused says that this is no rule of the policy: its level is paused, until Until.
func (b MatchedRule) Paused() bool { return b.Rule.Name == PausedRule }

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
