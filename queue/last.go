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
	// Binding is the rule that determines it, or the pause; zero for none.
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
		list[i].Binding = start.by
		if start.known && (l.until.IsZero() || !start.at.After(l.until)) {
			list[i].At = start.at
		}
	}
	return list, nil
}
