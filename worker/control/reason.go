package control

import "github.com/headway-go/headway/queue"

// Reason is what a task waits for.
type Reason = queue.Reason

// The reasons. Those of package queue are what its forecasts know of.
const (
	ReasonRule        = queue.ReasonRule
	ReasonRun         = queue.ReasonRun
	ReasonSuspended   = queue.ReasonSuspended
	ReasonPaused      = queue.ReasonPaused
	ReasonUpstream    = queue.ReasonUpstream
	ReasonHours       = queue.ReasonHours
	ReasonDelay       = queue.ReasonDelay
	ReasonCost        = Reason("cost")         // a higher limit: it costs more than a rule admits
	ReasonQueuePaused = Reason("queue_paused") // asynq has paused its queue
	ReasonUnmatched   = Reason("unmatched")    // a rule: none matches its scope
)
