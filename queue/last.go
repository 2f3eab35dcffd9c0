package queue

import (
	"context"
	"time"

	"github.com/headway-go/headway/throttle"
)

// LastStart is when the last task that waits in a queue is expected to start.
type LastStart struct {
	// At is the expected start, by the local clock; zero if no clock tells it, as under a suspended rule.
	At time.Time
	// Reason is what it waits for, or why At is zero, and Binding the rule that determines it, or the pause. They are empty for none.
	Reason  Reason
	Binding Binding
}

// LastStarts forecasts when the tasks that wait now in the own queues of some scopes will all have
// started, one LastStart for each scope: see Client.Forecast for what that rests on, and how accurate
// it is. Scopes below them are not included. It changes nothing. Costs two round trips for each scope.
// Its errors are those of throttle.Limiter.Forecast.
func LastStarts(ctx context.Context, limiter *throttle.Limiter, scopes []string) ([]LastStart, error) {
	o, list := newOutlook(limiter), make([]LastStart, len(scopes))
	for i, scope := range scopes {
		l, err := o.line(ctx, scope)
		if err != nil {
			return nil, err
		}
		start := l.start(spending{})
		switch {
		case start.known && !l.until.IsZero() && start.at.After(l.until):
			list[i].Reason = ReasonHours
		case start.known:
			list[i].At = start.at
			fallthrough
		default:
			list[i].Reason, list[i].Binding = start.why, start.by
		}
	}
	return list, nil
}
