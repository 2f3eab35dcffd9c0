package control

import (
	"github.com/headway-go/headway/throttle/policy"
)

// Reason is what a task waits for.
type Reason string

// The reasons.
const (
	ReasonRule        Reason = "rule"         // units of a rule
	ReasonRun         Reason = "run"          // a run that ends, under a rule of concurrency
	ReasonSuspended   Reason = "suspended"    // a rule of limit 0
	ReasonPaused      Reason = "paused"       // a pause of the limits
	ReasonUpstream    Reason = "upstream"     // its API asked not to be called
	ReasonCost        Reason = "cost"         // a higher limit: it costs more than a rule admits
	ReasonQueuePaused Reason = "queue_paused" // asynq has paused its queue
	ReasonNoWorker    Reason = "no_worker"    // no live worker serves its queue
	ReasonUnmatched   Reason = "unmatched"    // a rule: none matches its scope
)

// reasonOf returns the reason that the rule that binds a waiting task stands for.
func reasonOf(b policy.MatchedRule, upstream bool) Reason {
	switch {
	case upstream:
		return ReasonUpstream
	case b.Paused():
		return ReasonPaused
	case b.Rule.Name == "":
		return ""
	case b.Rule.Limit == 0:
		return ReasonSuspended
	case b.Rule.Algorithm == policy.Concurrency:
		return ReasonRun
	}
	return ReasonRule
}
