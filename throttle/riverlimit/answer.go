package riverlimit

import (
	"context"
	"net/http"
	"time"

	"github.com/riverqueue/river"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

type runKey struct{}

// run is what the context of a limited job's handler has.
type run struct {
	limiter *throttle.Limiter
	grant   throttle.Grant
}

// GrantOf returns what the job of a handler's context was granted: the member of a pool, and what to settle. It is zero outside of a
// limited job. It does no I/O.
func GrantOf(ctx context.Context) throttle.Grant {
	r, _ := ctx.Value(runKey{}).(run)
	return r.grant
}

// refusedSnooze is after how long a job comes back whose API names no time, and longestRefused the longest: it then meets the pause
// that the answer has begun.
const refusedSnooze, longestRefused = time.Second, time.Minute

// ReportResponse reports an API's answer to a call of a limited job, so that the jobs of all processes heed it: see
// throttle.Limiter.Report and ReportCall. If the answer says what the call has cost, the job is settled.
//
// If the API has refused the call for a limit, ReportResponse returns a snooze, which the handler is to return: the job comes back in
// the same attempt. Otherwise it returns nil, also if Redis cannot be reached. Outside of a limited job it does nothing. Costs what
// Report does.
func ReportResponse(ctx context.Context, resp *http.Response) error {
	r, limited := ctx.Value(runKey{}).(run)
	if !limited || r.grant.Zero() {
		return nil
	}
	scope := r.grant.AnswerScope()
	hint := r.limiter.ReadResponse(scope, resp, time.Now())
	_, _ = r.limiter.Report(ctx, scope, hint) // else this job alone heeds it
	if s, err := policy.ParseScope(scope); err == nil && r.limiter.Policy().Hears(s, hint.Host) {
		_, _ = r.limiter.ReportCall(ctx, r.grant, hint.Failed)
	}
	if len(hint.Costs) > 0 {
		_, _ = r.limiter.Settle(ctx, r.grant, hint.Costs)
	}
	switch {
	case !hint.Limited:
		return nil
	case hint.RetryKnown:
		return river.JobSnooze(min(hint.Retry, longestRefused))
	}
	return river.JobSnooze(refusedSnooze)
}
