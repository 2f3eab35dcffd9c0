package events

import (
	"time"

	"github.com/headway-go/headway/throttle"
)

// cutStays is how long a rule is not reported again after its limit was cut: an API that rejects calls
// causes a cut each second.
const cutStays = 10 * time.Minute

// Upstream notices pauses and cuts: set it as throttle.Config.OnUpstream.
func (e *Events) Upstream(c throttle.UpstreamChange) {
	event := Event{Scope: c.Scope, Rule: c.Rule, Pattern: c.Pattern, Until: c.Until.UTC()}
	switch c.What {
	case "pause":
		event.Kind = Pause
		e.notice(noticed{event: event, of: string(Pause) + "\x00" + c.Scope, stays: min(max(c.Left, leastStay), mostStay)})
	case "cut":
		event.Kind = Cut
		e.notice(noticed{event: event, of: string(Cut) + "\x00" + c.Scope + "\x00" + c.Rule, stays: cutStays})
	}
}
